import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { recordCalls } from '../../ffi/driver.ts';
import { bytesCopied } from '../../ffi/trace.ts';
import {
  Context,
  copyPitchedSync,
  DeviceBuffer,
  fillPitched,
  fromBuffer,
  Stream,
  uint8,
} from '../../src/index.ts';
import { Latch } from '../support/latch.ts';

const counting = (byteLength: number): Uint8Array =>
  new Uint8Array(byteLength).map((_, index) => (index * 31 + (index >> 8)) & 255);

describe('DeviceBuffer', () => {
  test('bytes go to the device and come back, awaited and blocking, in a stream and without', async () => {
    using stream = Stream.create();
    using buffer = DeviceBuffer.allocate(100_000);
    const bytes = counting(buffer.byteLength);
    buffer.copyFromSync(bytes);
    assert.deepEqual(await buffer.copyToHost(), bytes);
    buffer.fill(0);
    await buffer.copyFrom(bytes, { stream });
    assert.deepEqual(buffer.copyToHostSync(undefined, { stream }), bytes);
    buffer.fill(0, { stream });
    buffer.copyFromSync(bytes, { stream });
    assert.deepEqual(await buffer.copyToHost(undefined, { stream }), bytes);
  });

  test('a copy of many slices arrives whole, and the event loop turns meanwhile', async () => {
    using buffer = DeviceBuffer.allocate(33 << 20);
    const bytes = counting(buffer.byteLength);
    let turns = 0;
    const turning = setInterval(() => {
      turns += 1;
    }, 0);
    await buffer.copyFrom(bytes);
    const back = await buffer.copyToHost(new Uint8Array(buffer.byteLength));
    clearInterval(turning);
    assert.ok(turns > 2);
    assert.equal(Buffer.compare(back, bytes), 0);
  });

  test('an awaited copy comes after the work queued before it, without blocking', async () => {
    using stream = Stream.create({ nonBlocking: true });
    using buffer = DeviceBuffer.allocate(4096);
    using latch = new Latch();
    latch.hold(stream);
    buffer.fill(7, { stream });
    const copied = buffer.copyToHost(undefined, { stream });
    assert.equal(stream.done, false);
    setTimeout(() => latch.open(), 5);
    assert.deepEqual(new Set(await copied), new Set([7]));
  });

  test('typed arrays of any kind are read and filled, and keep their type', async () => {
    using buffer = DeviceBuffer.allocate(64);
    const floats = new Float32Array([1.5, -2, Number.NaN, 0]);
    await buffer.copyFrom(floats);
    assert.deepEqual(await buffer.copyToHost(new Float32Array(4)), floats);
    await buffer.copyFrom(new BigInt64Array([-5n]));
    assert.deepEqual(buffer.copyToHostSync(new BigInt64Array(1)), new BigInt64Array([-5n]));
    await buffer.copyFrom(Buffer.from('0123456789'));
    assert.equal((await buffer.copyToHost(Buffer.alloc(10))).toString(), '0123456789');
    await buffer.copyFrom(new DataView(new Uint8Array([1, 2, 3]).buffer, 1));
    assert.deepEqual(await buffer.copyToHost(new Uint8Array(2)), new Uint8Array([2, 3]));
    const shared = new SharedArrayBuffer(4);
    new Uint8Array(shared).set([9, 8, 7, 6]);
    buffer.copyFromSync(shared);
    assert.deepEqual(
      buffer.copyToHostSync(new ArrayBuffer(4)),
      new Uint8Array([9, 8, 7, 6]).buffer,
    );
  });

  test('a subarray is the same memory at its offset', async () => {
    using buffer = DeviceBuffer.allocate(1024);
    buffer.fill(0);
    const part = buffer.subarray(100, 200);
    assert.equal(part.address, buffer.address + 100);
    assert.equal(part.byteLength, 100);
    await part.copyFrom(new Uint8Array(100).fill(5));
    const all = await buffer.copyToHost();
    assert.deepEqual([all[99], all[100], all[199], all[200]], [0, 5, 5, 0]);
    assert.equal(buffer.subarray(1024).byteLength, 0);
    assert.throws(
      () => buffer.subarray(0, 1025),
      /^RangeError: end must be an integer from 0 to 1024, not 1025$/,
    );
    assert.throws(
      () => buffer.subarray(-1),
      /^RangeError: begin must be an integer from 0 to 1024, not -1$/,
    );
    assert.throws(
      () => buffer.subarray(10, 9),
      /^RangeError: end must be an integer from 10 to 1024, not 9$/,
    );
  });

  test('fill sets elements of 1, 2 and 4 bytes', async () => {
    using buffer = DeviceBuffer.allocate(8);
    buffer.fill(0xab);
    assert.deepEqual(new Set(await buffer.copyToHost()), new Set([0xab]));
    buffer.fill(0x1234, { elementByteLength: 2 });
    assert.deepEqual(await buffer.copyToHost(new Uint16Array(4)), new Uint16Array(4).fill(0x1234));
    buffer.fill(0xdead_beef, { elementByteLength: 4 });
    assert.deepEqual(
      await buffer.copyToHost(new Uint32Array(2)),
      new Uint32Array(2).fill(0xdead_beef),
    );
    assert.throws(
      () => buffer.fill(256),
      /^RangeError: value must be an integer from 0 to 255, not 256$/,
    );
    assert.throws(
      () => buffer.fill(1, { elementByteLength: 3 as never }),
      /^RangeError: elementByteLength must be 1, 2 or 4, not 3$/,
    );
    assert.throws(() => buffer.subarray(0, 3).fill(1, { elementByteLength: 2 }), /aligned/);
  });

  test('a copy on the device is queued', async () => {
    using stream = Stream.create();
    using source = DeviceBuffer.allocate(1000);
    using target = DeviceBuffer.allocate(2000);
    const bytes = counting(1000);
    target.fill(1, { stream });
    await source.copyFrom(bytes);
    source.copyTo(target.subarray(500), { stream });
    await stream.synchronize();
    const all = target.copyToHostSync();
    assert.deepEqual(all.subarray(500, 1500), bytes);
    assert.deepEqual([all[499], all[1500]], [1, 1]);
    assert.throws(
      () => target.copyTo(source),
      /2000 bytes \(1.953 KiB\) do not fit in the target, which has 1000 bytes/,
    );
  });

  test('what does not fit is refused with both sizes, and nothing is copied', async () => {
    using buffer = DeviceBuffer.allocate(16);
    const recorder = recordCalls();
    await assert.rejects(buffer.copyFrom(new Uint8Array(17)), {
      name: 'RangeError',
      message: '17 bytes do not fit in the buffer, which has 16 bytes',
    });
    assert.throws(
      () => buffer.copyToHostSync(new Uint8Array(17)),
      /^RangeError: 17 bytes do not fit in the buffer, which has 16 bytes$/,
    );
    await assert.rejects(
      buffer.copyFrom([1, 2, 3] as never),
      /^TypeError: source must be a typed array, DataView, ArrayBuffer or Buffer, not an Array: put numbers into one/,
    );
    await assert.rejects(
      buffer.copyToHost(undefined, { streams: 1 } as never),
      /unknown option 'streams'/,
    );
    recorder.stop();
    assert.equal(bytesCopied(recorder.calls), 0);
  });

  test('invalid sizes are refused before the driver is asked', () => {
    const recorder = recordCalls();
    for (const size of [0, -1, 1.5, Number.NaN, Number.POSITIVE_INFINITY, 2 ** 53])
      assert.throws(
        () => DeviceBuffer.allocate(size),
        /^RangeError: byteLength must be an integer of at least 1, not /,
        String(size),
      );
    for (const size of ['16', null, undefined, 16n])
      assert.throws(
        () => DeviceBuffer.allocate(size as never),
        /^TypeError: byteLength must be a number, not /,
        String(size),
      );
    recorder.stop();
    assert.deepEqual(recorder.calls, []);
  });

  test('an allocation larger than the device is refused, and the error gives the requested and the free bytes', () => {
    assert.throws(() => DeviceBuffer.allocate(2 ** 46), {
      name: 'CudaError',
      code: 'CUDA_ERROR_OUT_OF_MEMORY',
      message: /allocating 70368744177664 bytes \(64 TiB\) with \d+ bytes \([\d.]+ .iB\) free/,
    });
  });

  test('a buffer may be closed twice, refuses use afterwards, and closes its views', async () => {
    const buffer = DeviceBuffer.allocate(64);
    const view = buffer.subarray(0, 8);
    view.subarray(0, 4).close();
    assert.equal(view.closed, false);
    buffer.close();
    buffer.close();
    assert.equal(view.closed, true);
    assert.throws(() => buffer.address, { name: 'ClosedError' });
    await assert.rejects(view.copyToHost(), { name: 'ClosedError' });
    assert.throws(() => view.fill(0), { name: 'ClosedError' });
  });

  test('a borrowed pointer is used and never freed', async () => {
    using owner = DeviceBuffer.allocate(128);
    const borrowed = DeviceBuffer.fromPointer(owner.address, 128, { owner });
    borrowed.fill(3);
    borrowed.close();
    assert.deepEqual(new Set(await owner.copyToHost()), new Set([3]));
    assert.throws(
      () => DeviceBuffer.fromPointer(0, 1),
      /^RangeError: address must be an integer of at least 1, not 0$/,
    );
    assert.throws(
      () => DeviceBuffer.fromPointer(2 ** 53, 1),
      /^RangeError: address must be an integer of at least 1, not 9007199254740992$/,
    );
  });

  test('closing while the GPU is held up returns at once, and frees when it is done', async () => {
    const context = Context.primary();
    const before = context.memoryInfo().free;
    const stream = Stream.create({ nonBlocking: true });
    const latch = new Latch();
    const buffer = DeviceBuffer.allocate(64 << 20);
    latch.hold(stream);
    buffer.fill(1, { stream });
    buffer.close();
    assert.equal(buffer.closed, true);
    assert.equal(before - context.memoryInfo().free, 64 << 20);
    latch.open();
    await context.flush();
    assert.equal(context.memoryInfo().free, before);
    stream.close();
    latch[Symbol.dispose]();
  });

  test('a read-only view is read and copied from, and written to by nothing', async () => {
    using buffer = DeviceBuffer.allocate(64);
    using other = DeviceBuffer.allocate(64);
    buffer.fill(7);
    const view = buffer.subarray(16, 48).readOnly();
    assert.deepEqual(
      [buffer.access, view.access, view.subarray(1, 2).access],
      ['read-write', 'read', 'read'],
    );
    const rows = { memory: view, rowPitch: 16 };
    const box = { width: 8, height: 2 };
    const array = fromBuffer(view, 32, uint8);
    const recorder = recordCalls();
    const refused = { name: 'TypeError', message: /read.only/ };
    assert.throws(() => view.fill(1), refused);
    assert.throws(() => other.subarray(0, 32).copyTo(view), refused);
    assert.throws(() => view.copyFromSync(new Uint8Array(32)), refused);
    await assert.rejects(view.copyFrom(new Uint8Array(32)), refused);
    assert.throws(() => copyPitchedSync(rows, { memory: other, rowPitch: 16 }, box), refused);
    assert.throws(() => fillPitched(rows, 1, box), refused);
    assert.throws(() => array.fill(1), refused);
    recorder.stop();
    assert.deepEqual(recorder.calls, []);
    copyPitchedSync({ memory: other, rowPitch: 16 }, rows, box);
    view.copyTo(other);
    assert.deepEqual(other.subarray(0, 32).copyToHostSync(), new Uint8Array(32).fill(7));
  });
});
