/** The behaviours of numba's tests of its manager plugins. A manager is set once in a process. */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { OUT0 } from '../../ffi/arena.ts';
import { cu } from '../../ffi/driver.ts';
import type { Address } from '../../ffi/types.ts';
import {
  type AllocateOptions,
  AutoFreePointer,
  allocatePitched,
  Context,
  Device,
  DeviceBuffer,
  DeviceMemory,
  DriverMemoryManager,
  type HostMemory,
  type IpcHandle,
  MappedMemory,
  type MappedPointer,
  type MemhostallocOptions,
  type MemoryInfo,
  type MemoryPointer,
  MemoryPool,
  type MempinOptions,
  memoryManager,
  PinnedBuffer,
  type PinnedPointer,
  pin,
  Stream,
  setMemoryManager,
} from '../../src/index.ts';
import { getIpcHandle } from '../../src/ipc/index.ts';
import { emulated } from '../support/driver.ts';
import { iterations } from '../support/iterations.ts';
import { Latch } from '../support/latch.ts';
import { processState } from '../support/process-state.ts';

// Read when the emulated driver is opened, at its first call.
if (emulated) process.env['CUFFI_EMULATED_DEVICES'] = '2';

/** Serves as the driver would, and writes down what it was asked. */
class Recording extends DriverMemoryManager {
  /** The open allocations' sizes, by number. */
  readonly allocations = new Map<number, number>();
  readonly calls: unknown[] = [];
  info: MemoryInfo | undefined;
  deferrals = 0;
  #count = 0;

  override initialize(): void {
    this.calls.push('initialize');
  }

  override memalloc(byteLength: number, options?: AllocateOptions): MemoryPointer {
    this.#count += 1;
    const number = this.#count;
    const held = super.memalloc(byteLength, options).own();
    this.allocations.set(number, byteLength);
    return new AutoFreePointer({
      context: this.context,
      pointer: held.pointer,
      byteLength,
      finalizer: (last) => {
        this.allocations.delete(number);
        held.close(last);
      },
    });
  }

  override memhostalloc(
    byteLength: number,
    options?: MemhostallocOptions,
  ): PinnedPointer | MappedPointer {
    this.calls.push(['memhostalloc', byteLength, options]);
    return super.memhostalloc(byteLength, options);
  }

  override mempin(owner: HostMemory, options?: MempinOptions): PinnedPointer | MappedPointer {
    this.calls.push(['mempin', owner.byteLength, options]);
    return super.mempin(owner, options);
  }

  override getIpcHandle(memory: MemoryPointer): IpcHandle {
    this.calls.push(['getIpcHandle', memory.byteLength]);
    const handle = super.getIpcHandle(memory);
    assert.equal(handle.base, memory);
    return handle;
  }

  override getMemoryInfo(): MemoryInfo {
    return this.info ?? super.getMemoryInfo();
  }

  override reset(): void {
    this.calls.push('reset');
    this.allocations.clear();
    super.reset();
  }

  override deferCleanup(): Disposable {
    this.deferrals += 1;
    const scope = super.deferCleanup();
    return {
      [Symbol.dispose]: () => {
        this.deferrals -= 1;
        scope[Symbol.dispose]();
      },
    };
  }
}

setMemoryManager(Recording);
const context = Context.primary();
const manager = memoryManager() as Recording;

/** What the manager was asked meanwhile. */
function callsOf(use: () => void): readonly unknown[] {
  const before = manager.calls.length;
  use();
  return manager.calls.slice(before);
}

const isLocked = (address: Address): boolean =>
  context.run(() => cu.cuMemHostGetFlags(OUT0, address)) === 0;

describe('the memory manager', () => {
  test('a manager is initialised once for its context, and cannot be replaced once that exists', () => {
    assert.deepEqual(manager.calls, ['initialize']);
    assert.equal(manager.context, context);
    assert.throws(() => setMemoryManager(DriverMemoryManager), {
      name: 'CuffiError',
      message: /before the first context exists/,
    });
  });

  test('memalloc is called once for each buffer, with its size, and freed with it alone', async () => {
    const first = DeviceBuffer.allocate(80);
    const second = DeviceBuffer.allocate(40, { context });
    assert.deepEqual([...manager.allocations.values()], [80, 40]);
    assert.deepEqual([first.byteLength, first.origin, first.context], [80, 'allocated', context]);
    assert.equal(first.resource, second.resource);
    await first.copyFrom(new Uint8Array(80).fill(1));
    const part = first.subarray(40);
    assert.deepEqual(new Set(await part.copyToHost()), new Set([1]));
    first.close();
    first.close();
    assert.equal(part.closed, true);
    assert.deepEqual([...manager.allocations.values()], [40]);
    second.close();
    assert.equal(manager.allocations.size, 0);
  });

  test('memory for rows comes from the manager, as far apart as the driver would lay them', () => {
    const { buffer, rowPitch } = allocatePitched(1000, 5);
    assert.equal(rowPitch, 1024);
    assert.deepEqual([...manager.allocations.values()], [5 * rowPitch]);
    assert.equal(buffer.byteLength, 5 * rowPitch);
    buffer.close();
    assert.equal(manager.allocations.size, 0);
  });

  test('a resource that is named serves itself', () => {
    using _ = DeviceBuffer.allocate(80, { memory: DeviceMemory.create() });
    assert.equal(manager.allocations.size, 0);
    if (!MemoryPool.supported()) return;
    using pool = MemoryPool.create({ maxSize: 64 << 20 });
    pool.allocate(80).close();
    assert.equal(manager.allocations.size, 0);
  });

  test('memhostalloc serves pinned and mapped memory, and receives the kind', async () => {
    const options = { mapped: false, portable: true, writeCombined: false };
    const calls = callsOf(() => {
      using pinned = PinnedBuffer.allocate(5000);
      assert.ok(isLocked(pinned.address));
      assert.ok(new Uint8Array(pinned.buffer).every((byte) => byte === 0));
      using combined = PinnedBuffer.allocate(5000, { writeCombined: true, portable: false });
      using reached = PinnedBuffer.allocate(5000, { mapped: true });
      assert.ok(reached.devicePointer);
      assert.equal(combined.devicePointer, undefined);
    });
    assert.deepEqual(calls, [
      ['memhostalloc', 5000, options],
      ['memhostalloc', 5000, { ...options, portable: false, writeCombined: true }],
      ['memhostalloc', 5000, { ...options, mapped: true }],
    ]);
    using mapped = MappedMemory.create().allocate(4096);
    assert.deepEqual(manager.calls.at(-1), ['memhostalloc', 4096, { ...options, mapped: true }]);
    mapped.fill(9);
    await context.synchronize();
    assert.deepEqual(new Set(new Uint8Array(mapped.buffer)), new Set([9]));
  });

  test('mempin serves pin, for as long as the scope', () => {
    const memory = new ArrayBuffer(4 << 17);
    const arrays = [1, 2].map((at) => new Uint8Array(memory, at << 17, 4096));
    const calls = callsOf(() => {
      using _ = pin(...arrays);
      assert.throws(() => pin(arrays[0] as Uint8Array), /already page-locked/);
    });
    const call = ['mempin', 4096, { mapped: false, portable: true }];
    assert.deepEqual(calls, [call, call, call]);
    pin(...arrays).close();
  });

  test('an array is pinned again while its release waits, and unlocked after the last one', async () => {
    const bytes = new Uint8Array(new ArrayBuffer(4 << 17), 1 << 17, 4096);
    using stream = Stream.create({ nonBlocking: true });
    using latch = new Latch();
    const pinned = pin(bytes);
    latch.hold(stream);
    pinned.close();
    const first = pin(bytes);
    assert.throws(() => pin(bytes), /already page-locked/);
    first.close();
    const again = pin(bytes);
    latch.open();
    await context.flush();
    assert.throws(() => pin(bytes), /already page-locked/, 'it is still pinned');
    again.close();
    await context.flush();
    pin(bytes).close();
  });

  test('getIpcHandle names the allocation and where a part of it begins', () => {
    using buffer = DeviceBuffer.allocate(4096);
    const whole = getIpcHandle(buffer);
    const part = getIpcHandle(buffer.subarray(100, 300));
    assert.deepEqual(manager.calls.slice(-2), [
      ['getIpcHandle', 4096],
      ['getIpcHandle', 200],
    ]);
    assert.deepEqual([part.byteOffset - whole.byteOffset, part.byteLength], [100, 200]);
    assert.deepEqual([part.handle, part.bufferId], [whole.handle, whole.bufferId]);
    assert.equal(manager.allocations.size, 1);
  });

  test('getMemoryInfo serves context.memoryInfo()', () => {
    manager.info = { free: 32, total: 64 };
    assert.deepEqual(context.memoryInfo(), { free: 32, total: 64 });
    manager.info = undefined;
    assert.ok(context.memoryInfo().total > 64);
  });

  test('deferCleanup nests, survives an exception, and holds everything back', async () => {
    const { free } = context.memoryInfo();
    assert.throws(() => {
      using _outer = context.deferCleanup();
      {
        using _inner = context.deferCleanup();
        assert.equal(manager.deferrals, 2);
        DeviceBuffer.allocate(64 << 20).close();
      }
      assert.equal(manager.deferrals, 1);
      assert.ok(context.memoryInfo().free < free);
      throw new Error('out of the scope');
    }, /out of the scope/);
    assert.equal(manager.deferrals, 0);
    await context.flush();
    assert.equal(context.memoryInfo().free, free);
  });

  test('a buffer that is closed behind a held stream is freed after it, without waiting', async () => {
    using stream = Stream.create({ nonBlocking: true });
    const { free } = context.memoryInfo();
    {
      using latch = new Latch();
      const buffer = DeviceBuffer.allocate(64 << 20, { stream });
      latch.hold(stream);
      buffer.fill(1, { stream });
      buffer.close({ stream });
      assert.equal(manager.allocations.size, 0);
      assert.ok(context.memoryInfo().free < free);
    }
    await context.flush();
    assert.equal(context.memoryInfo().free, free);
  });

  test('nothing stays of what was allocated and closed', async () => {
    const array = new Uint8Array(new ArrayBuffer(4 << 17), 1 << 17, 4096);
    const mapped = MappedMemory.create();
    const cycle = (): void => {
      DeviceBuffer.allocate(4 << 20).close();
      PinnedBuffer.allocate(5000).close();
      PinnedBuffer.allocate(5000, { writeCombined: true, mapped: true }).close();
      mapped.allocate(5000).close();
      pin(array).close();
    };
    cycle();
    const before = processState();
    for (let times = 0; times < iterations(50, 10_000); times += 1) cycle();
    await context.flush();
    assert.deepEqual(processState(), before);
    assert.equal(manager.allocations.size, 0);
  });

  test('another device has a manager of its own', {
    skip: Device.count > 1 ? false : 'there is one device',
  }, () => {
    using buffer = DeviceBuffer.allocate(80, { device: 1 });
    const other = memoryManager(buffer.context) as Recording;
    assert.notEqual(other, manager);
    assert.deepEqual([...other.allocations.values()], [80]);
    assert.equal(manager.allocations.size, 0);
  });

  // The last one, as it closes everything.
  test('context.reset() resets the manager, which then serves anew', async () => {
    const buffer = DeviceBuffer.allocate(80);
    const pinned = PinnedBuffer.allocate(5000);
    const kept = new Uint8Array(pinned.buffer).fill(1);
    await context.reset();
    assert.equal(manager.calls.at(-1), 'reset');
    for (const closed of [buffer, pinned]) assert.equal(closed.closed, true);
    assert.ok(kept.length === 5000);
    buffer.close();
    DeviceBuffer.allocate(80).close();
    assert.equal(manager.calls.at(-1), 'initialize');
    assert.equal(memoryManager(), manager);
    assert.equal(manager.allocations.size, 0);
  });
});
