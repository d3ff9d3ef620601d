/** Runs the test vectors with cuffi's own readers and writers. */
import assert from 'node:assert/strict';
import { openSync } from 'node:fs';
import { closeFd, createPipe, duplicateFd } from '../../../../ffi/linux/libc.ts';
import { createSealedMemfd } from '../../../../ffi/linux/memfd.ts';
import { IpcError } from '../../../../src/errors.ts';
import { ByteReader, ByteWriter } from '../../../../src/ipc/bytes.ts';
import {
  encodeMeta,
  type MessageRecord,
  readRecord,
  writeRecord,
} from '../../../../src/ipc/channel/message.ts';
import { Ring, Seat } from '../../../../src/ipc/channel/ring.ts';
import type { AnyFields, IpcDescriptor } from '../../../../src/ipc/descriptor.ts';
import {
  HEADER_BYTE_LENGTH,
  PACKET_BYTE_LENGTH,
  RECORD_BYTE_LENGTH,
  VERSIONS,
} from '../../../../src/ipc/protocol.ts';
import {
  decodeDescriptor,
  decodeFields,
  encodeDescriptor,
  encodeFields,
  parseDescriptor,
} from '../../../../src/ipc/sharing/descriptor-codec.ts';
import { importFromPeer } from '../../../../src/ipc/sharing/marshal.ts';
import { TimelineCounter } from '../../../../src/ipc/timeline/counter.ts';
import { SharedWords } from '../../../../src/ipc/timeline/words.ts';
import {
  type ControlBlock,
  emptyControlBlock,
  readControlMessage,
  writeControlBlock,
} from '../../../../src/ipc/wire/control-block.ts';
import {
  chooseVersion,
  FrameAssembler,
  type Message,
  readHello,
  writeHeader,
} from '../../../../src/ipc/wire/frames.ts';
import { EncodedValue } from '../../../../src/ipc/wire/value-decoder.ts';
import { encodeValue } from '../../../../src/ipc/wire/value-encoder.ts';
import { ValueMessageReader, writeObjectTable } from '../../../../src/ipc/wire/value-message.ts';
import { emptySharingSession } from '../../../support/sharing.ts';
import {
  assertSameValue,
  type Bytes,
  bytesOf,
  Place,
  readVectors,
  toValue,
} from '../../../support/vectors.ts';
import { type Memory, VectorFds } from './fds.ts';

type Check = (vector: never) => void;

/** Returns what is wrong with the entries of a file, each by its name. */
export function failuresOf(folder: string, file: string): readonly string[] {
  const check = checks[file];
  if (!check) return [`${file} is not known here`];
  const all = readVectors(folder, file);
  // Those that only a whole end refuses are in refusals.test.ts.
  const readable = all.filter(({ of = '' }) => file !== 'refused.json' || of in refused);
  return readable.flatMap((vector) => {
    try {
      check(vector as never);
      return [];
    } catch (error) {
      return [`${vector.name}: ${(error as Error).message}`];
    }
  });
}

/** By the file. */
const checks: Readonly<Record<string, Check>> = {
  'values.json': checkValue,
  'control-blocks.json': checkControlBlock,
  'descriptors.json': checkDescriptor,
  'messages.json': checkMessage,
  'frames.json': checkFrames,
  'hellos.json': checkHello,
  'words.json': checkWords,
  'records.json': checkRecord,
  'refused.json': checkRefusal,
};

const written = (write: (writer: ByteWriter) => void): string =>
  ByteWriter.use(0, (writer) => {
    write(writer);
    return writer.written.toString('hex');
  });

// ---- Values and what comes with them ----

const places = {
  includes: (object: object): object is Place => object instanceof Place,
  alternativeTo: () => 'nothing',
};

const encode = (value: unknown): string =>
  written((writer) => void encodeValue(writer, value, places));

function decode(bytes: Buffer): unknown {
  const reader = new ByteReader(bytes);
  const value = new EncodedValue(reader);
  while (!value.check());
  assert.equal(reader.remaining, 0, 'bytes are left');
  return value.buildAll(Array.from({ length: value.objectCount }, (_, at) => new Place(at)));
}

interface ValueVector {
  readonly hex: Bytes;
  readonly value: unknown;
  readonly roundtrip: boolean;
}

function checkValue({ hex, value, roundtrip }: ValueVector): void {
  const bytes = bytesOf(hex);
  const expected = toValue(value);
  const decoded = decode(bytes);
  assertSameValue(decoded, expected);
  if (!roundtrip) return;
  assert.equal(encode(decoded), bytes.toString('hex'));
  assert.equal(encode(expected), bytes.toString('hex'));
}

/** The fields of a control block as an entry has them. */
interface Block {
  readonly timelinePage?: boolean;
  readonly points?: readonly Point[];
  readonly released?: readonly { lease: number; final: boolean; points: readonly Point[] }[];
  readonly revoked?: readonly number[];
  readonly closing?: boolean;
  readonly forwardRequests?: ControlBlock['forwardRequests'];
  readonly closedPools?: readonly string[];
  readonly done?: boolean;
  readonly begun?: number;
}

type Point = readonly [index: number, count: number];

const blockOf = (block: Block): ControlBlock => ({
  ...emptyControlBlock,
  hasTimelinePage: block.timelinePage ?? false,
  points: (block.points ?? []).map(pointOf),
  released: (block.released ?? []).map(({ lease, final, points }) => ({
    lease,
    isFinal: final,
    points: points.map(pointOf),
  })),
  revoked: block.revoked ?? [],
  forwardRequests: block.forwardRequests ?? [],
  isClosing: block.closing ?? false,
  closedPools: block.closedPools ?? [],
  isDone: block.done ?? false,
  begun: block.begun ?? 0,
});

const pointOf = ([index, count]: Point) => ({ index, count });

const NULL = Buffer.from('01', 'hex');

/** Reads a control block: alone, or behind the value null. */
const readBlock = (bytes: Buffer, isAlone: boolean, fds: number): ControlBlock =>
  isAlone ? readControlMessage(bytes, fds) : readMessage(Buffer.concat([NULL, bytes]), fds).control;

interface ControlVector {
  readonly hex: string;
  readonly alone: boolean;
  readonly fds: number;
  readonly block: Block;
  readonly roundtrip: boolean;
}

function checkControlBlock({ hex, alone, fds, block, roundtrip }: ControlVector): void {
  const expected = blockOf(block);
  assert.deepEqual(readBlock(bytesOf(hex), alone, fds as number), expected);
  if (roundtrip)
    assert.equal(
      written((writer) => writeControlBlock(writer, expected)),
      hex,
    );
}

function readMessage(bytes: Buffer, fds: number) {
  const reader = new ValueMessageReader(bytes);
  for (;;) {
    const message = reader.read(fds);
    if (message) return message;
  }
}

interface MessageVector {
  readonly hex: string;
  readonly fds: number;
  readonly value: unknown;
  readonly firstLease: number | null;
  readonly objects: readonly {
    readonly fds: number;
    readonly link: boolean;
    readonly hex: string;
  }[];
  readonly block: Block;
}

function checkMessage(vector: MessageVector): void {
  const { objects: entries, value, firstLease, block } = vector;
  const bytes = bytesOf(vector.hex);
  const message = readMessage(bytes, vector.fds);
  assert.deepEqual(
    message.objects.entries.map((one) => [
      one.fdCount,
      one.hasLink,
      Buffer.from(one.bytes).toString('hex'),
    ]),
    entries.map((one) => [one.fds, one.link, one.hex]),
  );
  assert.equal(message.objects.firstLease, firstLease ?? 0);
  assert.deepEqual(message.control, blockOf(block));
  for (const entry of message.objects.entries) decodeFields(entry.bytes);
  const expected = toValue(value);
  assertSameValue(message.value.buildAll(entries.map((_, at) => new Place(at))), expected);
  const again = written((writer) => {
    const placed = encodeValue(writer, expected, places);
    assert.deepEqual(
      placed.map(({ object }) => object.number),
      entries.map((_, at) => at),
    );
    if (placed.length > 0) writeObjectTable(writer, message.objects);
    writeControlBlock(writer, message.control);
  });
  assert.equal(again, bytes.toString('hex'));
}

// ---- Descriptors ----

interface DescriptorVector {
  readonly hex: string;
  readonly fields: AnyFields;
  readonly bytes?: string;
  readonly json?: IpcDescriptor;
}

function checkDescriptor({ hex, fields, bytes = '', json }: DescriptorVector): void {
  assert.deepEqual(decodeFields(bytesOf(hex)), fields);
  assert.equal(encodeFields(fields).toString('hex'), hex);
  if (json === undefined) return;
  assert.deepEqual(parseDescriptor(json), json);
  assert.deepEqual(decodeDescriptor(bytesOf(bytes)), json);
  assert.equal(Buffer.from(encodeDescriptor(json)).toString('hex'), bytes);
}

// ---- Frames ----

interface Frame {
  readonly hex: Bytes;
  readonly fds: number;
}

const openFds = (count: number): number[] =>
  Array.from({ length: count }, () => openSync('/dev/null', 'r'));

/** Puts frames together. @throws IpcError */
function assemble(frames: readonly Frame[]): { message: Message; bytes: string; fds: number }[] {
  const assembler = new FrameAssembler();
  try {
    return frames.flatMap(({ hex, fds }) => {
      const message = assembler.add({ data: bytesOf(hex), fds: openFds(fds) });
      if (!message) return [];
      message.fds.forEach(closeFd);
      const bytes = Buffer.from(message.bytes).toString('hex');
      return [{ message, bytes, fds: message.fds.length }];
    });
  } finally {
    assembler.clear();
  }
}

interface FramesVector {
  readonly frames: readonly Frame[];
  readonly messages: readonly {
    readonly kind: Message['kind'];
    readonly request: number;
    readonly hex: Bytes;
    readonly fds: number;
  }[];
}

function checkFrames({ frames, messages: expected }: FramesVector): void {
  assert.deepEqual(
    assemble(frames).map(({ message: { kind, request }, bytes, fds }) => ({
      kind,
      request,
      bytes,
      fds,
    })),
    expected.map(({ kind, request, hex, fds }) => ({
      kind,
      request,
      bytes: bytesOf(hex).toString('hex'),
      fds,
    })),
  );
  const sent = expected.flatMap(({ kind, request, hex }, sequence) =>
    framesOf(bytesOf(hex), { kind, request, sequence }),
  );
  assert.deepEqual(
    sent,
    frames.map(({ hex }) => bytesOf(hex).toString('hex')),
  );
}

function framesOf(
  bytes: Buffer,
  header: Pick<Message, 'kind' | 'request'> & { readonly sequence: number },
): string[] {
  const frames: string[] = [];
  for (
    let offset = 0;
    offset < bytes.byteLength;
    offset += PACKET_BYTE_LENGTH - HEADER_BYTE_LENGTH
  ) {
    const part = bytes.subarray(offset, offset + PACKET_BYTE_LENGTH - HEADER_BYTE_LENGTH);
    const frame = Buffer.concat([Buffer.alloc(HEADER_BYTE_LENGTH), part]);
    writeHeader(frame, 0, { ...header, byteLength: bytes.byteLength, offset });
    frames.push(frame.toString('hex'));
  }
  return frames;
}

// ---- The first frame ----

interface HelloVector {
  readonly hex: string;
  readonly min: number;
  readonly max: number;
  readonly chosen: number;
}

function checkHello({ hex, min, max, chosen }: HelloVector): void {
  assert.equal(readHello(bytesOf(hex)), chosen);
  assert.equal(chooseVersion({ min, max }, VERSIONS), chosen);
}

// ---- Words ----

type Operation = readonly [name: string, ...values: never[]];

/** What a reader is to find: of messages, grants and counters, with the answers. */
interface Reads {
  readonly filled: readonly (readonly [message: number, boolean])[];
  readonly grants: readonly (readonly [number: number, ...unknown[]])[];
  readonly released: readonly (readonly [message: number, boolean])[];
  readonly reached: readonly (readonly [index: number, count: number, boolean])[];
}

interface WordsVector {
  readonly of: string;
  readonly slots: number;
  readonly records: boolean;
  readonly start: number;
  readonly byteLength: number;
  readonly operations: readonly Operation[];
  readonly ignore?: readonly number[];
  readonly words: Readonly<Record<string, string>>;
  readonly reads: Reads;
}

function checkWords(vector: WordsVector): void {
  const { of, operations, words, reads, byteLength, ignore = [] } = vector;
  const kind = sharedWords[of] as (typeof sharedWords)[string];
  const made = kind.create(vector);
  try {
    for (const [name, ...values] of operations)
      if (name === 'store') storeWord(made.page, values[0] as never, values[1] as never);
      else (made.apply[name] as (...values: never[]) => void)(...values);
    assert.deepEqual(wordsOf(made.page, ignore), words);
  } finally {
    made.close();
  }

  // Another process finds the same.
  const memory = createSealedMemfd('cuffi-vector', byteLength);
  const page = SharedWords.accept(duplicateFd(memory), 'vector', { byteLength });
  for (const [index, value] of Object.entries(words)) storeWord(page, Number(index), value);
  page.close();
  const accepted = kind.accept(vector, memory);
  try {
    assert.deepEqual(accepted.read(reads), reads);
  } finally {
    accepted.close();
  }
}

const storeWord = (page: SharedWords, index: number, value: string): void => {
  new BigUint64Array(page.bytes.buffer)[index] = BigInt(value);
};

/** The words that are not 0. */
const wordsOf = (page: SharedWords, ignore: readonly number[]): Record<string, string> =>
  Object.fromEntries(
    [...new BigUint64Array(page.bytes.buffer)].flatMap((word, index) =>
      word === 0n || ignore.includes(index) ? [] : [[index, String(word)]],
    ),
  );

interface Made {
  readonly page: SharedWords;
  readonly apply: Readonly<Record<string, (...values: never[]) => void>>;
  close(): void;
}

interface Accepted {
  read(expected: Reads): unknown;
  close(): void;
}

/** As JSON has it: null for what is no value. */
const count = (value: number): number | null => (value < 0 ? null : value);

const sharedWords: Readonly<
  Record<
    string,
    { create(vector: WordsVector): Made; accept(vector: WordsVector, fd: number): Accepted }
  >
> = {
  ring: {
    create({ slots, records }) {
      const ring = Ring.create({ slots, hasRecords: records });
      return {
        page: ring.words,
        apply: {
          publish: (published: number) => ring.publish(published),
          fill: (message: number) => ring.words.advanceTo(ring.filled(message)),
          close: (at: number) => ring.closeAt(at),
          sleep: (isAsleep: boolean) => ring.setProducerAsleep(isAsleep),
          endWaits: () => ring.endWaits(),
        },
        close: () => ring.words.close(),
      };
    },
    accept({ slots, records }, fd) {
      const ring = Ring.accept(fd, { slots, hasRecords: records });
      return {
        read: ({ filled }) => ({
          published: count(ring.published),
          closedAt: ring.closedAt ?? null,
          producerSleeps: ring.isProducerAsleep,
          filled: filled.map(([message]) => [message, ring.isFilled(message)]),
        }),
        close: () => ring.words.close(),
      };
    },
  },
  seat: {
    create({ slots, start }) {
      const seat = Seat.create(slots, start);
      return {
        page: seat.words,
        apply: {
          sleep: (isAsleep: boolean) => seat.setAsleep(isAsleep),
          want: (wanted: number) => seat.setWanted(wanted),
          grant: (message: number, redelivered: boolean) =>
            seat.grant(seat.granted, { message, redelivered }),
          release: (message: number) => seat.words.advanceTo(seat.released(message)),
          finish: () => seat.finish(),
          endWaits: () => seat.endWaits(),
        },
        close: () => seat.words.close(),
      };
    },
    accept({ slots }, fd) {
      const seat = Seat.accept(fd, slots, false);
      return {
        read: ({ grants, released }) => ({
          start: seat.start,
          asleep: seat.isAsleep,
          wanted: seat.wanted,
          granted: seat.granted,
          grants: grants.map(([at]) => {
            const { message, redelivered } = seat.grantAt(at);
            return [at, message, redelivered];
          }),
          released: released.map(([message]) => [message, seat.isReleased(message)]),
          finished: seat.isFinished,
        }),
        close: () => seat.words.close(),
      };
    },
  },
  timeline: {
    create() {
      const { counter, writeEnd } = TimelineCounter.create();
      return {
        page: counter.words,
        apply: {
          signal: (value: number) => counter.advanceTo(value),
          end: () => counter.markEnded(),
          abandon: () => counter.abandon(),
        },
        close() {
          writeEnd.close();
          counter.close();
        },
      };
    },
    accept(_, memory) {
      const [lifeline, writeEnd] = createPipe();
      const counter = TimelineCounter.accept({ memory, lifeline });
      return {
        read: () => ({
          value: counter.value,
          ended: counter.isEnded,
          abandoned: counter.isAbandoned,
        }),
        close() {
          closeFd(writeEnd);
          counter.close();
        },
      };
    },
  },
  counters: {
    create() {
      const page = SharedWords.create('cuffi-points');
      return {
        page,
        apply: {
          advance: (index: number, reached: number) => page.advanceTo({ index, count: reached }),
        },
        close: () => page.close(),
      };
    },
    accept(_, fd) {
      const page = SharedWords.accept(fd, 'timeline page', { isForDevices: true });
      return {
        read: ({ reached }) => ({
          reached: reached.map(([index, at]) => [index, at, page.isReached({ index, count: at })]),
        }),
        close: () => page.close(),
      };
    },
  },
};

// ---- Records ----

const recordBytes = (hex: string): Uint8Array => {
  const bytes = new Uint8Array(RECORD_BYTE_LENGTH);
  bytes.set(Buffer.from(hex, 'hex'));
  return bytes;
};

interface RecordVector {
  readonly slotByteLength: number;
  readonly hex: string;
  readonly record: {
    readonly skipped?: boolean;
    readonly layout?: unknown;
    readonly meta?: string;
  };
  readonly roundtrip: boolean;
}

function checkRecord({ slotByteLength, hex, record, roundtrip }: RecordVector): void {
  const { skipped, layout, meta } = record;
  const read: MessageRecord = readRecord(recordBytes(hex), slotByteLength);
  assert.equal(read.isSkipped ?? false, skipped ?? false);
  assert.deepEqual(
    read.layout && { dtype: read.layout.dtype.name, shape: read.layout.shape },
    layout,
  );
  assert.deepEqual(read.meta, meta === undefined ? undefined : JSON.parse(meta));
  if (!roundtrip) return;
  const again = new Uint8Array(RECORD_BYTE_LENGTH);
  writeRecord(again, read, encodeMeta(read.meta));
  assert.deepEqual(again, recordBytes(hex));
}

// ---- Refusals ----

export interface RefusalVector {
  readonly name: string;
  readonly of: string;
  readonly code: string;
  /** Those that the error must name. */
  readonly versions?: readonly number[];
  readonly hex: Bytes;
  readonly alone: boolean;
  readonly fds: number | readonly string[];
  readonly json: unknown;
  readonly frames: readonly Frame[];
  readonly slotByteLength: number;
  readonly use: keyof typeof acceptMemory;
  readonly memory: Memory;
  readonly lifeline: string;
  readonly kind: string;
  /** Of an object, some of its exporter with the placeholders `$here` and `$other`. */
  readonly fields: Readonly<Record<string, unknown>>;
  /** Whether the object is the memory of a channel. */
  readonly isChannel?: boolean;
  readonly deliver: 'all' | 'one';
  readonly slots: number;
  readonly when: 'opens' | 'receives';
  /** Words by their index. */
  readonly ring: Readonly<Record<string, string>>;
  readonly seat: Readonly<Record<string, string>>;
  /** What becomes of a connection that it comes over. */
  readonly connection?: 'ends' | 'goes on';
}

function checkRefusal(vector: RefusalVector): void {
  const { of, code, versions = [] } = vector;
  assert.throws(
    () => refused[of]?.(vector),
    (error: unknown) => {
      assert.ok(error instanceof IpcError, `${error}`);
      assert.equal(error.code, code, error.message);
      for (const version of versions) assert.match(error.message, new RegExp(`\\b${version}\\b`));
      return true;
    },
  );
}

/** How what is refused is read alone, by its kind. */
export const refused: Readonly<Record<string, (row: RefusalVector) => unknown>> = {
  value: ({ hex }: RefusalVector): unknown => decode(bytesOf(hex)),
  control: ({ hex, alone, fds }: RefusalVector): unknown =>
    readBlock(bytesOf(hex), alone, fds as number),
  message: ({ hex, fds }: RefusalVector): unknown => readMessage(bytesOf(hex), fds as number),
  fields: ({ hex }: RefusalVector): unknown => decodeFields(bytesOf(hex)),
  descriptor: ({ hex }: RefusalVector): unknown => decodeDescriptor(bytesOf(hex)),
  json: ({ json }: RefusalVector): unknown => parseDescriptor(json),
  hello: ({ hex }: RefusalVector): unknown => readHello(bytesOf(hex)),
  frames: ({ frames }: RefusalVector): unknown => assemble(frames),
  record: ({ hex, slotByteLength }: RefusalVector): unknown =>
    readRecord(recordBytes(hex as string), slotByteLength),
  memory: ({ use, memory }: RefusalVector): unknown =>
    withFds((fds) => acceptMemory[use](fds.release(fds.memory(memory)), fds)),
  lifeline: ({ lifeline }: RefusalVector): unknown =>
    withFds((fds) =>
      acceptTimeline(fds.release(fds.named('page')), fds.release(fds.named(lifeline))),
    ),
  object: ({ kind, fds }: RefusalVector): unknown =>
    importFromPeer(fieldsOfKind[kind] as AnyFields, openFds(fds as number), {
      ...emptySharingSession(),
      hasLeaseOn: () => true,
    }),
};

function withFds(use: (fds: VectorFds) => void): void {
  using fds = new VectorFds();
  use(fds);
}

const acceptTimeline = (memory: number, lifeline: number): void =>
  TimelineCounter.accept({ memory, lifeline }).close();

const acceptMemory = {
  counters: (fd: number) => SharedWords.accept(fd, 'timeline page', { isForDevices: true }).close(),
  timeline: (memory: number, fds: VectorFds) =>
    acceptTimeline(memory, fds.release(fds.named('lifeline'))),
  ring: (fd: number) => Ring.accept(fd, { slots: 3, hasRecords: true }).words.close(),
  seat: (fd: number) => Seat.accept(fd, 3, false).words.close(),
};

const fieldsOfKind = {
  timeline: { kind: 'timeline' },
  signaler: { kind: 'signaler', last: 0 },
  pinned: { kind: 'pinned', byteLength: 4096 },
  channel: { kind: 'channel' },
} as unknown as Readonly<Record<string, AnyFields>>;
