/** The table of refusals: each row of refused.json, at every door of cuffi that its data can come in through. */
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { readSync, writeSync } from 'node:fs';
import { join } from 'node:path';
import { before, describe, test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { isDeepStrictEqual } from 'node:util';
import { crc32 } from 'node:zlib';
import type { SystemError } from '../../../../ffi/linux/libc.ts';
import { sendMessage } from '../../../../ffi/linux/message.ts';
import { processStartTime } from '../../../../ffi/linux/process.ts';
import { Context } from '../../../../src/context.ts';
import { Device } from '../../../../src/device.ts';
import type { IpcError } from '../../../../src/errors.ts';
import { ByteReader, ByteWriter } from '../../../../src/ipc/bytes.ts';
import type { AnyFields, DescriptorFields } from '../../../../src/ipc/descriptor.ts';
import { localProcess } from '../../../../src/ipc/identity.ts';
import {
  type ChannelConsumer,
  IpcArrayHandle,
  IpcBufferHandle,
  openIpc,
} from '../../../../src/ipc/index.ts';
import {
  ChannelFlag,
  DESCRIPTOR_MAGIC,
  FrameKind,
  HEADER_BYTE_LENGTH,
  PACKET_BYTE_LENGTH,
  PAGE_BYTE_LENGTH,
  RECORD_BYTE_LENGTH,
  RingWord,
  SeatWord,
  Tag,
  WORD_BYTE_LENGTH,
} from '../../../../src/ipc/protocol.ts';
import {
  decodeDescriptor,
  encodeFields,
  withChecksum,
} from '../../../../src/ipc/sharing/descriptor-codec.ts';
import { PROTOCOL_VERSION } from '../../../../src/ipc/version.ts';
import { FRAGMENT_BYTE_LENGTH } from '../../../../src/ipc/wire/limits.ts';
import { EncodedValue } from '../../../../src/ipc/wire/value-decoder.ts';
import { encodeValue } from '../../../../src/ipc/wire/value-encoder.ts';
import { nextLoopIteration } from '../../../../src/poller.ts';
import { companionPath } from '../../../../src/python/companion.ts';
import { comesBackTo, type ProcessState, processState } from '../../../support/process-state.ts';
import { noPython } from '../../../support/python.ts';
import { bytesOf, readVectors, vectorFolder } from '../../../support/vectors.ts';
import { rawSend } from '../../ffi/fixtures/descriptors.ts';
import { emulate } from '../emulate.ts';
import { own, RawPeer, tableOf } from '../ipc/peer/support.ts';
import { codeAt, type Door, doors, doorsInPython, doorsOf, openDoors, outcomeAt } from './doors.ts';
import { type Sizes, VectorFds } from './fds.ts';
import { type RefusalVector, refused } from './run-vectors.ts';

const rows = readVectors(vectorFolder, 'refused.json') as unknown as readonly RefusalVector[];
const fixtures = fileURLToPath(new URL('../../../ipc/fixtures/', import.meta.url));
const wait = { timeoutMs: 10_000 };

/** What an end does with a connection behind a refusal. */
type Then = RefusalVector['connection'];

// ---- What comes in ----

/** A whole message, or one frame. */
interface Message {
  readonly bytes: Buffer;
  readonly kind?: FrameKind;
  readonly isFrame?: boolean;
  readonly fds?: readonly number[];
}

const PLACE = Buffer.of(Tag.gpuObject);
const NULL = Buffer.of(Tag.null);
/** A Set of a long text and what follows. */
const LONG = `${Buffer.of(Tag.set, 2, Tag.latin1, 0xd0, 15).toString('hex')}${'78'.repeat(2000)}`;
const wholePages = (byteLength: number): number =>
  Math.ceil(byteLength / PAGE_BYTE_LENGTH) * PAGE_BYTE_LENGTH;
const recordsAt = (slots: number): number => (RingWord.filled + 2 * slots) * WORD_BYTE_LENGTH;
const sizesOf = (slots: number): Sizes => ({
  ring: wholePages(recordsAt(slots) + slots * RECORD_BYTE_LENGTH),
  seat: wholePages((SeatWord.released + 3 * slots) * WORD_BYTE_LENGTH),
});

/** The exporter of an object: this process, or another one that lives. */
const placeholders = (): Readonly<Record<string, Readonly<Record<string, unknown>>>> => ({
  $here: {
    device: Device.get().uuid,
    machine: localProcess().machine,
    pid: process.pid,
    startTime: processStartTime(process.pid),
    pidNamespace: localProcess().pidNamespace,
  },
  $other: { pid: process.ppid, startTime: processStartTime(process.ppid) },
});

const liveFields = (fields: object): AnyFields => {
  const known = placeholders();
  const entries = Object.entries(fields).map(([name, value]) => [
    name,
    known[String(value)]?.[name] ?? value,
  ]);
  return Object.fromEntries(entries) as AnyFields;
};

const someone = {
  device: '$here',
  machine: '$here',
  pid: '$other',
  startTime: '$other',
  pidNamespace: '$here',
};
const id = '404142434445464748494a4b4c4d4e4f';
const range = {
  baseByteLength: 2 << 20,
  byteOffset: 0,
  byteLength: 2 << 20,
  access: 'read-write',
  bufferId: 0,
  generation: 7,
};

/** An honest object of a kind. */
function objectOf(
  kind: string,
  { slots = 2, byteLength = 64, deliver = 'all', exporter = someone as object } = {},
): Buffer {
  const virtual = liveFields({
    ...exporter,
    kind: 'virtual',
    memory: id,
    firstPiece: 0,
    pieces: [2 << 20],
    ...range,
  });
  const fields: Readonly<Record<string, object>> = {
    timeline: {},
    signaler: { last: 0 },
    pinned: { byteLength: 10_000 },
    virtual,
    pool: liveFields({
      ...exporter,
      pool: id,
      handle: null,
      ...range,
      baseByteLength: 0,
      byteLength: 0,
    }),
    channel: {
      slots,
      stride: 256,
      byteLength,
      layout: { dtype: 'uint8', shape: [byteLength], strides: [1] },
      flags: deliver === 'one' ? ChannelFlag.toOne : 0,
      memory: virtual,
    },
  };
  return encodeFields({ ...fields[kind], kind } as AnyFields);
}

const withObject = (bytes: Uint8Array, fdCount: number): Buffer =>
  Buffer.concat([PLACE, Buffer.from(tableOf(0, { bytes, fdCount }))]);

/** What is sent for a row, by its kind. */
const sent: Readonly<Record<string, (row: RefusalVector, fds: VectorFds) => readonly Message[]>> = {
  value: ({ hex }) => [{ bytes: bytesOf(hex) }],
  control: ({ hex, alone, fds: count }, fds) =>
    alone
      ? [{ bytes: bytesOf(hex), kind: FrameKind.control, fds: devices(fds, count as number) }]
      : [{ bytes: Buffer.concat([NULL, bytesOf(hex)]) }],
  message: ({ hex, fds: count }, fds) => [
    { bytes: bytesOf(hex), fds: devices(fds, count as number) },
  ],
  fields: ({ hex }) => [{ bytes: withObject(bytesOf(hex), 0) }],
  hello: ({ hex }) => [{ bytes: bytesOf(hex), isFrame: true }],
  frames: ({ frames }, fds) =>
    frames.map(({ hex, fds: count }) => ({
      bytes: bytesOf(hex),
      isFrame: true,
      fds: devices(fds, count as number),
    })),
  messages: ({ frames }, fds) =>
    frames.map(({ hex, fds: names }) => ({
      bytes: bytesOf(hex),
      isFrame: true,
      fds: (names as unknown as readonly string[]).map((name) => fds.named(name)),
    })),
  memory: ({ use, memory }, fds) => {
    const fd = fds.memory(memory);
    if (use === 'counters') return [{ bytes: Buffer.of(1), kind: FrameKind.control, fds: [fd] }];
    if (use === 'timeline') return object('timeline', [fd, fds.named('lifeline')]);
    const slots = 3;
    const parts = channelFds(fds, sizesOf(slots)).with(use === 'ring' ? 0 : 1, fd);
    return object('channel', parts, { slots });
  },
  lifeline: ({ lifeline }, fds) => object('timeline', [fds.named('page'), fds.named(lifeline)]),
  object: ({ kind, fds: count }, fds) => object(kind, devices(fds, count as number)),
  fds: ({ kind, fds: names }, fds) =>
    object(
      kind,
      (names as readonly string[]).map((name) => fds.named(name, sizesOf(2))),
    ),
  exporter: ({ fields, fds: names, isChannel }, fds) => {
    const numbers = (names as readonly string[]).map((name) => fds.named(name));
    const bytes = isChannel
      ? objectOf('channel', { exporter: fields })
      : encodeFields(liveFields(fields));
    return [{ bytes: withObject(bytes, numbers.length), fds: numbers }];
  },
};

const messagesOf = (row: RefusalVector, fds: VectorFds): readonly Message[] => {
  const make = sent[row.of];
  assert.ok(make, `what is sent for ${row.of} is not stated`);
  return make(row, fds);
};

const object = (kind: string, fds: readonly number[], options = {}): readonly Message[] => [
  { bytes: withObject(objectOf(kind, options), fds.length), fds },
];
const devices = (fds: VectorFds, count: number): number[] =>
  Array.from({ length: count }, () => fds.named('device'));
const channelFds = (fds: VectorFds, sizes: Sizes): number[] =>
  ['ring', 'seat', 'receives', 'sends', 'memory'].map((name) => fds.named(name, sizes));

/** An end that sends messages, or what should be some. */
class HostileEnd extends RawPeer {
  sequence = 0;

  constructor(first?: 'hello' | 'no hello') {
    super(undefined, { ...own, pid: process.ppid }, first);
  }

  async sendAll(
    messages: readonly Message[],
    as: FrameKind = FrameKind.value,
    request = 0,
  ): Promise<void> {
    for (const { bytes, kind = as, isFrame, fds = [] } of messages) {
      if (isFrame && bytes.byteLength > PACKET_BYTE_LENGTH) rawSend(this.socket, bytes.byteLength);
      else if (isFrame) await this.#post(() => sendMessage(this.socket, bytes, fds));
      else await this.#sendMessage(bytes, kind, kind === as ? request : 0, fds);
      this.sequence += 1;
    }
  }

  async #sendMessage(
    bytes: Buffer,
    kind: FrameKind,
    request: number,
    fds: readonly number[],
  ): Promise<void> {
    const { sequence } = this;
    const { byteLength } = bytes;
    for (let offset = 0; offset < Math.max(byteLength, 1); offset += FRAGMENT_BYTE_LENGTH) {
      const part = bytes.subarray(offset, offset + FRAGMENT_BYTE_LENGTH);
      const header = { kind, sequence, request, byteLength, offset };
      await this.#post(() => this.send(part, header, offset === 0 ? fds : []));
    }
  }

  /** Until there is room, or the other end has ended. */
  async #post(send: () => boolean): Promise<void> {
    try {
      while (!this.peer.closed && !send()) await nextLoopIteration();
    } catch (error) {
      assert.equal((error as SystemError).code, 'EPIPE');
    }
  }

  /** Sends an honest value, and returns what the peer does with the connection. */
  async next(): Promise<Then> {
    await this.sendAll([{ bytes: Buffer.of(Tag.true) }]);
    for (;;)
      try {
        if ((await this.peer.receive(wait)) === true) return 'goes on';
      } catch (error) {
        if (this.peer.closed) return 'ends';
        assert.notEqual((error as Error).name, 'TimeoutError');
      }
  }
}

const rejection = (promise: Promise<unknown>): Promise<unknown> =>
  promise.then(
    (value) => assert.fail(`it was taken: ${String(value).slice(0, 200)}`),
    (error: unknown) => error,
  );

/** Opens what a program passes on: descriptors of `fds` come with it. */
const opening = (
  row: RefusalVector,
  fds: VectorFds,
  open: (fds: { readonly fds?: readonly number[] }) => unknown,
): unknown => {
  const names = row.of === 'exporter' ? (row.fds as readonly string[]) : [];
  const numbers = names.map((name) => fds.release(fds.named(name)));
  return open(numbers.length > 0 ? { fds: numbers } : {});
};

const jsonOf = (row: RefusalVector): unknown =>
  row.of === 'exporter' ? withChecksum(liveFields(row.fields) as DescriptorFields) : row.json;

const refusalOf = (attempt: () => unknown): unknown => {
  try {
    attempt();
  } catch (error) {
    return error;
  }
  return assert.fail('it was taken');
};

/** How data of a row comes in. Each returns the error, and what happens to the connection if there is one. */
const enter: Readonly<
  Record<Door, (row: RefusalVector, fds: VectorFds) => Promise<readonly [unknown, Then?]>>
> = {
  reader: async (row) => {
    const read = refused[row.of] as (row: RefusalVector) => unknown;
    const error = refusalOf(() => read(row));
    // Long values are checked before they are built.
    if (row.of === 'value') {
      const long = refusalOf(() => read({ ...row, hex: [LONG, ...[row.hex].flat()] }));
      assert.equal((long as IpcError).code, (error as IpcError).code);
    }
    return [error];
  },
  connection: async (row, fds) => {
    using other = new HostileEnd(row.of === 'hello' ? 'no hello' : 'hello');
    const first = messagesOf(row, fds);
    // Messages before the last one are taken, or refused for themselves.
    const isLast = row.of === 'frames' || row.of === 'messages';
    const refusing = isLast ? other.peer.ended : rejection(other.peer.receive(wait));
    await other.sendAll(first);
    return [await refusing, await other.next()];
  },
  request: async (row, fds) => {
    using other = new HostileEnd();
    const serving = other.peer.serve(() => assert.fail('the handler was called')).catch(() => {});
    await other.sendAll(messagesOf(row, fds), FrameKind.request, 1);
    const error = await Promise.race([other.peer.ended, failureSentTo(other)]);
    const then = other.peer.closed ? 'ends' : await other.next();
    other.peer.close();
    await serving;
    return [error, then];
  },
  answer: async (row, fds) => {
    using other = new HostileEnd();
    const refusing = rejection(other.peer.request(null, wait));
    await other.sendAll(messagesOf(row, fds), FrameKind.response, 1);
    return [await refusing, await other.next()];
  },
  bytes: async (row, fds) => [
    refusalOf(() =>
      opening(row, fds, (options) => openIpc(decodeDescriptor(bytesFormOf(row)), options)),
    ),
  ],
  JSON: async (row, fds) => [
    refusalOf(() => opening(row, fds, (options) => openIpc(jsonOf(row), options))),
  ],
  handle: async (row) => {
    const json = jsonOf(row);
    const hasLayout = typeof json === 'object' && json !== null && 'layout' in json;
    const error = refusalOf(() => IpcBufferHandle.from(json).open());
    if (hasLayout) {
      const other = refusalOf(() => IpcArrayHandle.from(json).open());
      assert.equal((other as IpcError).code, (error as IpcError).code);
    }
    return [error];
  },
  question: async (row) => {
    using other = new HostileEnd();
    const bytes = ByteWriter.use(0, (writer) => {
      encodeValue(writer, jsonOf(row), {
        includes: (_): _ is never => false,
        alternativeTo: () => '',
      });
      return Buffer.from(writer.written);
    });
    await other.sendAll([{ bytes }], FrameKind.verification, 1);
    return [await failureSentTo(other), await other.next()];
  },
  'shared memory': async (row, fds) => {
    using other = new HostileEnd();
    const isRecord = row.of === 'record';
    const { slots = 2, deliver = 'all', slotByteLength: byteLength = 64 } = row;
    const parts = channelFds(fds, sizesOf(slots));
    const [ring = -1, seat = -1] = parts;
    const store = (fd: number, words: Readonly<Record<string, string>> = {}): void => {
      for (const [index, word] of Object.entries(words))
        writeSync(fd, new BigUint64Array([BigInt(word)]), 0, 8, 8 * Number(index));
    };
    store(ring, isRecord ? { [RingWord.published]: '1', [RingWord.filled]: '1' } : row.ring);
    store(seat, row.seat);
    if (isRecord) {
      const bytes = bytesOf(row.hex);
      writeSync(ring, bytes, 0, bytes.byteLength, recordsAt(slots));
    }
    await other.sendAll(object('channel', parts, { slots, byteLength, deliver }));
    if (row.when === 'opens')
      return [await rejection(other.peer.receive(wait)), await other.next()];
    using consumer = (await other.peer.receive(wait)) as ChannelConsumer;
    const error = await rejection(consumer.receive(wait));
    if (!isRecord) return [error, await other.next()];
    // The message is over: the next one is received.
    const released = new BigUint64Array(1);
    readSync(seat, released, 0, 8, 8 * SeatWord.released);
    assert.deepEqual([...released], [1n]);
    store(ring, { [RingWord.filled + 1]: '2', [RingWord.published]: '2' });
    assert.equal((await consumer.receive(wait))?.message, 1);
    return [error, await other.next()];
  },
};

/** The error that a peer sends as the answer to a request. */
async function failureSentTo(other: HostileEnd): Promise<unknown> {
  for (;;) {
    const message = other.peer.closed ? 'end' : other.receive();
    if (message === 'end') return other.peer.ended;
    if (typeof message !== 'object') {
      await nextLoopIteration();
      continue;
    }
    if (message.data[3] !== FrameKind.failure) continue;
    return errorIn(message.data.subarray(HEADER_BYTE_LENGTH));
  }
}

function errorIn(bytes: Uint8Array): unknown {
  const value = new EncodedValue(new ByteReader(bytes));
  while (!value.check());
  return value.buildAll([]);
}

function bytesFormOf(row: RefusalVector): Uint8Array {
  if (row.of === 'descriptor') return bytesOf(row.hex);
  const fields = row.of === 'exporter' ? encodeFields(liveFields(row.fields)) : bytesOf(row.hex);
  const version = Buffer.of(PROTOCOL_VERSION);
  const checksum = Buffer.alloc(4);
  checksum.writeUInt32LE(crc32(Buffer.concat([version, fields])));
  return Buffer.concat([Buffer.from(DESCRIPTOR_MAGIC), version, checksum, fields]);
}

/** What is open, but for the process whose memory was opened last: a descriptor of that is kept. */
const openState = (): ProcessState => processState(Context.primary(), /^(?!.*pidfd)/);

/** Brings the data of a row in through a door. Returns what is wrong. */
async function failureOf(row: RefusalVector, door: Door): Promise<string | undefined> {
  const before = openState();
  try {
    {
      using fds = new VectorFds();
      const [error, then] = await enter[door](row, fds);
      const { code, message } = error as IpcError;
      const expected = codeAt(row, door);
      assert.equal(code, expected, `${code} in place of ${expected}: ${message}`);
      for (const version of row.versions ?? [])
        assert.match(message, new RegExp(`\\b${version}\\b`));
      assert.equal(then, then && outcomeAt(row, door), `the connection ${then}`);
    }
    await comesBackTo(before, 'it leaves something open', openState);
  } catch (error) {
    return `${row.name}: ${(error as Error).message.replaceAll('\n', ' ')}`;
  }
  return undefined;
}

describe('what must be refused', () => {
  /** Which row came in through which door here. */
  const taken = new Set<string>();

  // What is made at the first use stays.
  before(async () => {
    emulate();
    for (const row of rows.filter(({ of }) => of === 'channel' || of === 'exporter').slice(-3)) {
      using fds = new VectorFds();
      await enter[row.of === 'channel' ? 'shared memory' : 'JSON'](row, fds);
    }
  });

  for (const door of doors)
    test(`is refused at the door ${door}, with its code, and leaves nothing open`, async () => {
      const failures: string[] = [];
      for (const row of rows) {
        if (!openDoors(row).includes(door)) continue;
        const failure = await failureOf(row, door);
        taken.add(`${door}: ${row.name}`);
        if (failure !== undefined) failures.push(failure);
      }
      assert.equal(failures.join('\n'), '');
    });

  test('is refused by the companion for Python at each of its doors', { skip: noPython }, () => {
    const { stdout, stderr, status } = spawnSync(
      'python3',
      ['-B', join(fixtures, 'refusals.py'), vectorFolder],
      {
        env: { ...process.env, PYTHONPATH: `${companionPath()}:${fixtures}` },
        encoding: 'utf8',
        timeout: 120_000,
      },
    );
    assert.equal(status, 0, stderr);
    const { ran, failures } = JSON.parse(stdout) as { ran: string[][]; failures: string[] };
    assert.equal(failures.join('\n'), '');
    const expected = rows.flatMap((row) => doorsInPython(row).map((door) => [row.name, door]));
    const missing = expected.filter((pair) => !ran.some((one) => isDeepStrictEqual(one, pair)));
    assert.deepEqual(missing, [], 'a door of the companion is left out');
    assert.equal(ran.length, expected.length);
  });

  test('comes in through each door that is not closed to it for a stated reason', () => {
    assert.equal(new Set(rows.map(({ name }) => name)).size, rows.length);
    for (const row of rows) {
      assert.ok(openDoors(row).length > 0, row.name);
      for (const [door, why] of Object.entries(doorsOf(row)))
        assert.ok(why === true || why.length > 10, `${row.name}: ${door}`);
    }
    for (const door of doors)
      assert.ok(
        rows.some((row) => openDoors(row).includes(door)),
        door,
      );
    const asked = rows.flatMap((row) => openDoors(row).map((door) => `${door}: ${row.name}`));
    assert.deepEqual(
      asked.filter((one) => !taken.has(one)),
      [],
      'a door of Node is left out',
    );
  });
});
