/** What values cost before a caller takes them, and while they are checked and built. */

import assert from 'node:assert/strict';
import { describe, type TestContext, test } from 'node:test';
import { closeFd } from '../../../../../ffi/linux/libc.ts';
import { createSealedMemfd } from '../../../../../ffi/linux/memfd.ts';
import { DeviceBuffer, IpcError } from '../../../../../src/index.ts';
import { getIpcHandle } from '../../../../../src/ipc/index.ts';
import {
  FrameKind,
  MAX_BIGINT_DIGITS,
  MAX_CONTROL_BYTE_LENGTH,
  MAX_RELEASE_POINTS,
  MAX_VALUE_BINARIES,
  MAX_VALUE_COLLECTIONS,
  Tag,
} from '../../../../../src/ipc/protocol.ts';
import { encodeFields } from '../../../../../src/ipc/sharing/descriptor-codec.ts';
import { readControlMessage } from '../../../../../src/ipc/wire/control-block.ts';
import { FRAGMENT_BYTE_LENGTH } from '../../../../../src/ipc/wire/limits.ts';
import { ValueMessageReader } from '../../../../../src/ipc/wire/value-message.ts';
import { nextLoopIteration } from '../../../../../src/poller.ts';
import { iterations } from '../../../../support/iterations.ts';
import {
  collectGarbage,
  descriptorsReturnTo,
  openDescriptors,
} from '../../../../support/process-state.ts';
import { emulate } from '../../emulate.ts';
import { peerPair, RawPeer, tableOf } from '../peer/support.ts';

const length = (value: number): number[] =>
  value > 127 ? [(value & 127) | 128, ...length(value >>> 7)] : [value];
const float64 = (value: number): Buffer => Buffer.from(new Float64Array([value]).buffer);
/** A list of `count` equal parts. */
const listOf = (count: number, part: readonly number[], ...others: Uint8Array[]): Buffer =>
  Buffer.concat([
    Buffer.of(Tag.array, ...length(count + others.length)),
    Buffer.from(
      new Uint8Array(count * part.length).map((_, at) => part[at % part.length] as number),
    ),
    ...others,
  ]);
const emptyObject = [Tag.object, 0];
const emptyMap = [Tag.map, 0];
const emptyError = [Tag.error, 0, 0];
const emptyFloats = [Tag.binary, 9, 0];
const MANY = 1_000_000;

/** Sends a value of any size as there is room. */
async function sendAll(other: RawPeer, body: Uint8Array, sequence: number, kind = 1 as const) {
  const { byteLength } = body;
  for (let offset = 0; offset < byteLength; offset += FRAGMENT_BYTE_LENGTH) {
    const part = body.subarray(offset, offset + FRAGMENT_BYTE_LENGTH);
    while (!other.send(part, { kind, sequence, offset, byteLength })) await nextLoopIteration();
  }
}

/** Counts the turns of the event loop until a promise is settled. */
async function turnsUntil(settled: Promise<unknown>): Promise<number> {
  let turns = 0;
  let isSettled = false;
  const settle = (): void => {
    isSettled = true;
  };
  settled.then(settle, settle);
  while (!isSettled) {
    await nextLoopIteration();
    turns += 1;
  }
  return turns;
}

async function memory(): Promise<number> {
  await collectGarbage();
  const { heapUsed, external } = process.memoryUsage();
  return heapUsed + external;
}

describe('EncodedValue', () => {
  test('values that nobody took use as much memory as their bytes', async () => {
    for (const [part, count] of [
      [emptyFloats, MAX_VALUE_BINARIES],
      [emptyObject, MANY],
      [emptyMap, MAX_VALUE_COLLECTIONS],
      [emptyError, MAX_VALUE_COLLECTIONS],
    ] as const) {
      using other = new RawPeer();
      const body = listOf(count, part);
      const before = await memory();
      const values = iterations(1, 4);
      for (let sequence = 0; sequence < values; sequence++) await sendAll(other, body, sequence);
      for (let turns = 0; turns < 200; turns++) await nextLoopIteration();
      const cost = (await memory()) - before;
      const most = 2 * values * body.byteLength;
      assert.ok(cost < most, `${cost} bytes for ${values} values of ${body.byteLength}`);
      assert.equal(((await other.peer.receive()) as unknown[]).length, count);
    }
  });

  /** Ends a slice whenever the clock is read for the second time. */
  function hurry(context: TestContext): void {
    let now = performance.now();
    context.mock.method(performance, 'now', () => {
      now += 10;
      return now;
    });
  }

  test('a long value is built over several turns of the event loop, however many callers wait', async (t) => {
    hurry(t);
    using other = new RawPeer();
    other.send(listOf(20_000, emptyObject));
    for (let turns = 0; turns < 3; turns++) await nextLoopIteration();
    const takes = Array.from({ length: 100 }, () => other.peer.receive());
    const turns = await turnsUntil(takes[0] as Promise<unknown>);
    assert.ok(turns >= 50, `${turns} turns`);
    assert.equal(((await takes[0]) as unknown[]).length, 20_000);
    other.peer.close();
    await Promise.allSettled(takes);
  });

  test('a long Set behind a GPU object is filled over several turns of the event loop', async (t) => {
    emulate();
    using buffer = DeviceBuffer.allocate(64);
    const table = Buffer.from(tableOf(0, { bytes: encodeFields(getIpcHandle(buffer)) }));
    hurry(t);
    using other = new RawPeer();
    const count = 20_000;
    const numbers = Buffer.concat(
      Array.from({ length: count }, (_, at) =>
        Buffer.concat([Buffer.of(Tag.float64), float64(at + 0.5)]),
      ),
    );
    const body = [Buffer.of(Tag.set, ...length(count + 1), Tag.gpuObject), numbers, table];
    await sendAll(other, Buffer.concat(body), 0);
    for (let turns = 0; turns < 200; turns++) await nextLoopIteration();
    const taking = other.peer.receive();
    const turns = await turnsUntil(taking);
    assert.ok(turns >= 200, `${turns} turns`);
    const [first, ...rest] = [...((await taking) as Set<unknown>)];
    (first as DeviceBuffer).close();
    assert.deepEqual([rest.length, rest[0], rest.at(-1)], [count, 0.5, count - 0.5]);
  });

  test('a long value is checked over several turns of the event loop', async (t) => {
    hurry(t);
    for (const value of [
      listOf(80_000, emptyObject),
      // Few parts that each take long.
      listOf(20, [Tag.bigint, 0, ...length(70_000), ...new Array<number>(70_000).fill(0x61)]),
    ]) {
      using one = new RawPeer();
      const sending = sendAll(one, Buffer.concat([value, Buffer.of(200)]), 0);
      const taking = assert.rejects(one.peer.receive(), { message: /unknown control field/ });
      await sending;
      const turns = await turnsUntil(taking);
      assert.ok(turns >= 8, `${turns} turns`);
      await taking;
    }
  });

  test('nothing overtakes a long value', async () => {
    emulate();
    using buffer = DeviceBuffer.allocate(64);
    const descriptor = encodeFields(getIpcHandle(buffer));
    const object = Buffer.of(Tag.gpuObject);
    const table = Buffer.from(tableOf(0, { bytes: descriptor }));
    using other = new RawPeer();
    const values = [
      Buffer.concat([listOf(MANY, emptyObject, object), table]),
      Buffer.of(Tag.true),
      listOf(MANY, [Tag.null]),
      Buffer.of(Tag.false),
    ];
    const sending = (async () => {
      for (const [sequence, value] of values.entries()) await sendAll(other, value, sequence);
    })();
    const received: unknown[] = [];
    await Promise.all(values.map(() => other.peer.receive().then((value) => received.push(value))));
    await sending;
    const [first, second, third, last] = received as [unknown[], unknown, unknown[], unknown];
    assert.deepEqual([first.length, second, third.length, last], [MANY + 1, true, MANY, false]);
    assert.deepEqual([first[MANY - 1], third[MANY - 1]], [{}, null]);
    using opened = first[MANY] as DeviceBuffer;
    assert.equal(opened.address, buffer.address);
  });

  test('a value whose receiver aborts while it is built stays for the next receiver', async () => {
    using other = new RawPeer();
    const body = listOf(MANY, emptyObject);
    const sending = sendAll(other, body, 0);
    await sending;
    other.send(Buffer.of(Tag.true), { sequence: 1 });
    const abort = new AbortController();
    const given = other.peer.receive({ signal: abort.signal });
    await nextLoopIteration();
    abort.abort(new Error('enough'));
    await assert.rejects(given, /enough/);
    assert.equal(((await other.peer.receive()) as unknown[]).length, MANY);
    assert.equal(await other.peer.receive(), true);
  });

  test('close() ends the building of a value, and the end of the peer its checking', async () => {
    {
      using other = new RawPeer();
      await sendAll(other, listOf(MANY, emptyObject), 0);
      const taking = other.peer.receive();
      await nextLoopIteration();
      other.peer.close();
      await assert.rejects(taking, { name: 'ClosedError' });
    }
    using other = new RawPeer();
    await sendAll(other, listOf(MANY, emptyObject), 0);
    other.send(Buffer.of(Tag.true), { sequence: 1 });
    closeFd(other.socket);
    assert.equal(((await other.peer.receive()) as unknown[]).length, MANY);
    assert.equal(await other.peer.receive(), true);
    await assert.rejects(other.peer.receive(), { name: 'ClosedError' });
  });

  test('an error at the end of a long value ends the connection, after the values before it', async () => {
    using other = new RawPeer();
    other.send(Buffer.of(Tag.true));
    const body = Buffer.concat([listOf(MANY, emptyObject), Buffer.of(200)]);
    const sending = sendAll(other, body, 1).catch(() => {});
    assert.equal(await other.peer.receive(), true);
    await assert.rejects(other.peer.receive(), {
      name: 'IpcError',
      message: /unknown control field/,
    });
    await sending;
    assert.equal(other.peer.closed, true);
  });

  test('the typed arrays of a value and the digits of a bigint are limited at both ends', async () => {
    using pair = peerPair();
    const empty = new Uint8Array(0);
    const most = new Array<Uint8Array>(MAX_VALUE_BINARIES).fill(empty);
    const digits = 'f'.repeat(MAX_BIGINT_DIGITS);
    const receiving = pair.b.receive();
    await pair.a.send(most);
    assert.equal(((await receiving) as unknown[]).length, most.length);
    await assert.rejects(
      pair.a.send([...most, empty]),
      /^RangeError: the value has more than 131072 typed/,
    );
    const largest = BigInt(`0x${digits}`);
    const bigint = pair.b.receive();
    await pair.a.send(largest);
    assert.equal(await bigint, largest);
    await assert.rejects(
      pair.a.send(largest + 1n),
      /^RangeError: value is a bigint of 1048577 hexadecimal digits/,
    );
    const maps = new Array<unknown>(MAX_VALUE_COLLECTIONS).fill(new Map());
    const receivingMaps = pair.b.receive();
    await pair.a.send(maps);
    assert.equal(((await receivingMaps) as unknown[]).length, maps.length);
    await assert.rejects(
      pair.a.send([...maps, new Error('one more')]),
      /^RangeError: the value has more than 131072 Maps, Sets and errors: send plain/,
    );
    for (const [body, message] of [
      [listOf(MAX_VALUE_BINARIES + 1, emptyFloats), /more than 131072 parts of binary data/],
      ...[emptyMap, emptyError, [Tag.set, 0]].map(
        (part) =>
          [
            listOf(MAX_VALUE_COLLECTIONS + 1, part),
            /more than 131072 Maps, Sets and errors/,
          ] as const,
      ),
      [
        Buffer.concat([
          Buffer.of(Tag.bigint, 0, ...length(MAX_BIGINT_DIGITS + 1)),
          Buffer.from(`f${digits}`),
        ]),
        /a bigint of 1048577 hexadecimal digits is too long/,
      ],
    ] as const) {
      using other = new RawPeer();
      const sending = sendAll(other, body, 0).catch(() => {});
      await assert.rejects(other.peer.receive(), { name: 'IpcError', message });
      await sending;
    }
  });

  test('the points and bytes of a control block are limited to what it can need', async () => {
    const points = (...indices: number[]): Buffer =>
      Buffer.concat([
        Buffer.from(length(indices.length)),
        ...indices.map((index, at) => Buffer.concat([Buffer.from(length(index)), float64(at + 1)])),
      ]);
    const every = Array.from({ length: 512 }, (_, index) => index);
    const returned = (count: number): Buffer =>
      Buffer.concat([
        Buffer.of(3, ...length(count)),
        ...new Array<Buffer>(count).fill(
          Buffer.concat([float64(0), Buffer.of(0), points(...every)]),
        ),
      ]);
    const most = MAX_RELEASE_POINTS / every.length;
    assert.equal(readControlMessage(returned(most), 0).released.length, most);
    assert.throws(() => readControlMessage(returned(most + 1), 0), {
      name: 'IpcError',
      message: /more than 2048 points/,
    });
    // The latest point of each counter.
    const twice = Buffer.concat([Buffer.of(3, 1), float64(0), Buffer.of(1), points(7, 8, 7)]);
    assert.deepEqual(readControlMessage(twice, 0).released[0]?.points, [
      { index: 7, count: 3 },
      { index: 8, count: 2 },
    ]);

    using other = new RawPeer();
    const page = createSealedMemfd('points', 4096);
    other.send(Uint8Array.of(1), { kind: FrameKind.control }, [page]);
    closeFd(page);
    const body = Buffer.concat([Buffer.of(Tag.null), Buffer.alloc(MAX_CONTROL_BYTE_LENGTH + 1, 3)]);
    const sending = sendAll(other, body, 1).catch(() => {});
    await assert.rejects(other.peer.receive(), {
      name: 'IpcError',
      message:
        /a control block of 1048577 bytes \(1 MiB\) is too large: at most 1048576 are allowed/,
    });
    await sending;
  });

  test('the descriptors of a long value are closed if the connection ends while it is checked', async (t) => {
    const before = openDescriptors();
    hurry(t);
    using other = new RawPeer();
    const looked = t.mock.method(ValueMessageReader.prototype, 'read');
    const body = listOf(MANY, emptyObject);
    const link = createSealedMemfd('link', 4096);
    const header = { byteLength: body.byteLength, offset: 0 };
    other.send(body.subarray(0, FRAGMENT_BYTE_LENGTH), header, [link, link]);
    closeFd(link);
    for (
      let offset = FRAGMENT_BYTE_LENGTH;
      offset < body.byteLength;
      offset += FRAGMENT_BYTE_LENGTH
    )
      while (
        !other.send(body.subarray(offset, offset + FRAGMENT_BYTE_LENGTH), { ...header, offset })
      )
        await nextLoopIteration();
    while (looked.mock.callCount() < 2) await nextLoopIteration();
    other.peer.connection.fail(new IpcError('it broke'));
    await assert.rejects(other.peer.receive(), /it broke/);
    closeFd(other.socket);
    await descriptorsReturnTo(before);
  });
});
