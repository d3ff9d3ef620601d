/** Limits on what another process may send at a time. Both ends apply the same numbers. */
import { MAX_MESSAGE_BYTE_LENGTH, MAX_MESSAGE_FDS } from '../../../ffi/linux/message.ts';

/** The most bytes of an encoded value. */
export const MAX_VALUE_BYTE_LENGTH: number = 16 << 20;
/** The most bytes of the control block that follows a value. */
export const MAX_CONTROL_BYTE_LENGTH: number = 1 << 20;
/** The most bytes that describe one object of a value. */
export const MAX_OBJECT_BYTE_LENGTH = 4096;
/** The most bytes of the table of objects that follows a value. */
export const MAX_TABLE_BYTE_LENGTH: number = 4 << 20;
/** The most bytes of a message: a value, its table of objects and its control block. */
export const MAX_BODY_BYTE_LENGTH: number =
  MAX_VALUE_BYTE_LENGTH + MAX_TABLE_BYTE_LENGTH + MAX_CONTROL_BYTE_LENGTH;
/** The most file descriptors of one value. All are sent with its first frame. */
export const MAX_VALUE_FDS: number = MAX_MESSAGE_FDS;
/** The most GPU objects of one value. */
export const MAX_VALUE_OBJECTS = 4096;
/** The most decoded descriptors that a connection caches. */
export const MAX_CACHED_DESCRIPTORS = 1024;
/**
 * The most parts of one value, counting each null and number. One byte on the wire can take many
 * bytes in memory.
 */
export const MAX_VALUE_PARTS: number = 1 << 20;
/**
 * The most typed arrays, DataViews and ArrayBuffers of one value. Each takes half a KiB in memory.
 */
export const MAX_VALUE_BINARIES: number = 1 << 17;
/** The most Maps, Sets and Errors of one value. Each takes a quarter of a KiB in memory. */
export const MAX_VALUE_COLLECTIONS: number = 1 << 17;
/** The most characters of the name of a property. V8 hashes a longer string by its length. */
export const MAX_NAME_LENGTH = 16_383;
/**
 * How often the keys of a Map, or the members of a Set, may collide: so often in all, plus so often
 * for each. See hash-collisions.ts.
 */
export const MAX_COLLISIONS = 2048;
export const MAX_COLLISIONS_PER_KEY = 16;
/** The most keys or members that cannot collide more often than that. */
export const FEW_KEYS = 64;
/** The most hexadecimal digits of a bigint, which is built in one step. */
export const MAX_BIGINT_DIGITS: number = 1 << 20;
/** The deepest nesting of arrays, objects, Maps, Sets and causes of errors. */
export const MAX_VALUE_DEPTH = 64;

/** The most bytes of a verification or confirmation: a descriptor, or a reason. */
export const MAX_VERIFICATION_BYTE_LENGTH: number = 1 << 15;
/** The most points of all lease releases in one message. */
export const MAX_RELEASE_POINTS = 2048;

/** The length of the header of each frame. */
export const HEADER_BYTE_LENGTH = 20;
/** The most bytes of a message in one frame. All frames but the last are full. */
export const FRAGMENT_BYTE_LENGTH: number = MAX_MESSAGE_BYTE_LENGTH - HEADER_BYTE_LENGTH;

/**
 * How much is received ahead of `receive` calls. What comes after that stays in the kernel or with
 * the sender.
 */
export const MAX_QUEUED_VALUES = 64;
export const MAX_QUEUED_BYTE_LENGTH: number = MAX_VALUE_BYTE_LENGTH;
/**
 * The most file descriptors of values that nobody took. A process has few, and every connection may
 * hold so many.
 */
export const MAX_QUEUED_FDS = 64;
/** How many bytes an open GPU object counts for in the receive queue. */
export const QUEUED_OBJECT_BYTE_LENGTH: number = MAX_QUEUED_BYTE_LENGTH / MAX_VALUE_OBJECTS;

/** The most requests of one end that wait for their answers, and their bytes. */
export const MAX_PENDING_REQUESTS = 1024;
export const MAX_PENDING_REQUEST_BYTE_LENGTH: number = 4 * MAX_VALUE_BYTE_LENGTH;

/** How much may be queued here until the peer makes room. */
export const MAX_UNSENT_VALUES = 1024;
export const MAX_UNSENT_BYTE_LENGTH: number = 4 * MAX_VALUE_BYTE_LENGTH;
/**
 * How many control entries, mostly lease releases, may be pending for a peer that does not read.
 */
export const MAX_PENDING_CONTROL: number = 1 << 17;
