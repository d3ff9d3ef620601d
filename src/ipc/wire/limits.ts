/** How much may come from another process at a time. Both ends hold to the same numbers. */
import { MAX_MESSAGE_BYTE_LENGTH, MAX_MESSAGE_FDS } from '../../../ffi/linux/message.ts';

/** The largest value, encoded. */
export const MAX_VALUE_BYTE_LENGTH: number = 16 << 20;
/** What may be said behind a value beside it. */
export const MAX_CONTROL_BYTE_LENGTH: number = 1 << 20;
/** The most file descriptors of one value: all go with its first packet. */
export const MAX_VALUE_FDS: number = MAX_MESSAGE_FDS;
/** The most GPU objects of one value. */
export const MAX_VALUE_OBJECTS = 4096;
/** The most descriptors that are remembered of a connection. */
export const MAX_CACHED_DESCRIPTORS = 1024;
/** The most parts of one value, each null and number counted: a byte on the wire can be many here. */
export const MAX_VALUE_PARTS: number = 1 << 20;
/** The most typed arrays, DataViews and ArrayBuffers of one value: each takes half a KiB here. */
export const MAX_VALUE_BINARIES: number = 1 << 17;
/** The most hexadecimal digits of a bigint: what is made of them comes at once. */
export const MAX_BIGINT_DIGITS: number = 1 << 20;
/** How deep arrays and objects may nest. */
export const MAX_VALUE_DEPTH = 64;

/** The most bytes of a question, or of its answer: a number, and a descriptor or a reason. */
export const MAX_REQUEST_BYTE_LENGTH: number = 1 << 15;
/** The most points of what one message says is returned. */
export const MAX_RELEASE_POINTS = 2048;

/** What begins each packet. */
export const HEADER_BYTE_LENGTH = 16;
/** What a packet holds of a value; all but the last are full. */
export const FRAGMENT_BYTE_LENGTH: number = MAX_MESSAGE_BYTE_LENGTH - HEADER_BYTE_LENGTH;

/** How much may lie here that nobody took; what comes after stays with the kernel, and the sender. */
export const MAX_QUEUED_VALUES = 64;
export const MAX_QUEUED_BYTE_LENGTH: number = MAX_VALUE_BYTE_LENGTH;
/** A process has few descriptors, and each connection may have so many of them in what nobody took. */
export const MAX_QUEUED_FDS = 64;
/** What an open GPU object counts there. */
export const QUEUED_OBJECT_BYTE_LENGTH: number = MAX_QUEUED_BYTE_LENGTH / MAX_VALUE_OBJECTS;

/** How much may wait here until the other end makes room. */
export const MAX_UNSENT_VALUES = 1024;
export const MAX_UNSENT_BYTE_LENGTH: number = 4 * MAX_VALUE_BYTE_LENGTH;
/** How much may wait here to be told to one who does not read: what was given back, mostly. */
export const MAX_PENDING_CONTROL: number = 1 << 17;
