/** Compares copies and fills of arrays with a slow model of memory: each index and its address. */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import fc from 'fast-check';
import { recordCalls, selectDriver } from '../../../../ffi/driver.ts';
import type { Driver } from '../../../../ffi/functions.ts';
import { CUresult } from '../../../../ffi/results.ts';
import { type Layout, layoutExtents } from '../../../../src/array/layout.ts';
import {
  complex64,
  type DeviceArray,
  DeviceBuffer,
  Dtype,
  deviceArray,
  float32,
  float64,
  fromBuffer,
  int16,
  Stream,
  toNested,
  uint8,
} from '../../../../src/index.ts';
import { broken } from '../../../support/faults.ts';
import { trials } from '../../../support/iterations.ts';
import { addresses, anyShape, bytesOf, orderlyLayout } from '../../../support/layouts.ts';
import { emulate } from '../emulate.ts';

const runs = trials(100, 20_000);
const BYTE_LENGTH = 40_000;

const driver = emulate();

/** With the built-in kernels, and with a driver that does not load them. */
const ways: readonly (readonly [name: string, driver: Driver])[] = [
  ['kernels', driver],
  ['copies of the driver', broken(driver, 'cuModuleLoadDataEx', CUresult.CUDA_ERROR_NOT_SUPPORTED)],
];

/** An array somewhere in a buffer of {@link BYTE_LENGTH} bytes. */
interface Place {
  readonly dtype: Dtype;
  readonly layout: Layout;
}

/** Two layouts of one shape, and the operation on them. */
const cases = fc
  .record({
    shape: anyShape,
    dtype: fc.constantFrom<Dtype>(uint8, int16, float32, float64, complex64, Dtype.bytes(3)),
  })
  .chain(({ shape, dtype }) => {
    const place = fc
      .record({ layout: orderlyLayout(shape, dtype.itemsize), pad: fc.nat(9) })
      .map(({ layout, pad }) => {
        const { low } = layoutExtents(layout);
        return { dtype, layout: { ...layout, byteOffset: layout.byteOffset - low + pad } };
      });
    return fc.record({
      from: place,
      to: place,
      order: fc.constantFrom('C' as const, 'F' as const),
      seed: fc.nat(255),
      isStreamed: fc.boolean(),
    });
  });

const arrayAt = (buffer: DeviceBuffer, { dtype, layout }: Place): DeviceArray => {
  const { shape, strides, byteOffset } = layout;
  return fromBuffer(buffer, shape, dtype, { strides, byteOffset });
};

const pattern = (byteLength: number, seed: number): Uint8Array =>
  Uint8Array.from({ length: byteLength }, (_, i) => i * 31 + seed + (i >> 8));

const bytesFrom = (values: ArrayBufferView): Uint8Array =>
  new Uint8Array(values.buffer, values.byteOffset, values.byteLength);

const valuesOf = (dtype: Dtype, bytes: Uint8Array): InstanceType<typeof dtype.TypedArray> =>
  new dtype.TypedArray(Uint8Array.from(bytes).buffer);

/** The bytes of the items in sequence, in an order. */
const gathered = (memory: Uint8Array, layout: Layout, order: 'C' | 'F'): Uint8Array =>
  Uint8Array.from(
    addresses(layout, order).flatMap((at) => [...memory.subarray(at, at + layout.itemsize)]),
  );

/** The memory with the items written to it. */
function scattered(memory: Uint8Array, layout: Layout, order: 'C' | 'F', items: Uint8Array) {
  const result = Uint8Array.from(memory);
  for (const [n, at] of addresses(layout, order).entries())
    result.set(items.subarray(n * layout.itemsize, (n + 1) * layout.itemsize), at);
  return result;
}

const same = (actual: Uint8Array, expected: Uint8Array): void =>
  assert.ok(Buffer.compare(actual, expected) === 0, 'the bytes differ');

describe('array transfers', () => {
  test('copies between host and device transfer the items as the model does, and no other byte', async () => {
    using buffer = DeviceBuffer.allocate(BYTE_LENGTH);
    using stream = Stream.create({ nonBlocking: true });
    await fc.assert(
      fc.asyncProperty(cases, async ({ from: place, order, seed, isStreamed }) => {
        const { dtype, layout } = place;
        const memory = pattern(BYTE_LENGTH, seed);
        buffer.copyFromSync(memory);
        const array = arrayAt(buffer, place);
        const options = isStreamed ? { order, stream } : { order };
        const expected = gathered(memory, layout, order);
        same(bytesFrom(await array.copyToHost(undefined, options)), expected);
        same(bytesFrom(array.copyToHostSync(undefined, options)), expected);
        for (const write of ['copyFrom', 'copyFromSync'] as const) {
          const items = pattern(array.byteLength, seed + 7);
          buffer.copyFromSync(memory);
          await array[write](valuesOf(dtype, items), options);
          same(buffer.copyToHostSync(), scattered(memory, layout, order, items));
        }
      }),
      runs,
    );
  });

  for (const [way, chosen] of ways) {
    test(`copies between arrays match the model, also within the same memory, by ${way}`, async () => {
      selectDriver(chosen);
      using source = DeviceBuffer.allocate(BYTE_LENGTH);
      using other = DeviceBuffer.allocate(BYTE_LENGTH);
      using stream = Stream.create();
      await fc.assert(
        fc.asyncProperty(cases, async ({ from, to, seed, isStreamed }) => {
          const memory = pattern(BYTE_LENGTH, seed);
          const items = gathered(memory, from.layout, 'C');
          for (const buffer of [source, other]) {
            for (const each of [source, other]) each.copyFromSync(memory);
            arrayAt(source, from).copyTo(arrayAt(buffer, to), isStreamed ? { stream } : {});
            await stream.synchronize();
            same(buffer.copyToHostSync(), scattered(memory, to.layout, 'C', items));
          }
        }),
        runs,
      );
    });
  }

  for (const [way, chosen] of ways) {
    test(`a fill sets each byte of each item, and no byte between, by ${way}`, () => {
      selectDriver(chosen);
      using buffer = DeviceBuffer.allocate(BYTE_LENGTH);
      fc.assert(
        fc.property(cases, fc.boolean(), ({ from: { dtype, layout }, seed }, isEven) => {
          const memory = pattern(BYTE_LENGTH, seed);
          buffer.copyFromSync(memory);
          const raw = Dtype.bytes(dtype.itemsize);
          const item = isEven
            ? new Uint8Array(dtype.itemsize).fill(seed)
            : pattern(dtype.itemsize, seed);
          arrayAt(buffer, { dtype: raw, layout }).fill(item);
          const items = Uint8Array.from(addresses(layout).flatMap(() => [...item]));
          same(buffer.copyToHostSync(), scattered(memory, layout, 'C', items));
        }),
        runs,
      );
    });
  }

  for (const [way, chosen] of ways) {
    test(`a fill of many items takes few calls, by ${way}`, () => {
      selectDriver(chosen);
      for (const [shape, pitch, most] of [
        [[5000], 8, 8],
        [[300, 100], 1000, 20],
        [[20, 20, 20], 72, 30],
      ] as const) {
        const strides = shape.map((_, axis) => pitch * 24 ** (shape.length - 1 - axis));
        if (shape.length === 2) strides[1] = 8;
        using array = deviceArray(shape, float64, { strides });
        array.buffer.fill(0);
        const recorder = recordCalls();
        array.fill(1.1);
        recorder.stop();
        assert.deepEqual(new Set(array.copyToHostSync()), new Set([1.1]));
        const bytes = array.buffer.copyToHostSync();
        assert.equal(bytes.filter((byte) => byte !== 0).length, array.size * 8);
        const work = recorder.calls.filter(({ name }) => /Memset|Memcpy|Launch/.test(name));
        assert.ok(work.length <= most, `${work.length} calls for ${shape}`);
      }
    });
  }

  test('a broadcast source is written to every item', async () => {
    using buffer = DeviceBuffer.allocate(BYTE_LENGTH);
    using small = DeviceBuffer.allocate(BYTE_LENGTH);
    await fc.assert(
      fc.asyncProperty(cases, fc.integer({ min: 0, max: 15 }), async ({ from, seed }, mask) => {
        const { dtype, layout } = from;
        const memory = pattern(BYTE_LENGTH, seed);
        buffer.copyFromSync(memory);
        const shape = layout.shape.map((length, axis) => (mask & (1 << axis) ? 1 : length));
        const size = shape.reduce((product, length) => product * length, 1);
        const items = pattern(size * dtype.itemsize, seed + 3);
        small.copyFromSync(items);
        const compact = fromBuffer(small, shape, dtype);
        const expected = compact.broadcastTo(layout.shape).copyToHostSync();
        const target = arrayAt(buffer, from);
        await target.set(['...'], compact);
        same(buffer.copyToHostSync(), scattered(memory, layout, 'C', bytesFrom(expected)));
        same(bytesFrom(expected), gathered(items, compact.broadcastTo(layout.shape).layout, 'C'));
        // Empty nested arrays do not have their other sizes.
        if (size === 0 || (dtype.name !== 'uint8' && dtype.name !== 'int16')) return;
        buffer.copyFromSync(memory);
        target.setSync(['...'], toNested(compact.copyToHostSync(), shape));
        same(buffer.copyToHostSync(), scattered(memory, layout, 'C', bytesFrom(expected)));
      }),
      runs,
    );
  });

  test('the model has no items that share a byte', () => {
    fc.assert(
      fc.property(cases, ({ from: { layout } }) => {
        const bytes = bytesOf(layout);
        assert.equal(new Set(bytes).size, bytes.length);
      }),
      runs,
    );
  });
});
