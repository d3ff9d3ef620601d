import assert from 'node:assert/strict';
import { randomFillSync } from 'node:crypto';
import { describe, test } from 'node:test';
import { recordCalls } from '../../ffi/driver.ts';
import {
  allocatePitched,
  Context,
  copyPitched,
  copyPitchedSync,
  Device,
  DeviceBuffer,
  fillPitched,
  PinnedBuffer,
  type PitchedMemory,
  queuePitchedCopy,
  Stream,
  VirtualMemory,
} from '../../src/index.ts';
import { emulated } from '../support/driver.ts';
import { Latch } from '../support/latch.ts';
import { processState } from '../support/process-state.ts';

// Read when the emulated driver is opened, at its first call.
if (emulated) process.env['CUFFI_EMULATED_DEVICES'] = '2';

const MIB = 2 ** 20;

const noise = (byteLength: number): Uint8Array<ArrayBuffer> =>
  randomFillSync(new Uint8Array(byteLength));
const same = (actual: Uint8Array, expected: Uint8Array): void =>
  assert.ok(Buffer.compare(actual, expected) === 0, 'the bytes differ');

const BOX = { width: 101, height: 7, depth: 3 };
const [FROM, TO] = [
  { byteOffset: 5, rowPitch: 130, slicePitch: 1300 },
  { byteOffset: 17, rowPitch: 107, slicePitch: 856 },
];
const BYTES = 4096;

/** `target` with the box out of `source` put in. */
function modelled(target: Uint8Array, source: Uint8Array): Uint8Array {
  const result = Uint8Array.from(target);
  for (let z = 0; z < BOX.depth; z += 1)
    for (let y = 0; y < BOX.height; y += 1) {
      const from = FROM.byteOffset + z * FROM.slicePitch + y * FROM.rowPitch;
      const to = TO.byteOffset + z * TO.slicePitch + y * TO.rowPitch;
      result.set(source.subarray(from, from + BOX.width), to);
    }
  return result;
}

type Copy = (target: PitchedMemory, source: PitchedMemory) => Promise<void>;

/** The ways to copy, each until it is done. */
const ways = (stream: Stream): Copy[] => [
  (target, source) => copyPitched(target, source, BOX),
  (target, source) => copyPitched(target, source, BOX, { stream }),
  async (target, source) => copyPitchedSync(target, source, BOX),
  async (target, source) => copyPitchedSync(target, source, BOX, { stream }),
];

const skipVirtual = VirtualMemory.supported(Device.get(0)) ? false : 'needs virtual memory';

const skip = Device.count < 2 ? 'needs a second GPU' : false;

describe('pitched copies', () => {
  test('slices of rows go to the device, on it and back, awaited and blocking', async () => {
    using stream = Stream.create({ nonBlocking: true });
    using source = DeviceBuffer.allocate(BYTES);
    using target = DeviceBuffer.allocate(BYTES);
    const [bytes, before] = [noise(BYTES), noise(BYTES)];
    const expected = modelled(before, bytes);
    source.copyFromSync(bytes);
    for (const copy of ways(stream)) {
      for (const memory of [source, bytes]) {
        target.copyFromSync(before);
        await copy({ memory: target, ...TO }, { memory, ...FROM });
        same(target.copyToHostSync(), expected);
      }
      const back = Uint8Array.from(before);
      await copy({ memory: back, ...TO }, { memory: source, ...FROM });
      same(back, expected);
    }
    target.copyFromSync(before, { stream });
    queuePitchedCopy({ memory: target, ...TO }, { memory: source, ...FROM }, BOX, { stream });
    same(target.copyToHostSync(undefined, { stream }), expected);
  });

  test('many rows of ordinary memory go in parts, page-locked ones at once', async () => {
    using buffer = DeviceBuffer.allocate(3 * MIB);
    using pinned = PinnedBuffer.allocate(4 * MIB);
    const extent = { width: 3000, height: 1024 };
    for (const memory of [new Uint8Array(4 * MIB), new Uint8Array(pinned.buffer)]) {
      randomFillSync(memory);
      const recorder = recordCalls();
      await copyPitched({ memory: buffer }, { memory, rowPitch: 4096 }, extent);
      recorder.stop();
      const calls = recorder.calls.filter(({ name }) => name.startsWith('cuMemcpy3D'));
      assert.equal(calls.length === 1, memory.buffer === pinned.buffer);
      const back = new Uint8Array(4 * MIB);
      await copyPitched({ memory: back, rowPitch: 4096 }, { memory: buffer }, extent);
      for (let row = 0; row < 1024; row += 1) {
        const [begin, end] = [row * 4096, row * 4096 + 3000];
        same(back.subarray(begin, end), memory.subarray(begin, end));
        assert.equal(back[end], 0);
      }
    }
  });

  test('rows without gaps are copied as one piece', async () => {
    using buffer = DeviceBuffer.allocate(2 * MIB);
    const bytes = noise(2 * MIB);
    const recorder = recordCalls();
    await copyPitched(
      { memory: buffer },
      { memory: bytes },
      { width: 2048, height: 256, depth: 4 },
    );
    recorder.stop();
    assert.ok(!recorder.calls.some(({ name }) => name.startsWith('cuMemcpy3D')));
    same(await buffer.copyToHost(), bytes);
  });

  test('an awaited copy of rows comes after the work before it, without blocking', async () => {
    using stream = Stream.create({ nonBlocking: true });
    using buffer = DeviceBuffer.allocate(BYTES);
    using other = DeviceBuffer.allocate(BYTES);
    for (const memory of [new Uint8Array(BYTES), other]) {
      const latch = new Latch();
      latch.hold(stream);
      buffer.fill(7, { stream });
      const extent = { width: 10, height: 3 };
      const [target, source] = [
        { memory, rowPitch: 20 },
        { memory: buffer, rowPitch: 30 },
      ];
      const copied = copyPitched(target, source, extent, { stream });
      setTimeout(() => latch.open(), 5);
      await copied;
      const bytes = memory instanceof Uint8Array ? memory : memory.copyToHostSync();
      assert.deepEqual([bytes[0], bytes[29], bytes[49]], [7, 7, 7]);
      latch[Symbol.dispose]();
    }
  });

  test('what is given up, closed or given away rejects the copy, and leaves nothing', async () => {
    const context = Context.primary();
    const extent = { width: 3000, height: 4096 };
    const bytes = noise(16 * MIB);
    const host = { memory: bytes, rowPitch: 4096 };
    {
      // The first awaited copy makes the stream that all use.
      using first = DeviceBuffer.allocate(1);
      await first.copyToHost();
    }
    const before = processState();
    const buffer = DeviceBuffer.allocate(16 * MIB);
    const device = { memory: buffer, rowPitch: 3500 };
    const giveUp = new AbortController();
    const { signal } = giveUp;
    setImmediate(() => giveUp.abort(new Error('enough')));
    await assert.rejects(copyPitched(device, host, extent, { signal }), /^Error: enough$/);
    await assert.rejects(copyPitched(device, device, extent, { signal }), /^Error: enough$/);
    const closed = copyPitched(host, device, extent);
    setImmediate(() => buffer.close());
    await assert.rejects(closed, { name: 'ClosedError' });
    using next = DeviceBuffer.allocate(16 * MIB);
    const detached = copyPitched({ memory: next, rowPitch: 3500 }, host, extent);
    let elsewhere: ArrayBuffer | undefined;
    setImmediate(() => {
      elsewhere = structuredClone(bytes.buffer, { transfer: [bytes.buffer] });
    });
    await assert.rejects(detached, /the host memory was detached while it was copied/);
    assert.equal(elsewhere?.byteLength, 16 * MIB);
    next.close();
    await context.flush();
    assert.deepEqual(processState(), before);
  });

  test('elements of 1, 2 and 4 bytes are set in rows and slices, and nothing between', async () => {
    using buffer = DeviceBuffer.allocate(BYTES);
    const rows = { memory: buffer, byteOffset: 8, rowPitch: 36, slicePitch: 180 };
    for (const [element, value] of [
      [1, 0xab],
      [2, 0x1234],
      [4, 0xdead_beef],
    ] as const) {
      buffer.fill(0);
      fillPitched(rows, value, { width: 12, height: 4, depth: 3 }, { elementByteLength: element });
      const expected = new DataView(new ArrayBuffer(BYTES));
      for (let z = 0; z < 3; z += 1)
        for (let y = 0; y < 4; y += 1)
          for (let x = 0; x < 12; x += element) {
            const at = 8 + z * 180 + y * 36 + x;
            if (element === 1) expected.setUint8(at, value);
            else if (element === 2) expected.setUint16(at, value, true);
            else expected.setUint32(at, value, true);
          }
      same(buffer.copyToHostSync(), new Uint8Array(expected.buffer));
    }
  });

  test('memory for rows has a pitch that holds them, and is freed as other memory', async () => {
    const context = Context.primary();
    const { free } = context.memoryInfo();
    const { buffer, rowPitch } = allocatePitched(1000, 500, { elementByteLength: 16 });
    assert.ok(rowPitch >= 1000 && rowPitch % 16 === 0);
    assert.equal(buffer.byteLength, rowPitch * 500);
    const image = noise(500_000);
    const extent = { width: 1000, height: 500 };
    await copyPitched({ memory: buffer, rowPitch }, { memory: image }, extent);
    const back = new Uint8Array(500_000);
    await copyPitched({ memory: back }, { memory: buffer, rowPitch }, extent);
    same(back, image);
    buffer.close();
    await context.flush();
    assert.equal(context.memoryInfo().free, free);
    assert.throws(
      () => allocatePitched(0, 1),
      /^RangeError: width must be an integer of at least 1, not 0$/,
    );
    assert.throws(
      () => allocatePitched(2 ** 30, 2 ** 30),
      /^RangeError: height must be an integer from 1 to 8388607, not 1073741824$/,
    );
    assert.throws(
      () => allocatePitched(8, 8, { elementByteLength: 3 as never }),
      /^RangeError: elementByteLength must be 4, 8 or 16, not 3$/,
    );
    assert.throws(() => allocatePitched(2 ** 23, 2 ** 23), { code: 'CUDA_ERROR_OUT_OF_MEMORY' });
  });

  test('rows go over the borders of virtual memory', { skip: skipVirtual }, async () => {
    using memory = VirtualMemory.reserve(8 * MIB);
    memory.grow(1);
    memory.grow(memory.granularity + 1);
    const buffer = memory.grow(2 * memory.granularity + 8192);
    const border = memory.granularity;
    // The first border lies within a row, the second between two.
    const extent = { width: 1000, height: Math.ceil(border / 1024) + 4, depth: 1 };
    const device = { memory: buffer, byteOffset: border - 1500, rowPitch: 1024 };
    const rows = noise(extent.width * extent.height);
    buffer.fill(0);
    await copyPitched(device, { memory: rows }, extent);
    const all = buffer.copyToHostSync();
    const back = new Uint8Array(rows.length);
    copyPitchedSync({ memory: back }, device, extent);
    same(back, rows);
    for (let row = 0; row < extent.height; row += 1) {
      const at = device.byteOffset + row * 1024;
      same(all.subarray(at, at + 1000), rows.subarray(row * 1000, (row + 1) * 1000));
      assert.equal(all[at + 1000], 0);
    }
    fillPitched(device, 0x0505, { ...extent, width: 500 }, { elementByteLength: 2 });
    queuePitchedCopy({ ...device, byteOffset: device.byteOffset + 500 }, device, {
      ...extent,
      width: 500,
    });
    copyPitchedSync({ memory: back }, device, extent);
    same(back, new Uint8Array(rows.length).fill(5));
  });

  test('rows go from one device to another', { skip }, async () => {
    using source = DeviceBuffer.allocate(BYTES, { device: 0 });
    using target = DeviceBuffer.allocate(BYTES, { device: 1 });
    const [bytes, before] = [noise(BYTES), noise(BYTES)];
    source.copyFromSync(bytes);
    for (const copy of [
      () => queuePitchedCopy({ memory: target, ...TO }, { memory: source, ...FROM }, BOX),
      () => copyPitched({ memory: target, ...TO }, { memory: source, ...FROM }, BOX),
      () => copyPitchedSync({ memory: target, ...TO }, { memory: source, ...FROM }, BOX),
    ]) {
      target.copyFromSync(before);
      await copy();
      await source.context.synchronize();
      same(target.copyToHostSync(), modelled(before, bytes));
    }
  });
});
