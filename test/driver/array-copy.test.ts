/** Copies of arrays: when they happen, between what, and what is left when they fail. */
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { describe, test } from 'node:test';
import { setImmediate as turn } from 'node:timers/promises';
import { inspect } from 'node:util';
import { recordCalls } from '../../ffi/driver.ts';
import {
  ClosedError,
  Context,
  Device,
  type DeviceArray,
  DeviceBuffer,
  deviceArray,
  float32,
  float64,
  fromBuffer,
  int32,
  type ManagedMemory,
  MemoryPool,
  managedArray,
  mappedArray,
  pinnedArray,
  Stream,
  toDevice,
  toDeviceSync,
  uint8,
} from '../../src/index.ts';
import { emulated } from '../support/driver.ts';
import { Latch } from '../support/latch.ts';
import { type NumpyLayout, NumpyMemory } from '../support/layouts.ts';
import { collectGarbage } from '../support/process-state.ts';

// Read when the emulated driver is opened, at its first call.
if (emulated) process.env['CUFFI_EMULATED_DEVICES'] = '2';

const arange = (length: number): Float32Array => Float32Array.from({ length }, (_, i) => i);

/** A matrix so wide that the bytes between the items of a column are not worth copying. */
const WIDE = [300, 400] as const;
const wide = (): DeviceArray<typeof float32> => toDeviceSync(arange(300 * 400), { shape: WIDE });

/** Views that come to the host, and go back, each by another way. */
const ways: readonly ((array: DeviceArray<typeof float32>) => DeviceArray<typeof float32>)[] = [
  (array) => array,
  (array) => array.slice({ start: 3, stop: 9 }, { start: 5, stop: 50 }),
  (array) => array.T,
  (array) => array.slice({ step: -1 }),
  (array) => array.slice('...', 7),
  (array) => array.reshape([30, 10, 400]).slice({ step: 2 }, { step: 3 }, { step: 100 }),
];

/** The items of a view of {@link wide}, by the same steps on numbers. */
const expected = (view: DeviceArray<typeof float32>): Float32Array => {
  const [begin, ...places] = [view.byteOffset / 4, ...view.shape.keys()];
  const found = places.reduce(
    (starts, axis) =>
      starts.flatMap((start) =>
        Array.from(
          { length: view.shape[axis] as number },
          (_, i) => start + (i * (view.strides[axis] as number)) / 4,
        ),
      ),
    [begin as number],
  );
  return Float32Array.from(found);
};

describe('copies of device arrays', () => {
  test('an awaited copy comes after the work queued in its stream, whichever way it goes', async () => {
    using array = wide();
    using stream = Stream.create({ nonBlocking: true });
    for (const way of ways) {
      const view = way(array);
      const values = expected(view);
      const doubled = values.map((value) => 2 * value);
      for (const place of [view.withStream(stream), view]) {
        const options = place.stream ? {} : { stream };
        using latch = new Latch();
        latch.hold(stream);
        array.fill(-1, { stream });
        place.fill(5, options);
        const settled: string[] = [];
        const read = place.copyToHost(undefined, options).then((result) => {
          settled.push('read');
          return result;
        });
        await turn();
        await turn();
        assert.deepEqual(settled, []);
        latch.open();
        assert.deepEqual(new Set(await read), new Set([5]));
        await view.copyFrom(doubled, { stream });
        assert.deepEqual(await view.copyToHost(), doubled);
        array.copyFromSync(arange(array.size));
      }
      assert.deepEqual(view.copyToHostSync(), values);
      assert.deepEqual(await view.copyToHost(new Float32Array(view.size), { stream }), values);
    }
  });

  test('an array is made of arrays of the host in either order, and filled again', async () => {
    using array = await toDevice(arange(6), { shape: [2, 3], order: 'F' });
    assert.deepEqual([array.strides, array.isFContiguous], [[4, 8], true]);
    assert.deepEqual(await array.copyToHost(), Float32Array.of(0, 2, 4, 1, 3, 5));
    assert.deepEqual(await array.copyToHost(undefined, { order: 'F' }), arange(6));
    assert.equal(
      await toDevice(
        [
          [5, 4, 3],
          [2, 1, 0],
        ],
        { to: array },
      ),
      array,
    );
    assert.deepEqual(await array.get(0, 2), 3);
    await array.copyFrom(arange(6));
    assert.deepEqual(array.copyToHostSync(), arange(6));
    using unfilled = await toDevice([[1, 2]], { copy: false });
    assert.deepEqual([unfilled.shape, unfilled.dtype], [[1, 2], float64]);
  });

  test('an array is made of another by a copy of its own, unless that is not wanted', async () => {
    using array = wide();
    using stream = Stream.create();
    assert.equal(await toDevice(array, { copy: false }), array);
    using copy = await toDevice(array.T, { stream });
    assert.deepEqual([copy.isCContiguous, copy.stream], [true, stream]);
    array.fill(0);
    assert.equal(await copy.get(2, 299), 299 * 400 + 2);
    using pool = MemoryPool.create();
    using pooled = copy.copy({ memory: pool });
    assert.equal(pooled.buffer.resource, pool);
    assert.equal(await pooled.get(399, 299), 300 * 400 - 1);
  });

  test('an array is copied to another device', {
    skip: Device.count < 2 ? 'needs a second GPU' : false,
  }, async () => {
    using array = wide();
    const view = array.slice({ step: 2 }, { step: -3 });
    using there = await toDevice(view, { device: 1 });
    assert.equal(there.context.device.ordinal, 1);
    assert.deepEqual(await there.copyToHost(), expected(view));
    there.fill(9);
    await array.slice({ step: 2 }, { step: -3 }).copyFrom(there);
    assert.deepEqual([await array.get(0, 399), await array.get(1, 399)], [9, 799]);
  });

  test('arrays without items are legal everywhere, and ask nothing of the driver', async () => {
    const context = Context.primary();
    using stream = Stream.create();
    using full = wide();
    using recorder = recordCalls();
    using empty = deviceArray([0, 3], float32, { context });
    using other = await toDevice([[], []], { dtype: float32, context, stream });
    assert.deepEqual([empty.address, other.shape], [0, [2, 0]]);
    for (const view of [empty, empty.T, full.slice({ stop: 0 }), empty.reshape([5, 0])]) {
      assert.equal((await view.copyToHost()).length, 0);
      assert.equal(view.copyToHostSync(new Float32Array(0), { stream }).length, 0);
      await view.copyFrom(new Float32Array(0));
      view.fill(1);
      await view.set([], 1);
      view.copyTo(view);
      using copy = view.copy();
      assert.equal(copy.size, 0);
    }
    assert.equal(inspect(empty), 'DeviceArray(float32 [0, 3] on cuda:0, C)');
    assert.equal(pinnedArray([0]).host.length, 0);
    assert.equal(mappedArray([2, 0]).host.length, 0);
    empty.close();
    await assert.rejects(empty.copyToHost(), /^ClosedError: this DeviceArray is closed: /);
    assert.deepEqual(
      recorder.calls.map(({ name }) => name),
      [],
    );
  });

  test('closing the array closes its views; closing a view forgets it', async () => {
    const array = wide();
    const view = array.slice(1);
    const part = view.slice({ stop: 5 });
    view.close();
    assert.deepEqual([view.closed, part.closed, array.closed], [true, false, false]);
    assert.throws(() => view.copyToHostSync(), /^ClosedError: this DeviceArray is closed: /);
    assert.deepEqual(await part.copyToHost(), Float32Array.of(400, 401, 402, 403, 404));
    array.close();
    array.close();
    assert.deepEqual([part.closed, array.buffer.closed], [true, true]);
    for (const use of [() => part.address, () => array.T, () => part.fill(1), () => array.host])
      assert.throws(use, /^ClosedError: this DeviceArray is closed: /);
    await assert.rejects(part.set([0], 1), /^ClosedError: this DeviceArray is closed: /);
    await assert.rejects(toDevice(part), /^ClosedError: this DeviceArray is closed: /);
    assert.match(inspect(part), /^DeviceArray\(float32 \[5\] on cuda:0, C, closed\)$/);
  });

  test('a copy of an array that is closed meanwhile rejects, whichever way it goes', async () => {
    using stream = Stream.create({ nonBlocking: true });
    for (const way of ways) {
      using latch = new Latch();
      const [array, other] = [wide(), wide()];
      const [from, to] = [way(array), way(other)];
      latch.hold(stream);
      const copies = [
        from.copyToHost(undefined, { stream }),
        to.copyFrom(new Float32Array(to.size), { stream }),
      ];
      array.close();
      other.close();
      const settled = Promise.allSettled(copies);
      latch.open();
      for (const copy of await settled)
        assert.ok(copy.status === 'rejected' && copy.reason instanceof ClosedError);
    }
  });

  test('a view keeps the memory of an array that nobody has any more', async () => {
    const view = (() => wide().slice(299))();
    const { buffer } = view;
    await collectGarbage();
    assert.equal(buffer.closed, false);
    assert.equal(view.getSync(399), 300 * 400 - 1);
    buffer.close();
    assert.equal(view.closed, true);
  });

  test('what does not fit is refused, and nothing is copied', async () => {
    using array = wide();
    using other = deviceArray(WIDE);
    assert.throws(() => array.copyTo(other as never), /cannot copy float32 to float64/);
    assert.throws(
      () => array.copyTo(array.T),
      /cannot copy shape \[300, 400\] to shape \[400, 300\]/,
    );
    assert.throws(
      () => array.copyTo(array.buffer as never),
      /^TypeError: target must be a DeviceArray, not a DeviceBuffer$/,
    );
    const wide2 = array.slice(0).broadcastTo(WIDE);
    for (const use of [() => wide2.fill(1), () => array.copyTo(wide2)])
      assert.throws(use, /is read only/);
    const overlapping = fromBuffer(array.buffer, [10, 10], float32, {
      strides: [4, 4],
    });
    assert.throws(() => overlapping.fill(1), /overlaps itself/);
    assert.deepEqual((await overlapping.copyToHost()).subarray(9, 12), Float32Array.of(9, 1, 2));
    await assert.rejects(
      array.copyFrom(new Float32Array(7)),
      /source has 7 elements, but shape \[300, 400\]/,
    );
    await assert.rejects(
      array.copyFrom([[1, 2]]),
      /cannot copy shape \[1, 2\] to shape \[300, 400\]/,
    );
    await assert.rejects(
      array.copyFrom(new Float64Array(120_000) as never),
      /Float64Array, not a Float32Array/,
    );
    await assert.rejects(array.copyToHost(new Float32Array(7)), /into has 7 elements/);
    assert.throws(
      () => array.copyToHostSync(new Int32Array(120_000) as never),
      /must be a Float32Array/,
    );
    await assert.rejects(
      array.copyToHost(null as never),
      /^TypeError: into must be a Float32Array/,
    );
    assert.throws(
      () => deviceArray(0, float32, { memory: {} as never }),
      /must be a memory resource/,
    );
    await assert.rejects(
      array.copyToHost(undefined, { order: 'A' as never }),
      /^TypeError: order must be 'C' or 'F', not A$/,
    );
    await assert.rejects(array.copyToHost(undefined, { signal: AbortSignal.abort() }), /abort/i);
    await assert.rejects(array.set([0], 1, { signal: AbortSignal.abort() }), /abort/i);
    await assert.rejects(toDevice([1], { signal: AbortSignal.abort() }), /abort/i);
    await assert.rejects(
      toDevice([1], { signal: {} as never }),
      /^TypeError: signal must be an AbortSignal, not an Object$/,
    );
    (await toDevice([1], { signal: new AbortController().signal })).close();
    await assert.rejects(toDevice(array, { shape: [3] } as never), /has its own shape/);
    await assert.rejects(toDevice([1], { to: array, device: 0 }), /has its own device/);
    await assert.rejects(toDevice(array, { copy: false, device: 0 }), /has its own device/);
    assert.deepEqual(array.copyToHostSync(), arange(120_000));
  });

  test('printing shows the first values, but waits for nobody', () => {
    using array = toDeviceSync(arange(8), { shape: [2, 4] });
    using stream = Stream.create({ nonBlocking: true });
    assert.equal(
      inspect(array.T),
      'DeviceArray(float32 [4, 2] on cuda:0, F) [0, 4, 1, 5, 2, 6, … 2 more]',
    );
    assert.equal(String(array.slice('...', 1)), 'DeviceArray(float32 [2] on cuda:0, strides [16])');
    {
      using latch = new Latch();
      latch.hold(stream);
      array.fill(3, { stream });
      assert.match(inspect(array), /\[not read: work is queued\]$/);
    }
    assert.match(inspect([array]), /\[3, 3, 3, 3, 3, 3, … 2 more\]/);
  });

  test('pinned, mapped and managed arrays are typed arrays of the host too', async () => {
    using pinned = pinnedArray([2, 3], int32, { order: 'F' });
    pinned.host.set([1, 2, 3, 4, 5, 6]);
    using array = await toDevice(pinned);
    assert.deepEqual([array.shape, array.getSync(1, 0)], [[2, 3], 2]);
    await array.copyFrom(pinned);
    await array.copyToHost(pinned.host);
    assert.deepEqual(pinned.host, Int32Array.of(1, 3, 5, 2, 4, 6));
    pinned.close();
    assert.throws(() => pinned.host, /^ClosedError: this PinnedArray is closed: /);
    using mapped = mappedArray([2, 3], int32);
    mapped.host.set([1, 2, 3, 4, 5, 6]);
    assert.deepEqual(await mapped.T.copyToHost(), Int32Array.of(1, 4, 2, 5, 3, 6));
    await mapped.set([1], 7);
    assert.deepEqual(mapped.slice(1).host, Int32Array.of(7, 7, 7));
    assert.throws(() => mapped.slice('...', 1).host, /are not contiguous/);
    assert.throws(() => array.host, /the CPU cannot access this memory/);
    using managed = managedArray([3], uint8);
    await managed.set([], 9);
    const { hostAccessible } = managed.buffer.resource as ManagedMemory;
    if (hostAccessible) assert.deepEqual(managed.host, Uint8Array.of(9, 9, 9));
    assert.equal(managed.getSync(2), 9);
  });

  test('a few items come as they lie, in memory of their own, and behind the work queued before', () => {
    using array = toDeviceSync(arange(24), { shape: [4, 6] });
    const first = array.slice(1).copyToHostSync();
    array.fill(7);
    const second = array.slice(1).copyToHostSync();
    assert.deepEqual(first, Float32Array.of(6, 7, 8, 9, 10, 11));
    assert.deepEqual(second, new Float32Array(6).fill(7));
    assert.notEqual(first.buffer, second.buffer);
    assert.equal(second.buffer.byteLength, 24);
    array.copyFromSync(arange(24));
    const expectedF = Array.from({ length: 24 }, (_, at) => (at % 4) * 6 + Math.floor(at / 4));
    assert.deepEqual(array.copyToHostSync(undefined, { order: 'F' }), Float32Array.from(expectedF));
    assert.deepEqual(array.T.copyToHostSync(undefined, { order: 'F' }), arange(24));
    assert.throws(
      () => array.copyToHostSync(undefined, { order: 'A' as 'C' }),
      /^TypeError: order must be 'C' or 'F', not A$/,
    );
    const bytes = new Uint8Array(6);
    array.buffer.subarray(4, 8).copyToHostSync(bytes.subarray(1, 5));
    assert.deepEqual(bytes, Uint8Array.of(0, 0, 0, 0x80, 0x3f, 0));
    array.close();
    assert.throws(() => array.copyToHostSync(), /^ClosedError: this DeviceArray is closed: /);
  });

  test('an array of strides of its own has the memory that they reach', () => {
    using array = deviceArray([3, 4], float32, { strides: [-32, 8] });
    assert.equal(array.buffer.byteLength, 64 + 24 + 4);
    assert.deepEqual(array.extents, { low: array.buffer.address, high: array.buffer.address + 92 });
    using buffer = DeviceBuffer.allocate(8);
    array.copyFromSync(arange(12));
    assert.deepEqual(array.copyToHostSync(), arange(12));
    assert.throws(
      () => fromBuffer(buffer, 3, float32),
      /^RangeError: items of shape \[3\] with strides \[4\] reach from byte 0 to 12: the buffer/,
    );
  });

  test('2,000 layouts reach as far, are as contiguous and have the same items as in NumPy', () => {
    const fixture = new URL('../unit/src/array/fixtures/layouts.json', import.meta.url);
    const layouts = JSON.parse(readFileSync(fixture, 'utf8')) as NumpyLayout[];
    assert.equal(layouts.length, 2000);
    using memory = new NumpyMemory();
    for (const layout of layouts) memory.assertAgrees(layout);
  });
});
