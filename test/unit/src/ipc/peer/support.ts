/** Two ends of one connection in this process, and the other end as a bare socket. */

import assert from 'node:assert/strict';
import { closeFd, isOpenFd } from '../../../../../ffi/linux/libc.ts';
import { receiveMessage, sendMessage } from '../../../../../ffi/linux/message.ts';
import { socketPair } from '../../../../../ffi/linux/socket.ts';
import type { Exported } from '../../../../../src/ipc/descriptor.ts';
import { leases } from '../../../../../src/ipc/index.ts';
import type { LeaseStats } from '../../../../../src/ipc/lease/export-table.ts';
import { Peer } from '../../../../../src/ipc/peer/peer.ts';
import type { PeerOptions } from '../../../../../src/ipc/peer/peer-options.ts';
import { FrameKind, HEADER_BYTE_LENGTH, Tag } from '../../../../../src/ipc/protocol.ts';
import { encodeFields } from '../../../../../src/ipc/sharing/descriptor-codec.ts';
import { SharedWords } from '../../../../../src/ipc/timeline/words.ts';
import { readControlMessage } from '../../../../../src/ipc/wire/control-block.ts';
import { type FrameHeader, helloFrame, writeHeader } from '../../../../../src/ipc/wire/frames.ts';
import {
  type ValueMessage,
  ValueMessageReader,
} from '../../../../../src/ipc/wire/value-message.ts';
import { withTable } from '../../../../../src/waits/worker-tables.ts';
import { leaves } from '../../../../support/left-open.ts';

// What the first object that goes to a thread of this process leaves for all later ones.
withTable('exports', () => {});

/**
 * Says that a test leaves leases: a process that breaks the protocol, or closes without a message, keeps them
 * while it lives, and that process is this one or its parent.
 */
export function leavesLeases(most = Number.POSITIVE_INFINITY): void {
  const why = 'the process that holds the leases lives';
  leaves('entry of src/ipc/lease/export-table.ts leaseRegistry', why, most);
  leaves('driver: allocation', why);
  for (const kind of [
    'entry of src/ipc/lease/peer-process.ts watchedProcesses',
    'watch of anon_inode:[pidfd]',
    'entry of ffi/linux/poll.ts urgentWatches',
    'descriptor of anon_inode:[pidfd]',
  ])
    leaves(kind, 'that process is watched');
}

/** The credentials of this process. */
export const own = { pid: process.pid, uid: process.geteuid?.() ?? 0 };

/** Two peers that talk with each other; dispose closes both. */
export function peerPair(
  options?: PeerOptions,
  otherOptions = options,
): Disposable & { readonly a: Peer; readonly b: Peer } {
  const [first, second] = socketPair();
  let a: Peer;
  try {
    a = new Peer(first, own, options);
  } catch (error) {
    closeFd(second);
    throw error;
  }
  let b: Peer;
  try {
    b = new Peer(second, own, otherOptions);
  } catch (error) {
    a.close();
    throw error;
  }
  return {
    a,
    b,
    [Symbol.dispose]() {
      a.close();
      b.close();
    },
  };
}

/** The control field that tells what an end has begun. */
const BEGUN = 9;

/** A peer whose other end does as it likes. */
export class RawPeer implements Disposable {
  readonly peer: Peer;
  readonly socket: number;
  /** What the peer has begun, as far as it was received here. */
  begun = 0;

  constructor(options?: PeerOptions, credentials = own, first: 'hello' | 'no hello' = 'hello') {
    const [mine, second] = socketPair();
    this.peer = new Peer(mine, credentials, options);
    this.socket = second;
    if (first === 'hello') sendMessage(second, helloFrame());
  }

  /** Sends a packet of the first value, with the given changes; returns whether there was room. */
  send(body: Uint8Array, header: Partial<FrameHeader> = {}, fds: readonly number[] = []): boolean {
    const packet = Buffer.alloc(HEADER_BYTE_LENGTH + body.byteLength);
    packet.set(body, HEADER_BYTE_LENGTH);
    const { byteLength } = body;
    writeHeader(packet, 0, { kind: 1, sequence: 0, offset: 0, request: 0, byteLength, ...header });
    return sendMessage(this.socket, packet, fds);
  }

  /** The next packet but for the first one, and those that tell what the peer has begun, which are noted. */
  receive(): ReturnType<typeof receiveMessage> {
    for (;;) {
      const message = receiveMessage(this.socket);
      if (typeof message !== 'object') return message;
      const [kind, field, begun] = [3, HEADER_BYTE_LENGTH, HEADER_BYTE_LENGTH + 1].map(
        (at) => message.data[at],
      );
      if (kind === FrameKind.hello) continue;
      if (kind !== FrameKind.control || field !== BEGUN) return message;
      this.begun = begun as number;
    }
  }

  [Symbol.dispose](): void {
    this.peer.close();
    if (isOpenFd(this.socket)) closeFd(this.socket);
  }
}

/** An object in the table behind a value: what describes it, and what comes with it. */
export interface Entry {
  readonly bytes: Iterable<number>;
  readonly fdCount?: number;
  readonly hasLink?: boolean;
}

/** An object that no process has: its description is one byte. */
export const unknownObject: Entry = { bytes: [Tag.null] };

/** The table of the objects of a value: their leases, from the first number on, and their entries. */
export const tableOf = (first: number, ...entries: readonly Entry[]): number[] => [
  ...float64(first),
  ...entries.flatMap(({ bytes, fdCount = 0, hasLink = false }) => {
    const all = [...bytes];
    return [...length(fdCount), hasLink ? 1 : 0, ...length(all.length), ...all];
  }),
];

const float64 = (value: number): Buffer => Buffer.from(new Float64Array([value]).buffer);
const length = (value: number): number[] =>
  value > 127 ? [(value & 127) | 128, ...length(value >>> 7)] : [value];

/** Another process at the other end, which lends, takes and gives back, and keeps count of it. */
export class OtherProcess extends RawPeer {
  /** Leases of what the peer has from here. */
  readonly lent = new Set<number>();
  /** Leases of what is here from the peer. */
  readonly taken = new Set<number>();
  readonly #page = SharedWords.create('points');
  #sequence = 0;
  #leases = 0;
  /** How far the work here is said to be, by values and by what is given back. */
  #work = 0;

  constructor() {
    super(undefined, { ...own, pid: process.ppid });
    this.#tell(Uint8Array.of(1), [this.#page.fd]);
  }

  /** Sends an array of objects, behind work that goes on until {@link finish}. Borrows `fds`. */
  lend(objects: readonly Exported[]): void {
    const entries = objects.map(({ descriptor, fds }) => ({
      bytes: [...encodeFields(descriptor)],
      fdCount: fds.length,
    }));
    const { length: count } = objects;
    const places = new Array<number>(count).fill(Tag.gpuObject);
    const points = [2, 1, ...this.#nextPoint()];
    const body = [Tag.array, count, ...places, ...tableOf(this.#leases, ...entries), ...points];
    for (let n = 0; n < count; n++) this.lent.add(this.#leases + n);
    this.#leases += count;
    this.#post(
      FrameKind.value,
      Uint8Array.from(body),
      objects.flatMap(({ fds }) => fds),
    );
  }

  /** Closes what was taken: the work on it here goes on until {@link finish}. */
  closeTaken(): void {
    this.hear();
    this.#returnTaken(false);
  }

  /** The work here is done. */
  finish(): void {
    this.#page.advanceTo({ index: 0, count: this.#work });
  }

  /** Reads all that has come. */
  hear(): void {
    for (let next = this.receive(); typeof next === 'object'; next = this.receive()) {
      next.fds.forEach(closeFd);
      const body = next.data.subarray(HEADER_BYTE_LENGTH);
      const isNews = next.data[3] === FrameKind.control;
      const message = isNews ? undefined : readMessage(body, next.fds.length);
      const { released } = message?.control ?? readControlMessage(body, next.fds.length);
      for (const { lease, isFinal } of released) if (isFinal) this.lent.delete(lease);
      for (const at of message?.objects.entries.keys() ?? [])
        this.taken.add((message as ValueMessage).objects.firstLease + at);
    }
  }

  /** Gives back what was taken, waits until the peer has given back what it has, and closes both. */
  async end(): Promise<void> {
    this.finish();
    this.hear();
    this.#returnTaken(true);
    for (let turns = 0; turns < MOST_TURNS && this.#isOwed(); turns += 1) {
      await new Promise((resolve) => (turns < 10 ? setImmediate(resolve) : setTimeout(resolve, 1)));
      this.hear();
    }
    const left = [this.lent.size, this.#inUse().length];
    this[Symbol.dispose]();
    this.#page.close();
    assert.deepEqual(left, [0, 0], 'leases left, borrowed by the peer and lent by it');
  }

  #isOwed(): boolean {
    return this.lent.size > 0 || this.#inUse().length > 0;
  }

  #inUse(): readonly LeaseStats[] {
    return leases.stats().leases.filter(({ pid }) => pid === this.peer.pid);
  }

  #nextPoint(): number[] {
    this.#work += 1;
    return [0, ...float64(this.#work)];
  }

  #returnTaken(isOver: boolean): void {
    if (this.taken.size === 0) return;
    const entries = [...this.taken].flatMap((lease) => [
      ...float64(lease),
      ...(isOver ? [1, 0] : [0, 1, ...this.#nextPoint()]),
    ]);
    this.#tell(Uint8Array.from([3, this.taken.size, ...entries]));
    if (isOver) this.taken.clear();
  }

  #tell(body: Uint8Array, fds: readonly number[] = []): void {
    this.#post(FrameKind.control, body, fds);
  }

  #post(kind: FrameKind, body: Uint8Array, fds: readonly number[]): void {
    assert.ok(this.send(body, { kind, sequence: this.#sequence }, fds));
    this.#sequence += 1;
  }
}

const MOST_TURNS = 2000;

/** Reads a message with a value whole. */
export function readMessage(bytes: Uint8Array, fdCount = 0): ValueMessage {
  const reader = new ValueMessageReader(bytes);
  let message = reader.read(fdCount);
  while (!message) message = reader.read(fdCount);
  return message;
}
