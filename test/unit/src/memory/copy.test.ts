import assert from 'node:assert/strict';
import { once } from 'node:events';
import { test } from 'node:test';
import { recordCalls, selectDriver } from '../../../../ffi/driver.ts';
import { bytesCopied } from '../../../../ffi/trace.ts';
import { Context, copyPitched, DeviceBuffer, Stream } from '../../../../src/index.ts';
import { broken, failing } from '../../../support/faults.ts';
import { Latch } from '../../../support/latch.ts';
import { emulate } from '../emulate.ts';

const counting = (byteLength: number): Uint8Array =>
  new Uint8Array(byteLength).map((_, index) => (index * 31 + (index >> 8)) & 255);
const same = (actual: Uint8Array, expected: Uint8Array): void =>
  assert.equal(Buffer.compare(actual, expected), 0);

const SLICE = 4 << 20;

test('every size around a slice arrives whole, awaited and blocking', async () => {
  emulate();
  for (const byteLength of [1, SLICE - 1, SLICE, SLICE + 1, 3 * SLICE + 5]) {
    using buffer = DeviceBuffer.allocate(byteLength);
    const bytes = counting(byteLength);
    await buffer.copyFrom(bytes);
    same(buffer.copyToHostSync(), bytes);
    buffer.fill(0);
    buffer.copyFromSync(bytes);
    same(await buffer.copyToHost(), bytes);
  }
});

test('memory of every kind is read and filled in place, and handed back as it is', async () => {
  emulate();
  using buffer = DeviceBuffer.allocate(32);
  const bytes = counting(24);
  const shared = new SharedArrayBuffer(24);
  new Uint8Array(shared).set(bytes);
  const sources = [
    bytes,
    bytes.buffer,
    shared,
    Buffer.from(bytes),
    new Uint16Array(bytes.buffer),
    new Float64Array(bytes.buffer),
    new BigInt64Array(bytes.buffer),
    new DataView(bytes.buffer),
  ];
  for (const source of sources) {
    buffer.fill(0);
    await buffer.copyFrom(source);
    same(buffer.copyToHostSync(new Uint8Array(24)), bytes);
  }
  const targets = [
    new Uint8Array(24),
    new ArrayBuffer(24),
    new SharedArrayBuffer(24),
    Buffer.alloc(24),
    new Uint8ClampedArray(24),
    new Int32Array(6),
    new DataView(new ArrayBuffer(24)),
  ];
  for (const target of targets) {
    assert.equal(await buffer.copyToHost(target), target);
    const memory = ArrayBuffer.isView(target)
      ? new Uint8Array(target.buffer, target.byteOffset, target.byteLength)
      : new Uint8Array(target);
    same(memory, bytes);
    memory.fill(0);
    assert.equal(buffer.copyToHostSync(target), target);
    same(memory, bytes);
  }
});

test('a part of an array is copied, and what is around it stays', async () => {
  emulate();
  using buffer = DeviceBuffer.allocate(16);
  buffer.fill(0);
  const bytes = counting(16);
  await buffer.subarray(4, 8).copyFrom(bytes.subarray(10, 14));
  const whole = new Uint8Array(12).fill(9);
  await buffer.subarray(2, 10).copyToHost(whole.subarray(2, 10));
  const expected = new Uint8Array(12).fill(9);
  expected.fill(0, 2, 10);
  expected.set(bytes.subarray(10, 14), 4);
  same(whole, expected);
});

test('nothing is copied of nothing', async () => {
  emulate();
  using buffer = DeviceBuffer.allocate(16);
  const recorder = recordCalls();
  await buffer.copyFrom(new Uint8Array(0));
  buffer.copyFromSync(new ArrayBuffer(0));
  assert.equal((await buffer.copyToHost(new Uint8Array(0))).length, 0);
  assert.equal(buffer.subarray(16).copyToHostSync().length, 0);
  recorder.stop();
  assert.deepEqual(recorder.calls, []);
});

test('what does not fit, or is no memory, is refused and copies nothing', async () => {
  emulate();
  using buffer = DeviceBuffer.allocate(16);
  const detached = new Uint8Array(8);
  structuredClone(detached.buffer, { transfer: [detached.buffer] });
  const recorder = recordCalls();
  const long = { name: 'RangeError', message: '17 bytes do not fit in the buffer, which has 16' };
  await assert.rejects(buffer.copyFrom(new Uint8Array(17)), long);
  assert.throws(() => buffer.copyFromSync(new Uint8Array(17)), long);
  await assert.rejects(buffer.copyToHost(new Uint8Array(17)), long);
  assert.throws(() => buffer.copyToHostSync(new Uint8Array(17)), long);
  for (const wrong of [[1, 2], 'text', 5, {}, null, detached]) {
    await assert.rejects(buffer.copyFrom(wrong as never), TypeError);
    await assert.rejects(buffer.copyToHost(wrong as never), TypeError);
    assert.throws(() => buffer.copyFromSync(wrong as never), TypeError);
    assert.throws(() => buffer.copyToHostSync(wrong as never), TypeError);
  }
  await assert.rejects(
    buffer.copyToHost(undefined, { streem: 1 } as never),
    /known: stream, signal$/,
  );
  await assert.rejects(buffer.copyFrom(detached, { stream: 1 } as never), TypeError);
  recorder.stop();
  assert.deepEqual(recorder.calls, []);
});

test('a signal is checked, and heard when it was aborted, for an empty copy too', async () => {
  emulate();
  using buffer = DeviceBuffer.allocate(16);
  for (const memory of [new Uint8Array(0), new Uint8Array(16)]) {
    for (const signal of [0, null, '', {}]) {
      const options = { signal } as never;
      const wrong = { name: 'TypeError', message: /^signal must be an AbortSignal, not / };
      await assert.rejects(buffer.copyFrom(memory, options), wrong);
      await assert.rejects(buffer.copyToHost(memory, options), wrong);
      const extent = { width: memory.byteLength, height: 1 };
      await assert.rejects(copyPitched({ memory: buffer }, { memory }, extent, options), wrong);
    }
    const aborted = { signal: AbortSignal.abort(new Error('enough')) };
    await assert.rejects(buffer.copyFrom(memory, aborted), /enough/);
    await assert.rejects(buffer.copyToHost(memory, aborted), /enough/);
    const extent = { width: memory.byteLength, height: 1 };
    await assert.rejects(copyPitched({ memory: buffer }, { memory }, extent, aborted), /enough/);
  }
});

test('an event that the driver does not take back is a warning, and the copy is done', async () => {
  const driver = emulate();
  using buffer = DeviceBuffer.allocate(16);
  selectDriver(broken(driver, 'cuEventDestroy_v2', 999));
  const warned = once(process, 'warning');
  await buffer.copyFrom(counting(16));
  const [warning] = await warned;
  assert.equal(warning.code, 'CUFFI_RELEASE');
  assert.match(warning.message, /cuEventDestroy_v2 failed/);
  same(buffer.copyToHostSync(), counting(16));
});

test('an awaited copy waits for the work queued before it, and the loop turns', async () => {
  emulate();
  using stream = Stream.create({ nonBlocking: true });
  using buffer = DeviceBuffer.allocate(4096);
  using latch = new Latch();
  latch.hold(stream);
  buffer.fill(7, { stream });
  let ticks = 0;
  const ticking = setInterval(() => {
    ticks += 1;
    if (ticks === 5) latch.open();
  }, 1);
  const bytes = await buffer.copyToHost(undefined, { stream });
  clearInterval(ticking);
  assert.ok(ticks >= 5);
  assert.deepEqual(new Set(bytes), new Set([7]));
});

test('a copy without a stream waits for blocking streams, and not for the others', async () => {
  emulate();
  using blocking = Stream.create();
  using free = Stream.create({ nonBlocking: true });
  using buffer = DeviceBuffer.allocate(16);
  buffer.fill(1);
  {
    using latch = new Latch();
    latch.hold(free);
    buffer.fill(2, { stream: free });
    assert.deepEqual(new Set(await buffer.copyToHost()), new Set([1]));
  }
  using latch = new Latch();
  latch.hold(blocking);
  buffer.fill(3, { stream: blocking });
  const copied = buffer.copyToHost();
  latch.open();
  assert.deepEqual(new Set(await copied), new Set([3]));
});

test('many copies at once all arrive', async () => {
  emulate();
  using buffer = DeviceBuffer.allocate(1 << 20);
  const parts = Array.from({ length: 64 }, (_, n) => buffer.subarray(n << 14, (n + 1) << 14));
  await Promise.all(parts.map((part, n) => part.copyFrom(new Uint8Array(part.byteLength).fill(n))));
  const back = await Promise.all(parts.map((part) => part.copyToHost()));
  back.forEach((bytes, n) => {
    assert.deepEqual(new Set(bytes), new Set([n]));
  });
});

test('a buffer that is closed during a copy rejects it, and is freed after', async () => {
  emulate();
  const context = Context.primary();
  {
    // The first awaited copy makes the stream that all use.
    using first = DeviceBuffer.allocate(1);
    await first.copyToHost();
  }
  const buffer = DeviceBuffer.allocate(4 * SLICE);
  const { free } = context.memoryInfo();
  const copying = buffer.copyFrom(counting(buffer.byteLength));
  setImmediate(() => buffer.close());
  await assert.rejects(copying, { name: 'ClosedError' });
  await context.flush();
  assert.equal(context.memoryInfo().free, free + 4 * SLICE);
});

test('a buffer that is closed before its copy begins rejects it, and nothing is copied', async () => {
  emulate();
  using stream = Stream.create({ nonBlocking: true });
  const latch = new Latch();
  const buffer = DeviceBuffer.allocate(64);
  latch.hold(stream);
  const recorder = recordCalls();
  const copying = buffer.copyToHost(undefined, { stream });
  buffer.close();
  latch[Symbol.dispose]();
  await assert.rejects(copying, { name: 'ClosedError' });
  recorder.stop();
  assert.equal(bytesCopied(recorder.calls), 0);
  await Context.primary().flush();
});

test('memory that is given away during a copy rejects it', async () => {
  emulate();
  using stream = Stream.create({ nonBlocking: true });
  using buffer = DeviceBuffer.allocate(64);
  const latch = new Latch();
  latch.hold(stream);
  const bytes = new Uint8Array(64);
  const copying = buffer.copyFrom(bytes, { stream });
  structuredClone(bytes.buffer, { transfer: [bytes.buffer] });
  latch[Symbol.dispose]();
  await assert.rejects(copying, {
    name: 'TypeError',
    message: 'the host memory was detached while it was copied',
  });
});

test('copies that fail say how much went where, and the buffer stays usable', async () => {
  const driver = emulate();
  using buffer = DeviceBuffer.allocate(64);
  using stream = Stream.create();
  const faults = [
    ['cuMemcpyHtoD_v2', () => buffer.copyFromSync(new Uint8Array(64)), 'to device'],
    ['cuMemcpyDtoH_v2', () => buffer.copyToHostSync(), 'to host'],
    ['cuMemcpyHtoDAsync_v2', () => buffer.copyFrom(new Uint8Array(64)), 'to device'],
    ['cuMemcpyDtoHAsync_v2', () => buffer.copyToHostSync(undefined, { stream }), 'to host'],
    ['cuMemcpyDtoDAsync_v2', () => buffer.copyTo(buffer), 'on the device'],
  ] as const;
  for (const [call, copy, where] of faults) {
    selectDriver(failing(driver, call, 1, 700));
    await assert.rejects(async () => copy(), {
      name: 'CudaError',
      call,
      doing: `copying 64 bytes ${where}`,
    });
    await copy();
  }
  selectDriver(failing(driver, 'cuMemsetD8Async', 1, 700));
  assert.throws(() => buffer.fill(1), { call: 'cuMemsetD8Async', doing: 'filling 64 bytes' });
});

test('an awaited copy leaves no event behind, and one stream a context', async () => {
  emulate();
  using buffer = DeviceBuffer.allocate(64);
  const recorder = recordCalls();
  for (let n = 0; n < 5; n += 1) await buffer.copyToHost();
  recorder.stop();
  const count = (name: string): number =>
    recorder.calls.filter((call) => call.name === name).length;
  assert.equal(count('cuEventCreate'), 5);
  assert.equal(count('cuEventDestroy_v2'), 5);
  assert.equal(count('cuStreamCreateWithPriority'), 1);
});

test('an awaited copy after a reset uses a stream of the new context', async () => {
  emulate();
  const context = Context.primary();
  using before = DeviceBuffer.allocate(16);
  await before.copyFrom(new Uint8Array(16));
  context.resetSync();
  using after = DeviceBuffer.allocate(16);
  await after.copyFrom(new Uint8Array(16).fill(6));
  assert.deepEqual(new Set(await after.copyToHost()), new Set([6]));
});
