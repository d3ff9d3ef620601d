/**
 * What two peers tell each other besides values. A control block follows a value, or is a message
 * of its own.
 */

import { IpcError } from '../../errors.ts';
import { ByteReader, type ByteWriter } from '../bytes.ts';
import {
  Begun,
  COUNTER_COUNT,
  ControlField,
  ID_BYTE_LENGTH,
  MAX_CONTROL_ENTRIES,
  MAX_RELEASE_POINTS,
} from '../protocol.ts';
import { latest, type TimelinePoint } from '../timeline/words.ts';
import { limitExceeded } from './limits.ts';

/** The receiver of a leased object has closed or released it. */
export interface LeaseRelease {
  /** The lease's number. The objects sent over a connection are numbered from 0. */
  readonly lease: number;
  /**
   * Whether the receiver no longer uses the object at all. If false, the object is closed but its
   * work may still run.
   */
  readonly isFinal: boolean;
  /** Points behind the receiver's work that may still use the object. */
  readonly points: readonly TimelinePoint[];
}

/** Asks the owner of a lease to keep its object for a third process, which is named here. */
export interface ForwardRequest {
  readonly lease: number;
  readonly pid: number;
  readonly startTime: number;
}

/** The fields of a control block. */
export interface ControlBlock {
  /** Whether the sender's timeline page is the last of the file descriptors. */
  readonly hasTimelinePage: boolean;
  /** Points behind the sender's work on the objects of the value. */
  readonly points: readonly TimelinePoint[];
  readonly released: readonly LeaseRelease[];
  /** Leases of the sender that the receiver must stop using. */
  readonly revoked: readonly number[];
  /** Leases that the receiver is asked to keep for third processes, with one link each. */
  readonly forwardRequests: readonly ForwardRequest[];
  /** Whether the sender has closed the connection. It neither sends nor takes values after that. */
  readonly isClosing: boolean;
  /**
   * Whether the sender holds nothing of the receiver and drops what is still on its way. Every
   * lease of this connection then ends.
   */
  readonly isDone: boolean;
  /** Pools of the sender that were closed. The receiver need not keep them for further memory. */
  readonly closedPools: readonly string[];
  /** What the sender has begun: bits of {@link Begun}. 0 if the block does not say so. */
  readonly begun: number;
}

/** A control block without content. */
export const emptyControlBlock: ControlBlock = {
  hasTimelinePage: false,
  points: [],
  released: [],
  revoked: [],
  forwardRequests: [],
  isClosing: false,
  isDone: false,
  closedPools: [],
  begun: 0,
};

/**
 * Whether a control block has nothing that the receiver must apply. Points belong to a value.
 */
export const isEmptyControlBlock = (block: ControlBlock): boolean => {
  const { hasTimelinePage, released, revoked, forwardRequests, isClosing, isDone, closedPools } =
    block;
  const entries = released.length + revoked.length + forwardRequests.length;
  return !hasTimelinePage && !isClosing && !isDone && entries + closedPools.length === 0;
};

/** Reads a control message, which comes without a value. @throws IpcError */
export function readControlMessage(bytes: Uint8Array, fdCount: number): ControlBlock {
  if (bytes[0] === ControlField.points) throw new IpcError('received points without a value');
  const block = readControlBlock(new ByteReader(bytes));
  if (block.hasTimelinePage && bytes.byteLength > 1)
    throw new IpcError('received a timeline page together with other fields');
  const expected = (block.hasTimelinePage ? 1 : 0) + block.forwardRequests.length;
  if (fdCount !== expected)
    throw new IpcError(
      `received ${fdCount} file descriptors with a control message that has ${expected}`,
    );
  return block;
}

/**
 * Reads a control block up to the end. @throws IpcError unless each field comes once and in order
 */
export function readControlBlock(from: ByteReader): ControlBlock {
  if (from.remaining === 0) return emptyControlBlock;
  let last = 0;
  let hasTimelinePage = false;
  let isClosing = false;
  let isDone = false;
  let points: readonly TimelinePoint[] = [];
  let released: readonly LeaseRelease[] = [];
  let revoked: readonly number[] = [];
  let forwardRequests: readonly ForwardRequest[] = [];
  let closedPools: readonly string[] = [];
  let begun = 0;
  while (from.remaining > 0) {
    const field = from.uint8();
    if (field <= last)
      throw new IpcError(`unexpected control field ${field}: fields come once and in order`);
    last = field;
    if (field === ControlField.timelinePage) hasTimelinePage = true;
    else if (field === ControlField.points) points = readPoints(from);
    else if (field === ControlField.released) released = readLeaseReleases(from);
    else if (field === ControlField.revoked) revoked = readList(from, 8, () => readLeaseId(from));
    else if (field === ControlField.closing) isClosing = true;
    else if (field === ControlField.forwardRequests)
      forwardRequests = readList(from, 24, () => readForwardRequest(from));
    else if (field === ControlField.closedPools)
      closedPools = readList(from, ID_BYTE_LENGTH, () => from.view(ID_BYTE_LENGTH).toString('hex'));
    else if (field === ControlField.done) isDone = true;
    else if (field === ControlField.begun) begun = readBegun(from);
    else throw new IpcError(`unknown control field ${field}`);
  }
  return {
    hasTimelinePage,
    points,
    released,
    revoked,
    isClosing,
    isDone,
    forwardRequests,
    closedPools,
    begun,
  };
}

/** Writes a control block. An empty one has no bytes. */
export function writeControlBlock(to: ByteWriter, block: ControlBlock): void {
  if (block.hasTimelinePage) to.uint8(ControlField.timelinePage);
  if (block.points.length > 0) {
    to.uint8(ControlField.points);
    writePoints(to, block.points);
  }
  if (block.released.length > 0) {
    to.uint8(ControlField.released);
    to.length(block.released.length);
    for (const { lease, isFinal, points } of block.released) {
      to.float64(lease);
      to.uint8(isFinal ? 1 : 0);
      writePoints(to, points);
    }
  }
  if (block.revoked.length > 0) {
    to.uint8(ControlField.revoked);
    to.length(block.revoked.length);
    for (const lease of block.revoked) to.float64(lease);
  }
  if (block.isClosing) to.uint8(ControlField.closing);
  if (block.forwardRequests.length > 0) {
    to.uint8(ControlField.forwardRequests);
    to.length(block.forwardRequests.length);
    for (const { lease, pid, startTime } of block.forwardRequests)
      for (const value of [lease, pid, startTime]) to.float64(value);
  }
  if (block.closedPools.length > 0) {
    to.uint8(ControlField.closedPools);
    to.length(block.closedPools.length);
    for (const pool of block.closedPools) to.text(pool, 'hex', ID_BYTE_LENGTH);
  }
  if (block.isDone) to.uint8(ControlField.done);
  if (block.begun !== 0) {
    to.uint8(ControlField.begun);
    to.uint8(block.begun);
  }
}

// ---- The encoding of the fields ----

function writePoints(to: ByteWriter, points: readonly TimelinePoint[]): void {
  to.length(points.length);
  for (const { index, count } of points) {
    to.length(index);
    to.float64(count);
  }
}

function readPoints(from: ByteReader): TimelinePoint[] {
  const length = from.length(9);
  if (length > COUNTER_COUNT)
    throw limitExceeded(
      `a list of ${length} points is too long: a timeline page has ${COUNTER_COUNT} counters`,
    );
  const points: TimelinePoint[] = [];
  for (let at = 0; at < length; at++) {
    const index = from.length(0);
    if (index >= COUNTER_COUNT) throw new IpcError(`a timeline page has no counter ${index}`);
    points.push({ index, count: readCount(from, 1) });
  }
  return latest(points);
}

function readBegun(from: ByteReader): number {
  const begun = from.uint8();
  const { receiving, serving, ignoringValues } = Begun;
  const onlyServes = serving | ignoringValues;
  if (begun < receiving || (begun > (receiving | serving) && begun !== onlyServes))
    throw new IpcError(`invalid readiness flags ${begun}`);
  return begun;
}

function readForwardRequest(from: ByteReader): ForwardRequest {
  return { lease: readLeaseId(from), pid: readCount(from, 0), startTime: readCount(from, 0) };
}

function readLeaseReleases(from: ByteReader): LeaseRelease[] {
  let count = 0;
  return readList(from, 10, () => {
    const entry = readLeaseRelease(from);
    count += entry.points.length;
    // Each point may become a wait of a stream.
    if (count > MAX_RELEASE_POINTS)
      throw limitExceeded(`a message has more than ${MAX_RELEASE_POINTS} points`);
    return entry;
  });
}

function readLeaseRelease(from: ByteReader): LeaseRelease {
  const lease = readLeaseId(from);
  const flag = from.uint8();
  if (flag > 1) throw new IpcError(`invalid flag ${flag} in a lease release: it must be 0 or 1`);
  return { lease, isFinal: flag === 1, points: readPoints(from) };
}

/** Reads the number of a lease. @throws IpcError */
export const readLeaseId = (from: ByteReader): number => readCount(from, 0);

function readCount(from: ByteReader, least: number): number {
  const count = from.float64();
  if (!Number.isSafeInteger(count) || count < least)
    throw new IpcError(`${count} is not an integer of at least ${least}`);
  return count;
}

function readList<T>(from: ByteReader, byteLength: number, read: () => T): T[] {
  const length = from.length(byteLength);
  if (length === 0) throw new IpcError('a list without entries is not valid');
  if (length > MAX_CONTROL_ENTRIES)
    throw limitExceeded(`a list of ${length} entries is too long: at most ${MAX_CONTROL_ENTRIES}`);
  const entries: T[] = [];
  for (let at = 0; at < length; at++) entries.push(read());
  return entries;
}
