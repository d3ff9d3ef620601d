import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { inspect } from 'node:util';
import {
  CU_MEM_ATTACH_GLOBAL,
  CU_MEM_ATTACH_HOST,
  CU_MEMHOSTALLOC_DEVICEMAP,
  CU_MEMHOSTALLOC_PORTABLE,
  CU_MEMHOSTALLOC_WRITECOMBINED,
  CU_MEMHOSTREGISTER_DEVICEMAP,
  CU_MEMHOSTREGISTER_PORTABLE,
} from '../../../../ffi/constants.ts';
import type { FunctionName } from '../../../../ffi/functions.ts';
import {
  Context,
  cudaArrayInterface,
  type DeviceArray,
  DeviceBuffer,
  deviceArray,
  deviceArrayLike,
  dlpack,
  float32,
  float64,
  fromBuffer,
  fromCudaArrayInterface,
  fromDLPack,
  fromPointer,
  int16,
  ManagedMemory,
  MemoryPool,
  managedArray,
  mappedArray,
  pinnedArray,
  Stream,
  toDevice,
  toDeviceSync,
} from '../../../../src/index.ts';
import { recordArguments } from '../../../support/arguments.ts';
import { collectGarbage, collectUntil } from '../../../support/process-state.ts';
import { emulate, ForeignContext } from '../emulate.ts';

interface Closable {
  close(): void;
}

describe('deviceArray and similar functions', () => {
  test('deviceArrayLike takes nothing but what has a shape and a dtype', () => {
    emulate();
    for (const wrong of [
      undefined,
      null,
      3,
      'text',
      {},
      { shape: 3 },
      { shape: '3', dtype: int16 },
    ])
      assert.throws(() => deviceArrayLike(wrong as never), {
        name: 'TypeError',
        message: 'array must have a shape and a dtype',
      });
  });

  test('a new array has memory of the given device and kind', async () => {
    const recorder = recordArguments(emulate({ CUFFI_EMULATED_DEVICES: '2' }));
    const [first, second] = [Context.primary(0), Context.primary(1)];
    const [HOST, HOST_PINNED] = ['cuMemHostRegister_v2', 'cuMemHostAlloc'] as const;
    const [PLAIN, MANAGED] = ['cuMemAlloc_v2', 'cuMemAllocManaged'] as const;
    const DEVICEMAP = CU_MEMHOSTREGISTER_DEVICEMAP;
    const items = new Float32Array(6);
    using other = deviceArray([2, 3], float32, { context: second });
    using near = deviceArray([2, 3], float32);
    const managed = ManagedMemory.create({ device: 1, attach: 'host' });
    /** The function, its driver call, the context, and the flags if it has any. */
    const makers: readonly [
      make: () => Closable | Promise<Closable>,
      name: FunctionName,
      context: Context,
      flags?: number,
    ][] = [
      [() => deviceArray(6, float32), PLAIN, first],
      [() => deviceArray(6, float32, { device: 1 }), PLAIN, second],
      [() => deviceArray(6, float32, { context: second }), PLAIN, second],
      [() => deviceArray(6, float32, { memory: managed }), MANAGED, second, CU_MEM_ATTACH_HOST],
      [() => deviceArrayLike(other), PLAIN, first],
      [() => deviceArrayLike(other, { device: 1 }), PLAIN, second],
      [() => deviceArrayLike(near, { context: second }), PLAIN, second],
      [() => deviceArrayLike(near, { memory: managed }), MANAGED, second, CU_MEM_ATTACH_HOST],
      [() => toDevice(items), PLAIN, first],
      [() => toDevice(items, { device: 1 }), PLAIN, second],
      [() => toDevice(items, { memory: managed }), MANAGED, second, CU_MEM_ATTACH_HOST],
      [() => toDeviceSync(items, { context: second }), PLAIN, second],
      [() => toDeviceSync([[1, 2]], { device: 1, copy: false }), PLAIN, second],
      [() => toDevice(other), PLAIN, second],
      [() => toDevice(other, { device: 0 }), PLAIN, first],
      [() => toDeviceSync(near, { memory: managed }), MANAGED, second, CU_MEM_ATTACH_HOST],
      [() => other.copy(), PLAIN, second],
      [() => near.copy({ memory: managed }), MANAGED, second, CU_MEM_ATTACH_HOST],
      [() => managedArray(6), MANAGED, first, CU_MEM_ATTACH_GLOBAL],
      [
        () => managedArray(6, float32, { device: 1, attach: 'host' }),
        MANAGED,
        second,
        CU_MEM_ATTACH_HOST,
      ],
      [() => mappedArray(6), HOST, first, DEVICEMAP | CU_MEMHOSTREGISTER_PORTABLE],
      [
        () => mappedArray(6, float32, { context: second, portable: false }),
        HOST,
        second,
        DEVICEMAP,
      ],
      [
        () => mappedArray(6, float32, { device: 1, writeCombined: true, portable: false }),
        HOST_PINNED,
        second,
        CU_MEMHOSTALLOC_WRITECOMBINED | CU_MEMHOSTALLOC_DEVICEMAP,
      ],
      [() => pinnedArray(6), HOST, first, CU_MEMHOSTREGISTER_PORTABLE],
      [() => pinnedArray(6, float32, { device: 1, portable: false }), HOST, second, 0],
      [
        () => pinnedArray(6, float32, { context: second, portable: false, mapped: true }),
        HOST,
        second,
        DEVICEMAP,
      ],
      [
        () => pinnedArray(6, float32, { device: 1, writeCombined: true }),
        HOST_PINNED,
        second,
        CU_MEMHOSTALLOC_WRITECOMBINED | CU_MEMHOSTALLOC_PORTABLE,
      ],
    ];
    const isAllocation = (name: string): boolean =>
      /^cuMem(Alloc|HostAlloc|HostRegister)/.test(name);
    for (const [make, name, context, flags] of makers) {
      recorder.calls.length = 0;
      const made = await make();
      const [memory] = recorder.calls.filter((call) => isAllocation(call.name));
      assert.deepEqual([memory?.name, memory?.context], [name, context.handle], `${make}`);
      if (flags !== undefined) assert.equal(memory?.args[2], flags, `${make}`);
      made.close();
    }
  });

  test('a new array has the given stream, which orders its allocation', async () => {
    const recorder = recordArguments(emulate());
    using memory = MemoryPool.create();
    using stream = Stream.create({ nonBlocking: true });
    using other = deviceArray(6, float32);
    const items = new Float32Array(6);
    const options = { memory, stream };
    for (const make of [
      () => deviceArray(6, float32, options),
      () => deviceArrayLike(other, options),
      () => toDevice(items, options),
      () => toDeviceSync(items, options),
      () => toDevice(other, options),
      () => other.copy(options),
      () => other.withStream(stream).copy({ memory }),
    ]) {
      recorder.calls.length = 0;
      const array = await make();
      const [allocation] = recorder.of('cuMemAllocFromPoolAsync');
      assert.equal(allocation?.args[3], stream.handle, `${make}`);
      assert.equal(array.stream, stream, `${make}`);
      array.close();
      const [free] = recorder.of('cuMemFreeAsync');
      assert.equal(free?.args[1], stream.handle, `${make}`);
    }
  });

  test('an array is closed in the given stream', () => {
    const recorder = recordArguments(emulate());
    using memory = MemoryPool.create();
    using stream = Stream.create({ nonBlocking: true });
    deviceArray(6, float32, { memory }).close({ stream });
    assert.deepEqual(
      recorder.of('cuMemFreeAsync').map(({ args }) => args[1]),
      [stream.handle],
    );
  });
});

describe('toDevice', () => {
  test('nothing is copied with copy: false, or to an array of another dtype', async () => {
    const recorder = recordArguments(emulate());
    using to = deviceArray(6, float32);
    const items = new Float32Array(6);
    recorder.calls.length = 0;
    for (const make of [
      () => toDevice(items, { copy: false }),
      () => toDeviceSync(items, { copy: false }),
      () => toDeviceSync([1, 2], { copy: false }),
    ])
      (await make()).close();
    assert.equal(await toDevice(items, { to, copy: false }), to);
    assert.equal(toDeviceSync(to, { copy: false }), to);
    const wrong = { to, dtype: float64 } as never;
    await assert.rejects(toDevice(items, wrong), /^TypeError: to is of float32, not of float64$/);
    assert.throws(
      () => toDeviceSync(items, wrong),
      /^TypeError: to is of float32, not of float64$/,
    );
    assert.deepEqual(
      recorder.calls.filter(({ name }) => /Memcpy|Launch|Memset/.test(name)),
      [],
    );
  });
});

describe('fromPointer and similar functions', () => {
  test('external memory becomes an array as it is described', () => {
    emulate({ CUFFI_EMULATED_DEVICES: '2' });
    const [first, second] = [Context.primary(0), Context.primary(1)];
    using stream = Stream.create({ context: second });
    using buffer = DeviceBuffer.allocate(4096, { context: second });
    const { address } = buffer;
    const array = fromPointer(address + 64, {
      shape: [2, 3],
      dtype: int16,
      strides: [-32, 8],
      context: second,
      stream,
      readOnly: true,
      owner: buffer,
    });
    assert.deepEqual(
      [
        array.address,
        array.shape,
        array.strides,
        array.dtype,
        array.context,
        array.stream,
        array.readOnly,
      ],
      [address + 64, [2, 3], [-32, 8], int16, second, stream, true],
    );
    // From the row before the first one to the last item.
    assert.deepEqual([array.buffer.address, array.buffer.byteLength], [address + 32, 32 + 16 + 2]);
    const plain = fromPointer(address, { shape: 4, order: 'F', device: 1 });
    assert.deepEqual(
      [plain.dtype, plain.context, plain.stream, plain.readOnly],
      [float64, second, undefined, false],
    );
    assert.equal(fromPointer(address, { shape: 4 }).context, first);
    const part = fromBuffer(buffer, [2, 3], int16, {
      byteOffset: 100,
      order: 'F',
      stream,
      readOnly: true,
    });
    assert.deepEqual(
      [part.address, part.strides, part.stream, part.readOnly, part.context],
      [address + 100, [2, 4], stream, true, second],
    );
  });

  test('the given owner is not collected before the array over its memory', async () => {
    emulate();
    using memory = deviceArray(4);
    let collected = 0;
    const owners = new FinalizationRegistry(() => {
      collected += 1;
    });
    const make = (from: (owner: object) => DeviceArray): { array: DeviceArray | undefined } => {
      const owner = {};
      owners.register(owner, undefined);
      return { array: from(owner) };
    };
    for (const from of [
      (owner: object) => fromPointer(memory.address, { shape: 4, owner }),
      (owner: object) => fromCudaArrayInterface(cudaArrayInterface(memory), { owner }),
      (owner: object) => fromDLPack(dlpack(memory), { owner }),
    ]) {
      const made = make(from);
      collected = 0;
      await collectGarbage();
      assert.equal(collected, 0, `${from}`);
      made.array = undefined;
      assert.ok(await collectUntil(() => collected > 0), `${from}`);
    }
  });

  test('a description of an array gives an array in the same context, even a borrowed one', () => {
    emulate();
    using foreign = new ForeignContext();
    const context = Context.fromHandle(foreign.handle);
    using buffer = DeviceBuffer.allocate(64, { context });
    const array = fromBuffer(buffer, 8, float64);
    for (const again of [
      fromDLPack(dlpack(array)),
      fromCudaArrayInterface(cudaArrayInterface(array)),
    ])
      assert.deepEqual([again.context, again.address], [context, array.address]);
    const other = Context.primary();
    assert.equal(fromDLPack(dlpack(array), { context: other }).context, other);
    assert.equal(fromDLPack({ ...dlpack(array) }).context, other);
  });
});

describe('PinnedArray', () => {
  test('a pinned array prints its properties, and whether it is closed', () => {
    emulate();
    const pinned = pinnedArray([2, 3], float32, { order: 'F' });
    assert.equal(`${pinned}`, 'PinnedArray(float32 [2, 3], F)');
    assert.equal(inspect({ pinned }), '{ pinned: PinnedArray(float32 [2, 3], F) }');
    pinned.close();
    assert.equal(inspect(pinned), 'PinnedArray(float32 [2, 3], F, closed)');
    assert.equal(`${pinnedArray(0)}`, 'PinnedArray(float64 [0], C)');
  });
});
