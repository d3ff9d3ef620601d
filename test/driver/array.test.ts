/** Arrays as numba's tests have them: attributes, views, indexing and assignment. */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import type { Layout } from '../../src/array/layout.ts';
import {
  bfloat16,
  bool,
  complex64,
  DeviceArray,
  DeviceBuffer,
  Dtype,
  deviceArray,
  deviceArrayLike,
  float16,
  float32,
  float64,
  fromBuffer,
  fromPointer,
  int32,
  int64,
  managedArray,
  mappedArray,
  type Nested,
  pinnedArray,
  toDevice,
  toDeviceSync,
  toNested,
  uint8,
  uint16,
  uint32,
} from '../../src/index.ts';

const arange = (length: number): Int32Array => Int32Array.from({ length }, (_, i) => i);
const counted = (...shape: number[]): DeviceArray<typeof int32> =>
  toDeviceSync(arange(shape.reduce((size, length) => size * length, 1)), { shape });
const items = (array: DeviceArray<typeof int32>): Nested<unknown> =>
  toNested(array.copyToHostSync(), array.shape);
const range = (from: number, to: number): number[] =>
  Array.from({ length: to - from }, (_, i) => from + i);

describe('DeviceArray', () => {
  test('an array says what it is', () => {
    using array = deviceArray([2, 3, 4], float32);
    assert.deepEqual(
      [array.shape, array.strides, array.ndim, array.size, array.byteLength, array.dtype],
      [[2, 3, 4], [48, 16, 4], 3, 24, 96, float32],
    );
    assert.equal(array.address, array.buffer.address);
    assert.deepEqual(array.extents, { low: array.address, high: array.address + 96 });
    assert.ok(Object.isFrozen(array.shape) && Object.isFrozen(array.strides));
    const plain = deviceArray(100);
    assert.deepEqual([plain.shape, plain.dtype, plain.stream], [[100], float64, undefined]);
    using single = toDeviceSync(1.234);
    assert.deepEqual([single.ndim, single.size, single.getSync()], [0, 1, 1.234]);
    plain.close();
  });

  test('contiguity is NumPy’s, for both orders and for axes of size 1', () => {
    for (const shape of [
      [2, 5],
      [2, 5, 2],
      [2, 5, 2, 3],
    ]) {
      using c = deviceArray(shape);
      using f = deviceArray(shape, float64, { order: 'F' });
      assert.deepEqual([c.isCContiguous, c.isFContiguous], [true, false]);
      assert.deepEqual([f.isCContiguous, f.isFContiguous], [false, true]);
      assert.deepEqual([c.T.isFContiguous, f.T.isCContiguous], [true, true]);
    }
    using row = deviceArray([1, 10], float64, { strides: [800, 8] });
    assert.deepEqual([row.isCContiguous, row.isFContiguous], [true, true]);
    using square = counted(5, 5);
    assert.deepEqual(
      [square.slice(2).isCContiguous, square.slice('...', 2).isCContiguous],
      [true, false],
    );
  });

  test('a name stands for its dtype, wherever a dtype is taken', async () => {
    using buffer = DeviceBuffer.allocate(16);
    using pinned = pinnedArray(2, 'int64');
    const { address } = buffer;
    const made: readonly DeviceArray[] = [
      deviceArray(2, 'int64'),
      deviceArrayLike({ shape: [2], dtype: 'int64' }),
      deviceArrayLike(counted(2), { dtype: 'int64' }),
      mappedArray(2, 'int64'),
      managedArray(2, 'int64'),
      await toDevice([1, 2], { dtype: 'int64' }),
      toDeviceSync([1, 2], { dtype: 'int64' }),
      fromBuffer(buffer, 2, 'int64'),
      fromPointer(address, { shape: 2, dtype: 'int64', owner: buffer }),
      counted(4).view('int64'),
    ];
    for (const [at, array] of made.entries())
      assert.deepEqual([array.dtype, array.shape], [int64, [2]], `${at}`);
    assert.equal(pinned.dtype, int64);
    assert.deepEqual(toNested(new Uint8Array([1, 0]), [2], { dtype: 'bool' }), [true, false]);
    assert.equal(deviceArray(1, 'V12').dtype.itemsize, 12);
    await assert.rejects(toDevice([1], { to: counted(1), dtype: 'int64' } as never), /is of int32/);
    for (const array of made) array.close();
  });

  test('an array like another keeps the order of its axes, without its gaps', () => {
    using array = counted(4, 5, 6);
    const turned = array.slice({ step: 2 }).transpose([1, 2, 0]);
    using like = deviceArrayLike(turned);
    assert.deepEqual(
      [like.shape, like.strides],
      [
        [5, 6, 2],
        [24, 4, 120],
      ],
    );
    using other = deviceArrayLike(turned, { dtype: int64, order: 'F' });
    assert.deepEqual([other.dtype, other.strides], [int64, [8, 40, 240]]);
  });

  test('ravel and reshape are views of contiguous items, and say to copy others', () => {
    using array = counted(2, 5, 2, 3);
    for (const order of ['C', 'F'] as const) {
      using lying = array.copy({ order });
      const flat = lying.ravel({ order });
      assert.equal(flat.address, lying.address);
      assert.deepEqual(flat.copyToHostSync(), array.copyToHostSync(undefined, { order }));
      assert.deepEqual(lying.reshape([10, -1], { order }).shape, [10, 6]);
    }
    const gaps = array.slice({ step: 2 }, { step: 2 }, { step: 2 }, { step: 2 });
    assert.equal(gaps.address, array.address);
    assert.throws(() => gaps.ravel(), /must be copied to be \[6\] in order C: .+ array\.copy/);
    assert.throws(
      () => array.T.reshape([60]),
      /^RangeError: items of shape \[3, 2, 5, 2\] with strides \[4, 12, 24, 120\] must be copied/,
    );
    using copy = gaps.copy();
    assert.deepEqual(items(copy.ravel()), [0, 2, 12, 14, 24, 26]);
    assert.throws(() => array.reshape([7]), /cannot reshape 60 elements into \[7\]/);
  });

  test('axes are moved, added and taken away without a copy', () => {
    using array = counted(3, 4, 1);
    assert.deepEqual(items(array.transpose([1, 2, 0])), [
      [[0, 4, 8]],
      [[1, 5, 9]],
      [[2, 6, 10]],
      [[3, 7, 11]],
    ]);
    const flat = array.squeeze();
    assert.deepEqual(items(flat.T), toNested(arange(12), [4, 3], { order: 'F' }));
    assert.deepEqual(
      [flat.shape, flat.expandDims(1).shape],
      [
        [3, 4],
        [3, 1, 4],
      ],
    );
    assert.throws(() => flat.transpose([0, 0]), /axis 0 is given twice/);
    assert.throws(() => flat.transpose([0, 2]), /axis 2 is out of bounds/);
    const wide = flat.broadcastTo([2, 3, 4]);
    assert.deepEqual(items(wide.slice(1)), items(flat));
    assert.equal(wide.readOnly, true);
  });

  test('bytes are seen as another dtype where they make whole items', () => {
    using array = toDeviceSync(Int16Array.from(arange(12)), { shape: [3, 4] });
    const asWords = new Uint32Array(Int16Array.from(arange(12)).buffer);
    assert.deepEqual(array.view(uint32).copyToHostSync(), asWords);
    assert.deepEqual(array.view(float64).shape, [3, 1]);
    assert.deepEqual(array.slice('...', { step: 2 }).view(uint16).shape, [3, 2]);
    assert.throws(() => array.slice('...', { step: 2 }).view(int32), /last axis is not contiguous/);
    using odd = array.reshape([4, 3]);
    assert.throws(() => odd.view(int32), /cannot view the last axis/);
  });

  test('an array is split into parts that are views, as numba does and as NumPy does', async () => {
    using array = counted(100);
    const [left, right] = array.split({ size: 50 });
    assert.deepEqual(await left?.copyToHost(), arange(50));
    assert.deepEqual(await right?.copyToHost(), arange(100).subarray(50));
    const sizes = (parts: readonly DeviceArray[]): number[] => parts.map(({ size }) => size);
    assert.deepEqual(sizes(array.split({ size: 30 })), [30, 30, 30, 10]);
    assert.deepEqual(sizes(array.split(4)), [25, 25, 25, 25]);
    assert.deepEqual(sizes(array.split([10, 90])), [10, 80, 10]);
    assert.throws(
      () => array.split(3),
      /^RangeError: cannot split 100 of shape \[100\] into 3 parts of the same size$/,
    );
  });

  test('every item is found by its indices, also from the end, and none beyond', async () => {
    using array = counted(3, 4, 5);
    for (const i of range(-3, 3))
      for (const j of range(-4, 4))
        for (const k of [-5, -1, 0, 4]) {
          const at = (((i + 3) % 3) * 4 + ((j + 4) % 4)) * 5 + ((k + 5) % 5);
          assert.equal(array.getSync(i, j, k), at);
        }
    assert.equal(await array.get(2, 3, 4), 59);
    for (const wrong of [
      [-4, 0, 0],
      [3, 0, 0],
      [0, -5, 0],
      [0, 4, 0],
      [0, 0, -6],
      [0, 0, 5],
    ])
      await assert.rejects(
        array.get(...wrong),
        /index -?\d is out of bounds for axis \d with size \d/,
      );
    await assert.rejects(array.get(1, 2), /has 3 indices, not 2/);
    await assert.rejects(
      array.get(0.5, 0, 0),
      /^RangeError: index must be an integer of at least -9007199254740991, not 0\.5$/,
    );
  });

  test('slices are Python’s: prefixes, steps, from the end, and empty ones', () => {
    using array = counted(6, 7);
    const model = range(0, 6).map((row) => range(row * 7, row * 7 + 7));
    for (const i of range(0, 6))
      for (const j of range(0, 7)) {
        const part = array.slice({ start: i, step: 2 }, { start: j, step: 2 });
        const expected = model.filter((_, at) => at >= i && (at - i) % 2 === 0);
        assert.deepEqual(
          items(part),
          expected.map((row) => row.filter((_, at) => at >= j && (at - j) % 2 === 0)),
        );
      }
    for (const start of range(-7, 7))
      for (const stop of [-6, -2, 0, 3, 6])
        assert.deepEqual(
          items(array.slice({ start, stop }, 2)),
          model.slice(start, stop).map((row) => row[2]),
        );
    const last = array.slice({ step: -1 }, { start: -1 });
    assert.deepEqual(items(last), [[41], [34], [27], [20], [13], [6]]);
    for (const empty of [
      array.slice({ stop: 0 }),
      array.slice(3, { stop: 0 }),
      array.slice({ stop: 0 }).slice({ stop: 1 }),
    ]) {
      assert.equal(empty.size, 0);
      assert.equal(empty.copyToHostSync().length, 0);
    }
  });

  test('rows and columns of both orders are themselves', () => {
    for (const order of ['C', 'F'] as const) {
      using array = toDeviceSync(arange(5 * 6 * 7), { shape: [5, 6, 7], order });
      const all = items(array) as number[][][];
      for (const i of range(0, 5)) {
        assert.deepEqual(items(array.at(i, 3)), all[i]?.[3]);
        assert.deepEqual(
          items(array.slice(i, '...', 2)),
          all[i]?.map((row) => row[2]),
        );
        assert.deepEqual(
          items(array.slice('...', i, i)),
          all.map((plane) => plane[i]?.[i]),
        );
      }
    }
  });

  test('assignment sets items, rows, columns and steps, by one value or by many', async () => {
    using array = counted(5, 7);
    const model = range(0, 5).map((row) => range(row * 7, row * 7 + 7));
    const set = async (to: (row: number, column: number) => number | undefined): Promise<void> => {
      for (const [i, row] of model.entries())
        for (const j of row.keys()) row[j] = to(i, j) ?? (row[j] as number);
      assert.deepEqual(items(array), model);
    };
    await array.set([2, 2], 500);
    await set((i, j) => (i === 2 && j === 2 ? 500 : undefined));
    await array.set([-1], 501);
    await set((i) => (i === 4 ? 501 : undefined));
    array.setSync(['...', 2], 502);
    await set((_, j) => (j === 2 ? 502 : undefined));
    await array.set([1], arange(7));
    await set((i, j) => (i === 1 ? j : undefined));
    array.setSync(['...', 3], [10, 11, 12, 13, 14]);
    await set((i, j) => (j === 3 ? 10 + i : undefined));
    await array.set([{ step: 2 }, { step: -3 }], [[1, 2, 3]]);
    await set((i, j) => (i % 2 === 0 && j % 3 === 0 ? 3 - j / 3 : undefined));
    using column = toDeviceSync(arange(5), { shape: [5, 1] });
    await array.set([{}, { start: 4 }], column);
    await set((i, j) => (j >= 4 ? i : undefined));
    await array.set([], 0);
    await set(() => 0);
    await assert.rejects(
      array.set([0], [[[1, 2, 3]]]),
      /cannot broadcast shape \[1, 1, 3\] to \[7\]/,
    );
    await assert.rejects(array.set([], [1, 3]), /cannot broadcast shape \[2\] to \[5, 7\]/);
  });

  test('items of every dtype are what they are in JavaScript', async () => {
    const cases: readonly (readonly [Dtype, unknown, unknown?])[] = [
      [bool, true],
      [uint8, 255],
      [int32, -7],
      [int64, -(2n ** 62n)],
      [float16, 1.5],
      [bfloat16, -2],
      [float32, 0.5],
      [float64, Math.PI],
      [complex64, { re: 1, im: -2 }],
      [Dtype.bytes(5), Uint8Array.of(1, 2, 3, 4, 5)],
      [int64, 7, 7n],
      [float32, true, 1],
      [complex64, 3, { re: 3, im: 0 }],
    ];
    for (const [dtype, value, read = value] of cases) {
      using array = deviceArray([2, 1500], dtype);
      array.fill(value as never);
      assert.deepEqual(await array.get(1, 1499), read, dtype.name);
      await array.set([0, 3], value as never);
      assert.deepEqual(array.getSync(0, 3), read, dtype.name);
    }
    using small = deviceArray(2, uint8);
    for (const wrong of [256, -1, 1.5, 2n ** 70n])
      assert.throws(
        () => small.fill(wrong),
        /^RangeError: value must be an integer from 0 to 255 for uint8, not /,
      );
    for (const wrong of ['1', undefined, null, {}])
      assert.throws(
        () => small.fill(wrong as never),
        /^TypeError: value must be a number for uint8, not /,
      );
  });

  test('a buffer is seen as an array only within its bytes', () => {
    using buffer = DeviceBuffer.allocate(100);
    const array = fromBuffer(buffer, [3, 4], float64, { byteOffset: 4 });
    assert.equal(array.address, buffer.address + 4);
    array.close();
    assert.deepEqual([array.closed, buffer.closed], [true, false]);
    assert.throws(
      () => fromBuffer(buffer, [3, 5], float64),
      /reach from byte 0 to 120: the buffer has 100/,
    );
    assert.throws(() => fromBuffer(buffer, 4, float64, { strides: [-8] }), /from byte -24/);
    const locked = fromBuffer(buffer, 4, float32, { readOnly: true });
    assert.throws(() => locked.slice({ step: 2 }).fill(1), /read only/);
  });

  test('an array whose items reach beyond its memory is not made, however it came about', () => {
    using buffer = DeviceBuffer.allocate(64);
    const make = (init: Partial<Layout>): DeviceArray => {
      const layout = { shape: [4], strides: [16], itemsize: 4, byteOffset: 0, ...init };
      return new DeviceArray({ buffer, dtype: float32, layout, isOwner: false, readOnly: false });
    };
    assert.equal(make({ byteOffset: 12 }).extents.high, buffer.address + 64);
    for (const beyond of [
      { byteOffset: 13 },
      { byteOffset: -4 },
      { shape: [5] },
      { strides: [-16] },
      { strides: [17], byteOffset: 12 },
      { shape: [1024], strides: [4] },
    ])
      assert.throws(() => make(beyond), { name: 'RangeError', message: /: the buffer has 64$/ });
    // An empty slice begins where the last item ends, or beyond.
    const empty = make({}).slice({ start: 4 });
    assert.deepEqual([empty.shape, empty.copyToHostSync().length], [[0], 0]);
  });

  test('invalid shapes, dtypes and options are refused before anything is allocated', async () => {
    assert.throws(
      () => deviceArray(1.23),
      /^RangeError: shape must be an integer of at least 0, not 1\.23$/,
    );
    assert.throws(
      () => deviceArray([1.1, 2]),
      /^RangeError: shape\[0\] must be an integer of at least 0, not 1\.1$/,
    );
    assert.throws(
      () => deviceArray(['1'] as never),
      /^TypeError: shape\[0\] must be a number, not "1"$/,
    );
    assert.throws(
      () => deviceArray([2], 'float' as never),
      /^TypeError: there is no dtype "float" \(did you mean 'float32'\?\); known: bool, .*float32/,
    );
    assert.throws(
      () => deviceArray([2], Float32Array as never),
      /^TypeError: dtype must be a Dtype or its name, e\.g\. 'float32', not a function$/,
    );
    assert.throws(
      () => deviceArray([2], float32, { order: 'K' as never }),
      /^TypeError: order must be 'C' or 'F', not K$/,
    );
    assert.throws(
      () => deviceArray([2], float32, { order: 'C', strides: [8] }),
      /^TypeError: give either an order or strides, not both$/,
    );
    assert.throws(() => deviceArray([2], float32, { orders: 'C' } as never), /unknown option/);
    const ragged = [[1, 2], [3]] as const;
    await assert.rejects(toDevice(ragged), /source\[1\] is 1 long where others are 2 long/);
    await assert.rejects(toDevice([[1], 2] as never), /source\[1\] is not an array/);
    await assert.rejects(toDevice([1, 'a'] as never), /source\[1\] must be a number/);
    await assert.rejects(toDevice([1, 2n] as never), /pass a dtype/);
    await assert.rejects(
      toDevice([[1, 2.5]], { dtype: int32 }),
      /source\[0\]\[1\] must be an integer/,
    );
    await assert.rejects(
      toDevice(new Float64Array(2), { dtype: float32 } as never),
      /^TypeError: source is a Float64Array, not a Float32Array of float32$/,
    );
    await assert.rejects(
      toDevice(new Float32Array(5), { shape: [2, 3] }),
      /5 elements, but shape \[2, 3\]/,
    );
    await assert.rejects(
      toDevice('text' as never),
      /^TypeError: source must be a number for float64, not a string$/,
    );
  });
});
