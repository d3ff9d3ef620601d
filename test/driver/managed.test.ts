import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { describe, test } from 'node:test';
import { OUT0, readUint32 } from '../../ffi/arena.ts';
import { CU_POINTER_ATTRIBUTE_IS_MANAGED } from '../../ffi/constants.ts';
import { cu, recordCalls } from '../../ffi/driver.ts';
import { registerKernel } from '../../ffi/emulated-kernels.ts';
import { viewMemory } from '../../ffi/native.ts';
import type { Address, CUdeviceptr } from '../../ffi/types.ts';
import { Context, Device, DeviceBuffer, ManagedMemory, Module, Stream } from '../../src/index.ts';
import { collectGarbage, collectUntil } from '../support/process-state.ts';

const MIB = 2 ** 20;
const isManaged = Device.get().attribute('managedMemory') !== 0;
const isShared = isManaged && Device.get().attribute('concurrentManagedAccess') !== 0;
const managed = { skip: isManaged ? false : 'the device has no managed memory' };
const shared = { skip: isShared ? false : 'the device has no concurrentManagedAccess' };

/** Whether the driver knows an address. */
const isKnown = (address: CUdeviceptr): boolean =>
  cu.cuPointerGetAttribute(OUT0, CU_POINTER_ATTRIBUTE_IS_MANAGED, address) === 0;

describe('ManagedMemory', () => {
  test('managed memory is filled and copied as any other', managed, async () => {
    for (const attach of ['global', 'host'] as const) {
      const memory = ManagedMemory.create({ attach });
      using buffer = memory.allocate(4 * MIB);
      assert.equal(buffer.resource, memory);
      const bytes = new Uint8Array(4 * MIB).fill(3);
      await buffer.copyFrom(bytes);
      buffer.subarray(0, 4).fill(1);
      const back = await buffer.copyToHost();
      assert.deepEqual([...back.subarray(2, 6)], [1, 1, 3, 3]);
    }
  });

  test('the CPU sees managed memory, and the device what the CPU wrote', shared, async () => {
    const memory = ManagedMemory.create();
    assert.equal(memory.hostAccessible, true);
    using buffer = memory.allocate(4 * MIB);
    using onDevice = DeviceBuffer.allocate(4 * MIB);
    const words = new Uint32Array(buffer.buffer);
    words.fill(0xabcd_1234);
    buffer.copyTo(onDevice);
    assert.equal((await onDevice.copyToHost(new Uint32Array(MIB)))[MIB - 1], 0xabcd_1234);
    buffer.fill(9);
    await buffer.context.synchronize();
    assert.equal(words[77], 0x0909_0909);
  });

  test('managed memory takes prefetches and advice, whole and in part', shared, async () => {
    const memory = ManagedMemory.create();
    const { device } = memory.context;
    using stream = Stream.create();
    using buffer = memory.allocate(8 * MIB);
    buffer.fill(2, { stream });
    memory.advise(buffer, 'preferredLocation', device);
    memory.advise(buffer, 'accessedBy', 'host');
    memory.advise(buffer.subarray(0, 2 * MIB), 'readMostly');
    memory.prefetch(buffer, device, { stream });
    memory.prefetch(buffer.subarray(2 * MIB, 4 * MIB), 'host', { stream });
    memory.prefetch(buffer, device);
    await stream.synchronize();
    assert.deepEqual(new Set(await buffer.copyToHost()), new Set([2]));
    memory.advise(buffer, 'unsetReadMostly');
    memory.advise(buffer, 'unsetPreferredLocation');
    memory.advise(buffer, 'unsetAccessedBy', 'host');
  });

  test('more than is free is refused before the driver is asked', managed, () => {
    const memory = ManagedMemory.create();
    const { free, total } = Context.primary().memoryInfo();
    using recorder = recordCalls();
    for (const byteLength of [total + 1, 2 ** 46])
      assert.throws(() => memory.allocate(byteLength), {
        name: 'RangeError',
        message:
          /^out of memory: \d+ bytes \(.*\) of managed memory were requested with \d+ bytes \(.*\) free$/,
      });
    assert.ok(free <= total);
    assert.ok(!recorder.calls.some(({ name }) => name === 'cuMemAllocManaged'));
  });

  test('viewed memory is freed when its view has been collected', shared, async () => {
    const allocate = (): { readonly address: CUdeviceptr; view: Uint8Array | undefined } => {
      using buffer = ManagedMemory.create().allocate(2 * MIB);
      return { address: buffer.address, view: new Uint8Array(buffer.buffer).fill(4) };
    };
    const left = allocate();
    await collectGarbage();
    assert.ok(isKnown(left.address));
    assert.equal(left.view?.[100], 4);
    left.view = undefined;
    assert.ok(await collectUntil(() => !isKnown(left.address)));
  });

  test(
    'managed memory without a view is freed by close(), which may be called twice',
    managed,
    () => {
      const buffer = ManagedMemory.create().allocate(2 * MIB);
      const { address } = buffer;
      assert.equal(isKnown(address), true);
      buffer.close();
      buffer.close();
      assert.equal(isKnown(address), false);
    },
  );

  test('a closed buffer, and one of other memory, is refused', shared, () => {
    const memory = ManagedMemory.create();
    const closed = memory.allocate(2 * MIB);
    closed.close();
    using other = DeviceBuffer.allocate(2 * MIB);
    const { device } = memory.context;
    assert.throws(() => memory.prefetch(closed, device), { name: 'ClosedError' });
    assert.throws(() => memory.advise(closed, 'readMostly'), { name: 'ClosedError' });
    assert.throws(() => memory.prefetch(other, device), /buffer must be managed memory/);
    assert.throws(() => closed.buffer, { name: 'ClosedError' });
  });
});

// The variables of managed.cu.
const ptx = readFileSync(new URL('../support/ptx/managed.ptx', import.meta.url), 'utf8');

registerKernel('increment', {
  params: ['pointer'],
  run({ view }, [at]) {
    view(at, Uint32Array, 1)[0] = (view(at, Uint32Array, 1)[0] as number) + 1;
  },
});

describe('a module with __managed__ variables', managed, () => {
  const isManagedAt = (address: CUdeviceptr): boolean => {
    assert.equal(cu.cuPointerGetAttribute(OUT0, CU_POINTER_ATTRIBUTE_IS_MANAGED, address), 0);
    return readUint32(OUT0) !== 0;
  };

  test('they are managed memory with their first values, and others are device memory', () => {
    using module = Module.load(ptx);
    for (const [name, bytes] of [
      ['hits', new Uint8Array(new Uint32Array([41]).buffer)],
      ['table', new Uint8Array(new Float32Array([1, 2, 3, 0]).buffer)],
      ['zeros', new Uint8Array(64)],
      ['bytes', new Uint8Array([1, 2, 255])],
    ] as const) {
      const variable = module.global(name);
      assert.equal(isManagedAt(variable.address), true, name);
      assert.deepEqual(variable.copyToHostSync(), bytes, name);
    }
    const plain = module.global('plain');
    assert.equal(isManagedAt(plain.address), false);
    assert.deepEqual(plain.copyToHostSync(), new Uint8Array([7, 0, 0, 0]));
  });

  test(
    'the CPU and kernels see the same variable, and unloading the module ends it',
    shared,
    async () => {
      const module = Module.load(ptx);
      const hits = module.global('hits');
      const { address } = hits;
      const words = new Uint32Array(viewMemory(address as number as Address, 4));
      assert.equal(words[0], 41);
      words[0] = 100;
      module.kernel('increment', ['pointer']).launch({ grid: 1, block: 1 }, hits);
      await hits.context.synchronize();
      assert.equal(words[0], 101);
      assert.equal(isKnown(address), true);
      module.close();
      await hits.context.synchronize();
      await hits.context.flush();
      assert.equal(isKnown(address), false);
    },
  );
});
