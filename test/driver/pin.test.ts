import assert from 'node:assert/strict';
import { once } from 'node:events';
import { describe, test } from 'node:test';
import { OUT0 } from '../../ffi/arena.ts';
import { cu } from '../../ffi/driver.ts';
import { withAddress } from '../../ffi/native.ts';
import {
  Context,
  DeviceBuffer,
  memoryManager,
  PinnedBuffer,
  pin,
  Stream,
} from '../../src/index.ts';
import { Latch } from '../support/latch.ts';

const MIB = 2 ** 20;

/** Typed arrays that share no page. */
const apart = (): [Uint8Array, Float32Array, DataView] => {
  const memory = new ArrayBuffer(3 * MIB);
  return [
    new Uint8Array(memory, 0, MIB / 2),
    new Float32Array(memory, MIB, MIB / 8),
    new DataView(memory, 2 * MIB, MIB / 2),
  ];
};

/** Whether the driver has an array for page-locked. */
const isLocked = (array: ArrayBufferView): boolean =>
  withAddress(array, (address) =>
    Context.primary().run(() => cu.cuMemHostGetFlags(OUT0, address)),
  ) === 0;

describe('pin', () => {
  test('arrays are page-locked for a scope, and copied as before', async () => {
    const [bytes, floats, view] = apart();
    bytes.fill(7);
    using buffer = DeviceBuffer.allocate(bytes.byteLength);
    {
      using pinned = pin(bytes, floats, view);
      assert.deepEqual(pinned.arrays, [bytes, floats, view]);
      assert.deepEqual([bytes, floats, view].map(isLocked), [true, true, true]);
      await buffer.copyFrom(bytes);
      await buffer.copyToHost(new Uint8Array(view.buffer, view.byteOffset, view.byteLength));
      assert.equal(view.getUint8(1000), 7);
    }
    assert.deepEqual([bytes, floats, view].map(isLocked), [false, false, false]);
    using again = pin(bytes);
    assert.equal(again.closed, false);
  });

  test('pages that are locked already are refused, and then none is locked', () => {
    const [bytes, floats] = apart();
    const beside = bytes.subarray(100, 200);
    assert.throws(() => pin(floats, bytes, beside), {
      name: 'RangeError',
      message: /^arrays\[2\] shares a page with memory that is already page-locked/,
    });
    assert.deepEqual([floats, bytes].map(isLocked), [false, false]);
    using _held = pin(bytes);
    assert.throws(() => pin(floats, beside), /arrays\[1\] shares a page/);
    assert.equal(isLocked(floats), false);
  });

  test('the memory of a PinnedBuffer is pinned already', () => {
    using pinned = PinnedBuffer.allocate(4096);
    using combined = PinnedBuffer.allocate(4096, { writeCombined: true });
    assert.throws(() => pin(pinned.buffer), /arrays\[0\] shares a page with memory/);
    assert.throws(() => pin(new Uint8Array(combined.buffer, 5, 5)), /arrays\[0\] shares a page/);
  });

  test('an array is pinned again while its release waits, and other pages wait with it', async () => {
    const [bytes] = apart();
    using stream = Stream.create({ nonBlocking: true });
    using latch = new Latch();
    const pinned = pin(bytes);
    latch.hold(stream);
    pinned.close();
    assert.throws(
      () => pin(bytes.subarray(1)),
      /1 release waits for the GPU: await context\.flush\(\)/,
    );
    const again = pin(bytes);
    latch.open();
    await Context.primary().flush();
    assert.equal(isLocked(bytes), true);
    again.close();
    assert.equal(isLocked(bytes), false);
  });

  test('what mempin locked is locked again while its release waits, and for the last one unlocked', async () => {
    const [bytes, floats] = apart();
    const context = Context.primary();
    const manager = memoryManager(context);
    using stream = Stream.create({ nonBlocking: true });
    using latch = new Latch();
    const first = manager.mempin(bytes);
    latch.hold(stream);
    assert.throws(() => manager.mempin(bytes), /shares a page/, 'it is not closed');
    first.close();
    for (const [other, options] of [
      [bytes.subarray(1), {}],
      [bytes, { portable: false }],
      [bytes, { mapped: true }],
    ] as const)
      assert.throws(() => manager.mempin(other, options), /1 release waits for the GPU/);
    const again = manager.mempin(bytes);
    assert.throws(() => manager.mempin(bytes), /shares a page/);
    latch.open();
    await context.flush();
    assert.deepEqual([bytes, floats].map(isLocked), [true, false]);
    again.close();
    assert.equal(isLocked(bytes), false);
  });

  test('an array that went to another thread meanwhile is a warning', async () => {
    const array = new Uint8Array(MIB);
    const pinned = pin(array);
    const moved = structuredClone(array.buffer, { transfer: [array.buffer] });
    const warned = once(process, 'warning');
    pinned.close();
    const [warning] = await warned;
    assert.equal(warning.code, 'CUFFI_DETACHED');
    assert.match(warning.message, /^arrays\[0\] of pin\(\) went to another thread/);
    assert.equal(moved.byteLength, MIB);
    assert.throws(() => pin(array), { name: 'TypeError', message: /detached/ });
  });
});
