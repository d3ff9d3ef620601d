/** What one end holds for another process, besides the limits of the protocol. */
import { IpcError } from '../../errors.ts';
import {
  HEADER_BYTE_LENGTH,
  MAX_CONTROL_BYTE_LENGTH,
  MAX_QUEUED_BYTE_LENGTH,
  MAX_TABLE_BYTE_LENGTH,
  MAX_VALUE_BYTE_LENGTH,
  MAX_VALUE_OBJECTS,
  PACKET_BYTE_LENGTH,
} from '../protocol.ts';

/** The most bytes of a message: a value, its table of objects and its control block. */
export const MAX_BODY_BYTE_LENGTH: number =
  MAX_VALUE_BYTE_LENGTH + MAX_TABLE_BYTE_LENGTH + MAX_CONTROL_BYTE_LENGTH;
/** The most bytes of a message in one frame. All frames but the last are full. */
export const FRAGMENT_BYTE_LENGTH: number = PACKET_BYTE_LENGTH - HEADER_BYTE_LENGTH;
/** How many bytes an open GPU object counts for in the receive queue. */
export const QUEUED_OBJECT_BYTE_LENGTH: number = MAX_QUEUED_BYTE_LENGTH / MAX_VALUE_OBJECTS;
/** The most decoded descriptors that a connection caches. */
export const MAX_CACHED_DESCRIPTORS = 1024;

/** How much may be queued here until the peer makes room. */
export const MAX_UNSENT_VALUES = 1024;
export const MAX_UNSENT_BYTE_LENGTH: number = 4 * MAX_VALUE_BYTE_LENGTH;
/**
 * How many control entries, mostly lease releases, may be pending for a peer that does not read.
 */
export const MAX_PENDING_CONTROL: number = 1 << 17;

/** Returns the error for what exceeds a limit of the protocol. */
export const limitExceeded = (why: string): IpcError =>
  new IpcError(why, undefined, 'limit-exceeded');
