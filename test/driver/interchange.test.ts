/** Arrays that are given to other libraries and taken from them: what numba's tests ask, and DLPack's. */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import fc from 'fast-check';
import { layoutExtents } from '../../src/array/layout.ts';
import {
  bfloat16,
  type CudaArrayInterface,
  cudaArrayInterface,
  type DeviceArray,
  DeviceBuffer,
  type DlpackTensor,
  Dtype,
  deviceArray,
  devices,
  dlpack,
  float8_e4m3fn,
  float8_e5m2,
  float16,
  float32,
  fromBuffer,
  fromCudaArrayInterface,
  fromDLPack,
  fromPointer,
  int16,
  int32,
  MemoryPool,
  managedArray,
  mappedArray,
  Stream,
  toDeviceSync,
  uint8,
} from '../../src/index.ts';
import { emulated } from '../support/driver.ts';
import { Latch } from '../support/latch.ts';
import { anyLayout, runs } from '../support/layouts.ts';
import { collectGarbage } from '../support/process-state.ts';

// Read when the emulated driver is opened, at its first call.
if (emulated) process.env['CUFFI_EMULATED_DEVICES'] = '2';

const counted = (...shape: number[]): DeviceArray<typeof int32> =>
  toDeviceSync(
    Int32Array.from({ length: shape.reduce((size, length) => size * length, 1) }, (_, i) => i),
    { shape },
  );

describe('interchange of arrays', () => {
  test('the CUDA array interface says what an array is', () => {
    using array = counted(3, 4);
    const whole = cudaArrayInterface(array);
    assert.deepEqual(whole, {
      shape: [3, 4],
      strides: null,
      typestr: '<i4',
      data: [array.address, false],
      version: 3,
      stream: 1,
    });
    assert.deepEqual(JSON.parse(JSON.stringify(whole)), whole);
    const part = cudaArrayInterface(array.slice({ step: -1 }, 1));
    assert.deepEqual([part.shape, part.strides, part.data[0]], [[3], [-16], array.address + 36]);
    assert.equal(cudaArrayInterface(array.broadcastTo([2, 3, 4])).data[1], true);
    assert.deepEqual(cudaArrayInterface(array.slice({ stop: 0 })).data, [0, false], 'no items');
    assert.equal(cudaArrayInterface(array.view(bfloat16)).typestr, '<V2');
  });

  test('the interface names the stream that its consumer must wait for', () => {
    using array = counted(4);
    using stream = Stream.create({ nonBlocking: true });
    const streamOf = (...args: Parameters<typeof cudaArrayInterface>) =>
      cudaArrayInterface(...args).stream;
    assert.equal(streamOf(array.withStream(stream)), stream.handle);
    assert.equal(streamOf(array, { stream }), stream.handle);
    assert.equal(streamOf(array, { stream: Stream.perThreadDefault() }), 2);
    assert.equal(streamOf(array.withStream(stream), { stream: null }), null);
  });

  test('what is made of a dictionary is the same memory, whatever the strides', () => {
    using array = counted(3, 4, 5);
    for (const part of [
      array,
      array.T,
      array.slice('...', 3),
      array.slice({ step: -2 }, { start: 3, stop: 0, step: -2 }),
      array.at(1, 2, 3),
      array.slice(0).broadcastTo([2, 4, 5]),
      array.slice({ stop: 0 }),
    ]) {
      const described = JSON.parse(JSON.stringify(cudaArrayInterface(part)));
      const again = fromCudaArrayInterface(described, { owner: array });
      assert.deepEqual(again.copyToHostSync(), part.copyToHostSync());
      assert.deepEqual(again.copyToHostSync(undefined, { order: 'F' }), part.T.copyToHostSync());
      assert.deepEqual([again.dtype, again.readOnly], [int32, part.readOnly]);
      assert.equal(again.address, part.size === 0 ? 0 : part.address);
    }
    const column = fromCudaArrayInterface(cudaArrayInterface(array.slice('...', 0)));
    column.fill(-1);
    assert.deepEqual(array.slice(0, 0).copyToHostSync(), Int32Array.of(-1, 1, 2, 3, 4));
    assert.equal(column.buffer.origin, 'borrowed');
    column.close();
    assert.equal(array.getSync(0, 0, 1), 1, 'closing it freed nothing');
  });

  test('read only memory stays so, and records are raw bytes', () => {
    using array = counted(6);
    const described = { ...cudaArrayInterface(array), data: [array.address, true] };
    const frozen = fromCudaArrayInterface(described);
    assert.throws(() => frozen.fill(0), { name: 'TypeError', message: /read.only/ });
    assert.throws(
      () => frozen.buffer.fill(0),
      /^TypeError: this buffer is read-only: it was shared, or opened, for reading$/,
    );
    const records = fromCudaArrayInterface({
      ...described,
      typestr: '|V12',
      descr: [
        ['x', '<f4'],
        ['y', '<f8'],
      ],
      shape: [2],
    });
    assert.deepEqual([records.dtype.name, records.byteLength], ['V12', 24]);
  });

  test('the consumer’s stream waits for the producer’s, and nothing blocks', async () => {
    using array = counted(4);
    using producer = Stream.create({ nonBlocking: true });
    using consumer = Stream.create({ nonBlocking: true });
    using latch = new Latch();
    latch.hold(producer);
    array.fill(7, { stream: producer });
    const described = cudaArrayInterface(array, { stream: producer });
    const taken = fromCudaArrayInterface(described, { stream: consumer });
    assert.equal(taken.stream, consumer);
    using copy = taken.copy();
    assert.equal(consumer.done, false);
    // Of its own stream the consumer waits for nothing, nor where the dictionary names none.
    using free = Stream.create({ nonBlocking: true });
    fromCudaArrayInterface({ ...described, stream: null }, { stream: free });
    fromCudaArrayInterface({ ...described, stream: free.handle }, { stream: free });
    await free.synchronize();
    latch.open();
    assert.deepEqual(await copy.copyToHost(), new Int32Array(4).fill(7));
  });

  test('a DLPack tensor is made for its consumer’s stream, which waits', async () => {
    using producer = Stream.create({ nonBlocking: true });
    using consumer = Stream.create({ nonBlocking: true });
    using free = Stream.create({ nonBlocking: true });
    using array = counted(4);
    const bound = array.withStream(producer);
    using latch = new Latch();
    latch.hold(producer);
    bound.fill(7);
    const taken = fromDLPack(dlpack(bound, { stream: consumer }), { stream: consumer });
    using copy = taken.copy();
    assert.equal(consumer.done, false);
    dlpack(bound, { stream: null });
    dlpack(array.withStream(free), { stream: free });
    await free.synchronize();
    latch.open();
    assert.deepEqual(await copy.copyToHost(), new Int32Array(4).fill(7));
  });

  test('DLPack has the fields of an array, with strides in items', () => {
    using array = counted(3, 4);
    const { ordinal } = array.context.device;
    assert.deepEqual(dlpack(array), {
      version: { major: 1, minor: 1 },
      flags: { readOnly: false },
      data: array.address,
      device: { type: 2, id: ordinal },
      ndim: 2,
      dtype: { code: 0, bits: 32, lanes: 1 },
      shape: [3, 4],
      strides: [4, 1],
      byteOffset: 0,
    });
    const turned = dlpack(array.slice('...', { step: -2 }).T);
    assert.deepEqual(
      [turned.shape, turned.strides],
      [
        [2, 3],
        [-2, 4],
      ],
    );
    assert.equal(dlpack(array.broadcastTo([2, 3, 4])).flags.readOnly, true);
    assert.equal(dlpack(array.slice({ stop: 0 })).data, 0);
    // Strides that are no whole items, but for axes that no index goes along.
    const bytes = array.view(uint8).ravel();
    const odd = { dtype: int16, strides: [3] };
    assert.throws(() => dlpack(fromPointer(bytes.address, { shape: 2, ...odd })), {
      name: 'RangeError',
      message:
        /strides are in items, but \[3\] bytes are not multiples of the item size 2: .+array\.copy\(\)/,
    });
    assert.deepEqual(dlpack(fromPointer(bytes.address, { shape: 1, ...odd })).strides, [1]);
  });

  test('what is made of a tensor is the same memory', () => {
    using array = counted(3, 4);
    for (const part of [
      array,
      array.T,
      array.slice({ step: -1 }, { step: 2 }),
      array.slice(1, 1),
    ]) {
      const tensor = JSON.parse(JSON.stringify(dlpack(part))) as DlpackTensor;
      assert.deepEqual(fromDLPack(tensor).copyToHostSync(), part.copyToHostSync());
      const late = { ...tensor, data: tensor.data - 4, byteOffset: 4 };
      assert.equal(fromDLPack(late).address, part.address);
    }
    const { data, device, ndim, dtype, shape } = dlpack(array);
    const plain = { data, device, ndim, dtype, shape };
    assert.deepEqual(fromDLPack(plain).copyToHostSync(), array.copyToHostSync());
    const halves = fromDLPack({ ...plain, dtype: { code: 2, bits: 16, lanes: 1 }, shape: [3, 8] });
    assert.equal(halves.dtype, float16);
    const pairs = fromDLPack({ ...plain, dtype: { code: 0, bits: 32, lanes: 2 }, shape: [3, 2] });
    assert.deepEqual([pairs.dtype.name, pairs.byteLength], [Dtype.bytes(8).name, 48]);
  });

  test('any layout comes back as it was, in bytes and in items', () => {
    using memory = DeviceBuffer.allocate(1 << 20);
    fc.assert(
      fc.property(anyLayout, (layout) => {
        const { shape, strides, itemsize } = layout;
        const byteOffset = layout.byteOffset - layoutExtents(layout).low;
        const dtype = Dtype.bytes(itemsize);
        const array = fromBuffer(memory, shape, dtype, { strides, byteOffset });
        const takes = (again: DeviceArray): void => {
          assert.deepEqual(again.shape, shape);
          // Strides that no index goes along say nothing.
          const used = (each: DeviceArray): number[] =>
            each.strides.filter((_, axis) => each.size > 0 && shape[axis] !== 1);
          assert.deepEqual(used(again), used(array));
          if (array.size > 0) assert.deepEqual(again.extents, array.extents);
        };
        takes(fromCudaArrayInterface(cudaArrayInterface(array)));
        const isWhole = strides.every(
          (stride, axis) => stride % itemsize === 0 || array.size === 0 || shape[axis] === 1,
        );
        if (isWhole) takes(fromDLPack(dlpack(array)));
        else assert.throws(() => dlpack(array), /^RangeError: DLPack strides are in items, but \[/);
      }),
      runs,
    );
  });

  test('8-bit floats are bytes with a name, which DLPack keeps and the interface does not', async () => {
    const bytes = Uint8Array.of(0x38, 0xb8, 0x7f, 0);
    for (const [dtype, code] of [
      [float8_e4m3fn, 10],
      [float8_e5m2, 12],
    ] as const) {
      using array = toDeviceSync(bytes, { dtype, shape: [2, 2] });
      assert.deepEqual(dlpack(array).dtype, { code, bits: 8, lanes: 1 });
      const again = fromDLPack(JSON.parse(JSON.stringify(dlpack(array.T))));
      assert.equal(again.dtype, dtype);
      assert.deepEqual(await again.copyToHost(), Uint8Array.of(0x38, 0x7f, 0xb8, 0));
      const described = cudaArrayInterface(array);
      assert.equal(described.typestr, '|V1');
      assert.equal(fromCudaArrayInterface(described).dtype.name, 'V1');
      assert.equal(fromCudaArrayInterface(described).view(dtype).dtype, dtype);
      // cuffi does not convert numbers: an item is its byte.
      array.fill(Uint8Array.of(7));
      array.setSync([0, 0], Uint8Array.of(9));
      assert.deepEqual(
        [array.getSync(0, 0), array.getSync(1, 1)],
        [Uint8Array.of(9), Uint8Array.of(7)],
      );
      assert.throws(() => array.fill(1.5 as never), {
        name: 'TypeError',
        message: `value must be a Uint8Array of 1 byte for ${dtype}: its bits, which cuffi does not convert`,
      });
      assert.deepEqual(array.view('uint8').copyToHostSync(), Uint8Array.of(9, 7, 7, 7));
    }
  });

  test('an array of another device is found there', (t) => {
    if (devices().length < 2) {
      t.skip('this needs a second GPU');
      return;
    }
    using array = toDeviceSync(Int32Array.of(1, 2), { device: 1 });
    const described = JSON.parse(JSON.stringify(cudaArrayInterface(array)));
    assert.equal(fromCudaArrayInterface(described).context.device.ordinal, 1);
    const tensor = JSON.parse(JSON.stringify(dlpack(array)));
    assert.deepEqual(tensor.device, { type: 2, id: 1 });
    const again = fromDLPack(tensor);
    assert.equal(again.context.device.ordinal, 1);
    assert.deepEqual(again.copyToHostSync(), Int32Array.of(1, 2));
    assert.deepEqual(dlpack(again).device, { type: 2, id: 1 });
  });

  test('DLPack says which kind of memory it is, and takes each', (t) => {
    using mapped = mappedArray(4, float32);
    assert.deepEqual(dlpack(mapped).device, { type: 3, id: 0 });
    takes(mapped);
    if (mapped.context.device.attribute('managedMemory') === 0) {
      t.diagnostic('no managed memory here');
      return;
    }
    using managed = managedArray(4, float32);
    assert.deepEqual(dlpack(managed.slice(0)).device, { type: 13, id: 0 });
    takes(managed);

    function takes(array: DeviceArray): void {
      const view = fromDLPack(dlpack(array));
      view.fill(2.5);
      assert.deepEqual(view.copyToHostSync(), new Float32Array(4).fill(2.5));
    }
  });

  test('borrowed memory keeps its kind in a tensor, however it was borrowed', (t) => {
    using plain = deviceArray(4, float32);
    const { ordinal } = plain.context.device;
    keepsKind(plain, { type: 2, id: ordinal });
    using pool = MemoryPool.create({ maxSize: 2 << 20 });
    using pooled = deviceArray(4, float32, { memory: pool });
    keepsKind(pooled, { type: 2, id: ordinal });
    using mapped = mappedArray(4, float32);
    keepsKind(mapped, { type: 3, id: 0 });
    if (mapped.context.device.attribute('managedMemory') === 0) {
      t.diagnostic('no managed memory here');
      return;
    }
    using managed = managedArray(4, float32);
    keepsKind(managed, { type: 13, id: 0 });

    function keepsKind(array: DeviceArray, device: DlpackTensor['device']): void {
      const { address, dtype } = array;
      const borrowed = [
        fromDLPack(JSON.parse(JSON.stringify(dlpack(array)))),
        fromCudaArrayInterface(JSON.parse(JSON.stringify(cudaArrayInterface(array)))),
        fromPointer(address, { shape: 4, dtype }),
        fromBuffer(DeviceBuffer.fromPointer(address, 16), 4, dtype),
      ];
      for (const each of borrowed) {
        assert.deepEqual(dlpack(each).device, device);
        assert.deepEqual(dlpack(each.slice({ start: 1 })).device, device);
        assert.deepEqual(dlpack(each.slice({ stop: 0 })).device, device, 'without items');
        assert.deepEqual(dlpack(fromDLPack(dlpack(each))).device, device, 'borrowed twice');
      }
    }
  });

  test('a reference to the dictionary, the tensor or a view keeps the memory alive', async () => {
    const buffers: WeakRef<DeviceBuffer>[] = [];
    const give = <T>(way: (array: DeviceArray) => T): T => {
      const array = counted(4);
      buffers.push(new WeakRef(array.buffer));
      return way(array);
    };
    const described = give(cudaArrayInterface);
    const tensor = give(dlpack);
    const views = [
      give((array) => fromCudaArrayInterface(cudaArrayInterface(array))),
      give((array) => fromDLPack(dlpack(array))),
    ];
    await collectGarbage();
    for (const [i, view] of [
      fromCudaArrayInterface(described),
      fromDLPack(tensor),
      ...views,
    ].entries()) {
      assert.deepEqual(view.copyToHostSync(), Int32Array.of(0, 1, 2, 3));
      buffers[i]?.deref()?.close();
      assert.throws(() => view.address, { name: 'ClosedError' }, 'its owner closed it for all');
    }
  });

  test('an address is an array, borrowed', () => {
    using array = counted(12);
    const rows = fromPointer(array.address, { shape: [2, 3], dtype: int32, strides: [24, 4] });
    assert.deepEqual(rows.copyToHostSync(), Int32Array.of(0, 1, 2, 6, 7, 8));
    const columns = fromPointer(array.address, { shape: [2, 2], dtype: int32, order: 'F' });
    assert.deepEqual(columns.copyToHostSync(), Int32Array.of(0, 2, 1, 3));
    const back = fromPointer(array.address + 44, { shape: 12, dtype: int32, strides: [-4] });
    assert.deepEqual(back.copyToHostSync(), array.copyToHostSync().reverse());
    assert.deepEqual(back.extents, array.extents);
    const none = fromPointer(0, { shape: [0, 3] });
    assert.deepEqual(
      [none.address, none.copyToHostSync().length, none.dtype.name],
      [0, 0, 'float64'],
    );
    using stream = Stream.create();
    const owner = Stream.create();
    const options = { shape: 3, dtype: int32, stream, owner, readOnly: true } as const;
    const held = fromPointer(array.address, options);
    assert.deepEqual([held.stream, held.readOnly], [stream, true]);
    // Whether it owns the memory nobody knows: it is only held.
    owner.close();
    assert.equal(held.closed, false);
  });

  test('what cannot be is refused before the memory is used', () => {
    using array = counted(2, 3);
    const good: CudaArrayInterface = cudaArrayInterface(array);
    const wrong: readonly (readonly [change: object | null, message: RegExp])[] = [
      [null, /the description must be a dictionary/],
      [{ version: 4 }, /version must be an integer from 0 to 3, not 4/],
      [{ version: undefined }, /version must be a number/],
      [{ mask: good }, /a masked array is not supported: describe its values and its mask/],
      [{ typestr: '>i4' }, /is big-endian/],
      [{ typestr: '<f3' }, /there is no dtype "<f3"/],
      [{ typestr: 4 }, /typestr must be a string/],
      [{ shape: 6 }, /shape must be an array of integers/],
      [{ shape: [2, -3] }, /shape\[1\] must be an integer of at least 0/],
      [{ shape: [2 ** 40, 2 ** 40] }, /too large/],
      [{ strides: [4] }, /1 strides do not fit the shape \[2, 3\]/],
      [{ strides: '12, 4' }, /strides must be an array/],
      [{ strides: [2 ** 53, 4] }, /strides\[0\] must be an integer/],
      [{ data: good.data[0] }, /data must be \[address, readOnly\]/],
      [{ data: [String(good.data[0]), false] }, /data\[0\] must be a number/],
      [{ data: [0, false] }, /the address must be an integer of at least 1/],
      [{ data: [64, false] }, /looking for memory at address 64/],
      [{ data: [8, false], strides: [-12, 4] }, /do not fit around address 8/],
      [{ strides: [2 ** 50, 4] }, /looking for memory at address \d+/],
      [{ data: [good.data[0], 0] }, /data\[1\] must be true or false/],
      [{ stream: 0 }, /stream 0 is ambiguous/],
      [{ stream: '1' }, /stream must be a number/],
      [{ stream: -1 }, /stream must be an integer of at least 1/],
    ];
    for (const [change, message] of wrong)
      assert.throws(() => fromCudaArrayInterface(change && { ...good, ...change }), { message });
    assert.throws(() => cudaArrayInterface({} as DeviceArray), /array must be a DeviceArray/);
    array.close();
    assert.throws(() => cudaArrayInterface(array), { name: 'ClosedError' });
    assert.throws(() => dlpack(array), { name: 'ClosedError' });
  });

  test('a tensor that cannot be is refused before the memory is used', () => {
    using array = deviceArray([2, 3], int32);
    const good = dlpack(array);
    const wrong: readonly (readonly [change: object | null, message: RegExp])[] = [
      [null, /the tensor must be an object with the fields of DLPack/],
      [{ version: { major: 2, minor: 0 } }, /the tensor uses DLPack 2/],
      [{ version: 1 }, /version must be an object/],
      [{ device: { type: 1, id: 0 } }, /device of DLPack type 1; supported: 2 \(CUDA\), 3/],
      [{ device: { type: 2, id: -1 } }, /device\.id must be an integer/],
      [{ device: { type: 2, id: 1000 } }, /1000/],
      [{ device: undefined }, /device must be an object/],
      [{ dtype: { code: 2, bits: 8, lanes: 1 } }, /no dtype for DLPack's code 2 with 8 bits/],
      [{ dtype: 'int32' }, /dtype must be an object/],
      [{ ndim: 3 }, /ndim is 3, and shape \[2, 3\] has 2/],
      [{ strides: [3] }, /1 strides do not fit/],
      [{ strides: [2 ** 52, 1] }, /strides\[0\] must be an integer/],
      [{ strides: {} }, /strides must be an array/],
      [{ data: 0 }, /the address must be an integer of at least 1/],
      [{ data: 64 }, /looking for memory at address 64/],
      [{ byteOffset: -4 }, /byteOffset must be an integer/],
      [{ data: 2 ** 53 - 1, byteOffset: 2 }, /the address must be an integer/],
      [{ flags: { readOnly: 1 } }, /flags\.readOnly must be true or false/],
    ];
    for (const [change, message] of wrong)
      assert.throws(() => fromDLPack(change && { ...good, ...change }), { message });
    assert.throws(() => fromDLPack(good, { name: 'x' } as object), /unknown option 'name'/);
  });
});
