/** What the two ends say to each other beside values: it goes behind a value, or by itself. */
import { IpcError } from '../../errors.ts';
import type { Adopted } from '../lease/forward.ts';
import { furthest, type Point, SLOT_COUNT } from '../timeline/point.ts';
import { ByteReader, type ByteWriter } from './bytes.ts';
import { MAX_RETURNED_POINTS, MAX_VALUE_OBJECTS } from './limits.ts';

/** What was lent is closed, or not reached any more, there where it was lent to. */
export interface Returned {
  /** By its number: the objects that were sent over a connection are counted from 0. */
  readonly lease: number;
  /** Whether nothing there reaches it any more; else it is closed, and its work may go on. */
  readonly isOver: boolean;
  /** Behind the work there that may use it still. */
  readonly points: readonly Point[];
}

/** Leases of one value: as many numbers as it has objects. */
export interface LeaseRange {
  readonly first: number;
  readonly count: number;
}

/** What is said. */
export interface Tail {
  /** Whether the sender's page of counters comes along, by the last of the file descriptors. */
  readonly hasPage: boolean;
  /** Behind the work of the sender that the objects of the value are used after. */
  readonly points: readonly Point[];
  readonly returned: readonly Returned[];
  /** The leases of the sender that are not to be used any more. */
  readonly revoked: readonly number[];
  /** What the receiver of this is asked to keep for others too, a link with each. */
  readonly adopt: readonly Adopted[];
  /** Which objects of the value have a link: behind the file descriptors of all. */
  readonly kept: readonly number[];
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
  readonly forgotten: readonly string[];
}

/** Nothing to say. */
export const emptyTail: Tail = {
  hasPage: false,
  points: [],
  returned: [],
  revoked: [],
  adopt: [],
  kept: [],
  leases: undefined,
  isClosing: false,
  isDone: false,
  forgotten: [],
};

/** Whether there is nothing to take in, or to tell. */
export const isNothing = (tail: Tail): boolean => {
  const { hasPage, returned, revoked, adopt, isClosing, isDone, forgotten } = tail;
  const entries = returned.length + revoked.length + adopt.length;
  return !hasPage && !isClosing && !isDone && entries + forgotten.length === 0;
};

const Mark = {
  page: 1,
  points: 2,
  returned: 3,
  revoked: 4,
  closing: 5,
  adopt: 6,
  kept: 7,
  forgotten: 8,
  leases: 9,
  done: 10,
} as const;
/** The most points of one list: each word of the page has one that is the furthest. */
const MAX_POINTS = SLOT_COUNT;
/** What names a pool. */
const POOL_ID_BYTES = 16;
/** How much one message may say of each kind. */
const MAX_TAIL_ENTRIES: number = MAX_VALUE_OBJECTS;

/** Reads news, which came by itself. @throws IpcError */
export function readNews(bytes: Uint8Array, fdCount: number): Tail {
  const tail = readTail(new ByteReader(bytes));
  if (tail.points.length > 0 || tail.kept.length > 0 || tail.leases)
    throw new IpcError('points or leases came without a value');
  if (tail.hasPage && tail.adopt.length > 0)
    throw new IpcError('a page of counters came with something to adopt');
  if (fdCount !== (tail.hasPage ? 1 : 0) + tail.adopt.length)
    throw new IpcError(`${fdCount} file descriptors came with news`);
  return tail;
}

/** Writes what there is to say: nothing for nothing. */
export function writeTail(to: ByteWriter, tail: Tail): void {
  if (tail.hasPage) to.uint8(Mark.page);
  if (tail.points.length > 0) {
    to.uint8(Mark.points);
    writePoints(to, tail.points);
  }
  if (tail.returned.length > 0) {
    to.uint8(Mark.returned);
    to.length(tail.returned.length);
    for (const { lease, isOver, points } of tail.returned) {
      to.float64(lease);
      to.uint8(isOver ? 1 : 0);
      writePoints(to, points);
    }
  }
  if (tail.revoked.length > 0) {
    to.uint8(Mark.revoked);
    to.length(tail.revoked.length);
    for (const lease of tail.revoked) to.float64(lease);
  }
  if (tail.isClosing) to.uint8(Mark.closing);
  if (tail.adopt.length > 0) {
    to.uint8(Mark.adopt);
    to.length(tail.adopt.length);
    for (const { lease, pid, startTime } of tail.adopt)
      for (const value of [lease, pid, startTime]) to.float64(value);
  }
  if (tail.kept.length > 0) {
    to.uint8(Mark.kept);
    to.length(tail.kept.length);
    for (const at of tail.kept) to.float64(at);
  }
  if (tail.forgotten.length > 0) {
    to.uint8(Mark.forgotten);
    to.length(tail.forgotten.length);
    for (const pool of tail.forgotten) to.hex(pool);
  }
  if (tail.leases) {
    to.uint8(Mark.leases);
    to.float64(tail.leases.first);
    to.length(tail.leases.count);
  }
  if (tail.isDone) to.uint8(Mark.done);
}

/** Reads all that is left. @throws IpcError for anything but a tail, each part once and in order */
export function readTail(from: ByteReader): Tail {
  if (from.left === 0) return emptyTail;
  let last = 0;
  let hasPage = false;
  let isClosing = false;
  let isDone = false;
  let leases: LeaseRange | undefined;
  let points: readonly Point[] = [];
  let returned: readonly Returned[] = [];
  let revoked: readonly number[] = [];
  let adopt: readonly Adopted[] = [];
  let kept: readonly number[] = [];
  let forgotten: readonly string[] = [];
  while (from.left > 0) {
    const mark = from.uint8();
    if (mark <= last) throw new IpcError(`${from.left} bytes follow the value`);
    last = mark;
    if (mark === Mark.page) hasPage = true;
    else if (mark === Mark.points) points = readPoints(from);
    else if (mark === Mark.returned) returned = readReturnedList(from);
    else if (mark === Mark.revoked) revoked = readList(from, 8, () => readLease(from));
    else if (mark === Mark.closing) isClosing = true;
    else if (mark === Mark.adopt) adopt = readList(from, 24, () => readAdopted(from));
    else if (mark === Mark.kept) kept = readList(from, 8, () => readCount(from, 0));
    else if (mark === Mark.forgotten)
      forgotten = readList(from, POOL_ID_BYTES, () => from.view(POOL_ID_BYTES).toString('hex'));
    else if (mark === Mark.leases) leases = readLeases(from);
    else if (mark === Mark.done) isDone = true;
    else throw new IpcError(`the byte ${mark} says nothing behind a value`);
  }
  return { hasPage, points, returned, revoked, isClosing, isDone, adopt, kept, forgotten, leases };
}

function writePoints(to: ByteWriter, points: readonly Point[]): void {
  to.length(points.length);
  for (const { slot, count } of points) {
    to.length(slot);
    to.float64(count);
  }
}

function readPoints(from: ByteReader): Point[] {
  const length = from.length(9);
  if (length > MAX_POINTS) throw new IpcError(`${length} points are more than a page has words`);
  const points: Point[] = [];
  for (let at = 0; at < length; at++) {
    const slot = from.length(0);
    if (slot >= SLOT_COUNT) throw new IpcError(`a page of counters has no word ${slot}`);
    points.push({ slot, count: readCount(from, 1) });
  }
  return furthest(points);
}

function readLeases(from: ByteReader): LeaseRange {
  const first = readLease(from);
  const count = from.length(0);
  if (count === 0 || count > MAX_VALUE_OBJECTS || !Number.isSafeInteger(first + count))
    throw new IpcError(`${count} leases from ${first} on are too few or too many for one value`);
  return { first, count };
}

function readAdopted(from: ByteReader): Adopted {
  return { lease: readLease(from), pid: readCount(from, 0), startTime: readCount(from, 0) };
}

function readReturnedList(from: ByteReader): Returned[] {
  let count = 0;
  return readList(from, 10, () => {
    const entry = readReturned(from);
    count += entry.points.length;
    // Each can be a wait of a stream.
    if (count > MAX_RETURNED_POINTS)
      throw new IpcError(`one message has more than ${MAX_RETURNED_POINTS} points`);
    return entry;
  });
}

function readReturned(from: ByteReader): Returned {
  const lease = readLease(from);
  const flag = from.uint8();
  if (flag > 1) throw new IpcError(`a lease is over or not: ${flag} says neither`);
  return { lease, isOver: flag === 1, points: readPoints(from) };
}

const readLease = (from: ByteReader): number => readCount(from, 0);

function readCount(from: ByteReader, least: number): number {
  const count = from.float64();
  if (!Number.isSafeInteger(count) || count < least)
    throw new IpcError(`${count} is no count from ${least} on`);
  return count;
}

function readList<T>(from: ByteReader, byteLength: number, read: () => T): T[] {
  const length = from.length(byteLength);
  if (length === 0 || length > MAX_TAIL_ENTRIES)
    throw new IpcError(`${length} entries are too few or too many for one message`);
  const entries: T[] = [];
  for (let at = 0; at < length; at++) entries.push(read());
  return entries;
}
