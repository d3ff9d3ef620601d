/** What the two ends say to each other beside values: it goes behind a value, or by itself. */
import { IpcError } from '../../errors.ts';
import type { ForwardRequest } from '../lease/forward.ts';
import { COUNTER_COUNT, latest, type TimelinePoint } from '../timeline/point.ts';
import { ByteReader, type ByteWriter } from './bytes.ts';
import { MAX_RELEASE_POINTS, MAX_VALUE_OBJECTS } from './limits.ts';

/** What was lent is closed, or not reached any more, there where it was lent to. */
export interface LeaseRelease {
  /** By its number: the objects that were sent over a connection are counted from 0. */
  readonly lease: number;
  /** Whether nothing there reaches it any more; else it is closed, and its work may go on. */
  readonly isFinal: boolean;
  /** Behind the work there that may use it still. */
  readonly points: readonly TimelinePoint[];
}

/** Leases of one value: as many numbers as it has objects. */
export interface LeaseRange {
  readonly first: number;
  readonly count: number;
}

/** What is said. */
export interface ControlBlock {
  /** Whether the sender's page of counters comes along, by the last of the file descriptors. */
  readonly hasTimelinePage: boolean;
  /** Behind the work of the sender that the objects of the value are used after. */
  readonly points: readonly TimelinePoint[];
  readonly released: readonly LeaseRelease[];
  /** The leases of the sender that are not to be used any more. */
  readonly revoked: readonly number[];
  /** What the receiver of this is asked to keep for others too, a link with each. */
  readonly forwardRequests: readonly ForwardRequest[];
  /** Which objects of the value have a link: behind the file descriptors of all. */
  readonly linkedObjects: readonly number[];
  /** The sender's leases for the objects of the value, numbered on from the first. */
  readonly leases: LeaseRange | undefined;
  /** Whether the sender has closed the connection: it sends no more values, and takes none. */
  readonly isClosing: boolean;
  /**
   * Whether the sender has nothing of the receiver's, and takes nothing that is still on its way:
   * every lease of this connection ends.
   */
  readonly isDone: boolean;
  /** The sender's pools that are there no more: what is kept for the next memory of them can go. */
  readonly closedPools: readonly string[];
}

/** Nothing to say. */
export const emptyControlBlock: ControlBlock = {
  hasTimelinePage: false,
  points: [],
  released: [],
  revoked: [],
  forwardRequests: [],
  linkedObjects: [],
  leases: undefined,
  isClosing: false,
  isDone: false,
  closedPools: [],
};

/** Whether there is nothing to take in, or to tell. */
export const isEmptyControlBlock = (tail: ControlBlock): boolean => {
  const { hasTimelinePage, released, revoked, forwardRequests, isClosing, isDone, closedPools } =
    tail;
  const entries = released.length + revoked.length + forwardRequests.length;
  return !hasTimelinePage && !isClosing && !isDone && entries + closedPools.length === 0;
};

const ControlField = {
  timelinePage: 1,
  points: 2,
  released: 3,
  revoked: 4,
  closing: 5,
  forwardRequests: 6,
  linkedObjects: 7,
  closedPools: 8,
  leases: 9,
  done: 10,
} as const;
/** The most points of one list: each word of the page has one that is the furthest. */
const MAX_POINTS = COUNTER_COUNT;
/** What names a pool. */
const POOL_ID_BYTES = 16;
/** How much one message may say of each kind. */
const MAX_CONTROL_ENTRIES: number = MAX_VALUE_OBJECTS;

/** Reads news, which came by itself. @throws IpcError */
export function readControlMessage(bytes: Uint8Array, fdCount: number): ControlBlock {
  const tail = readControlBlock(new ByteReader(bytes));
  if (tail.points.length > 0 || tail.linkedObjects.length > 0 || tail.leases)
    throw new IpcError('points or leases came without a value');
  if (tail.hasTimelinePage && tail.forwardRequests.length > 0)
    throw new IpcError('a page of counters came with something to adopt');
  if (fdCount !== (tail.hasTimelinePage ? 1 : 0) + tail.forwardRequests.length)
    throw new IpcError(`${fdCount} file descriptors came with news`);
  return tail;
}

/** Writes what there is to say: nothing for nothing. */
export function writeControlBlock(to: ByteWriter, tail: ControlBlock): void {
  if (tail.hasTimelinePage) to.uint8(ControlField.timelinePage);
  if (tail.points.length > 0) {
    to.uint8(ControlField.points);
    writePoints(to, tail.points);
  }
  if (tail.released.length > 0) {
    to.uint8(ControlField.released);
    to.length(tail.released.length);
    for (const { lease, isFinal, points } of tail.released) {
      to.float64(lease);
      to.uint8(isFinal ? 1 : 0);
      writePoints(to, points);
    }
  }
  if (tail.revoked.length > 0) {
    to.uint8(ControlField.revoked);
    to.length(tail.revoked.length);
    for (const lease of tail.revoked) to.float64(lease);
  }
  if (tail.isClosing) to.uint8(ControlField.closing);
  if (tail.forwardRequests.length > 0) {
    to.uint8(ControlField.forwardRequests);
    to.length(tail.forwardRequests.length);
    for (const { lease, pid, startTime } of tail.forwardRequests)
      for (const value of [lease, pid, startTime]) to.float64(value);
  }
  if (tail.linkedObjects.length > 0) {
    to.uint8(ControlField.linkedObjects);
    to.length(tail.linkedObjects.length);
    for (const at of tail.linkedObjects) to.float64(at);
  }
  if (tail.closedPools.length > 0) {
    to.uint8(ControlField.closedPools);
    to.length(tail.closedPools.length);
    for (const pool of tail.closedPools) to.hex(pool);
  }
  if (tail.leases) {
    to.uint8(ControlField.leases);
    to.float64(tail.leases.first);
    to.length(tail.leases.count);
  }
  if (tail.isDone) to.uint8(ControlField.done);
}

/** Reads all that is left. @throws IpcError for anything but a tail, each part once and in order */
export function readControlBlock(from: ByteReader): ControlBlock {
  if (from.remaining === 0) return emptyControlBlock;
  let last = 0;
  let hasTimelinePage = false;
  let isClosing = false;
  let isDone = false;
  let leases: LeaseRange | undefined;
  let points: readonly TimelinePoint[] = [];
  let released: readonly LeaseRelease[] = [];
  let revoked: readonly number[] = [];
  let forwardRequests: readonly ForwardRequest[] = [];
  let linkedObjects: readonly number[] = [];
  let closedPools: readonly string[] = [];
  while (from.remaining > 0) {
    const field = from.uint8();
    if (field <= last) throw new IpcError(`${from.remaining} bytes follow the value`);
    last = field;
    if (field === ControlField.timelinePage) hasTimelinePage = true;
    else if (field === ControlField.points) points = readPoints(from);
    else if (field === ControlField.released) released = readLeaseReleases(from);
    else if (field === ControlField.revoked) revoked = readList(from, 8, () => readLeaseId(from));
    else if (field === ControlField.closing) isClosing = true;
    else if (field === ControlField.forwardRequests)
      forwardRequests = readList(from, 24, () => readForwardRequest(from));
    else if (field === ControlField.linkedObjects)
      linkedObjects = readList(from, 8, () => readCount(from, 0));
    else if (field === ControlField.closedPools)
      closedPools = readList(from, POOL_ID_BYTES, () => from.view(POOL_ID_BYTES).toString('hex'));
    else if (field === ControlField.leases) leases = readLeaseRange(from);
    else if (field === ControlField.done) isDone = true;
    else throw new IpcError(`the byte ${field} says nothing behind a value`);
  }
  return {
    hasTimelinePage,
    points,
    released,
    revoked,
    isClosing,
    isDone,
    forwardRequests,
    linkedObjects,
    closedPools,
    leases,
  };
}

function writePoints(to: ByteWriter, points: readonly TimelinePoint[]): void {
  to.length(points.length);
  for (const { slot, count } of points) {
    to.length(slot);
    to.float64(count);
  }
}

function readPoints(from: ByteReader): TimelinePoint[] {
  const length = from.length(9);
  if (length > MAX_POINTS) throw new IpcError(`${length} points are more than a page has words`);
  const points: TimelinePoint[] = [];
  for (let at = 0; at < length; at++) {
    const slot = from.length(0);
    if (slot >= COUNTER_COUNT) throw new IpcError(`a page of counters has no word ${slot}`);
    points.push({ slot, count: readCount(from, 1) });
  }
  return latest(points);
}

function readLeaseRange(from: ByteReader): LeaseRange {
  const first = readLeaseId(from);
  const count = from.length(0);
  if (count === 0 || count > MAX_VALUE_OBJECTS || !Number.isSafeInteger(first + count))
    throw new IpcError(`${count} leases from ${first} on are too few or too many for one value`);
  return { first, count };
}

function readForwardRequest(from: ByteReader): ForwardRequest {
  return { lease: readLeaseId(from), pid: readCount(from, 0), startTime: readCount(from, 0) };
}

function readLeaseReleases(from: ByteReader): LeaseRelease[] {
  let count = 0;
  return readList(from, 10, () => {
    const entry = readLeaseRelease(from);
    count += entry.points.length;
    // Each can be a wait of a stream.
    if (count > MAX_RELEASE_POINTS)
      throw new IpcError(`one message has more than ${MAX_RELEASE_POINTS} points`);
    return entry;
  });
}

function readLeaseRelease(from: ByteReader): LeaseRelease {
  const lease = readLeaseId(from);
  const flag = from.uint8();
  if (flag > 1) throw new IpcError(`a lease is over or not: ${flag} says neither`);
  return { lease, isFinal: flag === 1, points: readPoints(from) };
}

const readLeaseId = (from: ByteReader): number => readCount(from, 0);

function readCount(from: ByteReader, least: number): number {
  const count = from.float64();
  if (!Number.isSafeInteger(count) || count < least)
    throw new IpcError(`${count} is no count from ${least} on`);
  return count;
}

function readList<T>(from: ByteReader, byteLength: number, read: () => T): T[] {
  const length = from.length(byteLength);
  if (length === 0 || length > MAX_CONTROL_ENTRIES)
    throw new IpcError(`${length} entries are too few or too many for one message`);
  const entries: T[] = [];
  for (let at = 0; at < length; at++) entries.push(read());
  return entries;
}
