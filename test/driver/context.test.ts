import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { OUT0, readHandle } from '../../ffi/arena.ts';
import { cu } from '../../ffi/driver.ts';
import type { CUcontext } from '../../ffi/types.ts';
import {
  Context,
  CudaEvent,
  Device,
  DeviceBuffer,
  MemoryPool,
  NotSupportedError,
  Stream,
  VirtualMemory,
} from '../../src/index.ts';
import { turns } from '../support/iterations.ts';
import { Latch } from '../support/latch.ts';

/** A context of another library, current on this thread. */
function foreignContext(): CUcontext {
  assert.equal(cu.cuCtxCreate_v2(OUT0, 0, Device.get().handle), 0);
  return readHandle<CUcontext>(OUT0);
}
const currentHandle = (): number => {
  assert.equal(cu.cuCtxGetCurrent(OUT0), 0);
  return readHandle(OUT0);
};

describe('Context', () => {
  test('the primary context is one object, and is never left current', () => {
    const context = Context.primary();
    assert.equal(Context.primary(Device.get(0)), context);
    assert.equal(context.borrowed, false);
    const before = currentHandle();
    DeviceBuffer.allocate(16).close();
    assert.equal(currentHandle(), before);
    assert.equal(Context.current()?.handle, before || undefined);
    context.run(() => assert.equal(Context.current(), context));
  });

  test('a foreign context that was current stays current, on success and on error', () => {
    const foreign = foreignContext();
    try {
      const context = Context.primary();
      context.memoryInfo();
      assert.equal(currentHandle(), foreign);
      assert.throws(() => DeviceBuffer.allocate(2 ** 46, { context }), {
        code: 'CUDA_ERROR_OUT_OF_MEMORY',
      });
      assert.equal(currentHandle(), foreign);
      const borrowed = Context.current();
      assert.equal(borrowed?.handle, foreign);
      assert.equal(borrowed?.borrowed, true);
      assert.equal(borrowed?.device, Device.get(0));
      using buffer = DeviceBuffer.allocate(64, { context: borrowed as Context });
      buffer.copyFromSync(new Uint8Array(64).fill(3));
      assert.deepEqual(buffer.copyToHostSync(), new Uint8Array(64).fill(3));
      assert.throws(() => borrowed?.resetSync(), NotSupportedError);
    } finally {
      assert.equal(cu.cuCtxDestroy_v2(foreign), 0);
    }
  });

  test('limits are read and set by name', () => {
    const context = Context.primary();
    assert.ok(context.setLimit('stackSize', 4096) >= 4096);
    assert.ok(context.limit('stackSize') >= 4096);
    assert.throws(() => context.limit('stack' as never), /unknown limit 'stack'; known: stackSize/);
    assert.throws(() => context.setLimit('stackSize', -1), RangeError);
  });

  test('memory information is of the device, and follows an allocation', () => {
    const context = Context.primary();
    const before = context.memoryInfo();
    assert.ok(before.free <= before.total);
    using buffer = DeviceBuffer.allocate(64 << 20);
    assert.equal(before.free - context.memoryInfo().free, buffer.byteLength);
  });

  test('synchronize waits for a held stream while the event loop turns', async () => {
    const context = Context.primary();
    using stream = Stream.create({ nonBlocking: true });
    using latch = new Latch(context);
    latch.hold(stream);
    let synchronized = false;
    const waiting = context.synchronize().then(() => {
      synchronized = true;
    });
    await turns();
    assert.equal(synchronized, false);
    latch.open();
    await waiting;
    assert.equal(stream.done, true);
  });

  test('an aborted wait rejects with the reason, and the work goes on', async () => {
    using stream = Stream.create({ nonBlocking: true });
    using latch = new Latch();
    latch.hold(stream);
    const reason = new Error('no longer needed');
    await assert.rejects(
      stream.synchronize({ signal: AbortSignal.abort(reason) }),
      (error) => error === reason,
    );
    const controller = new AbortController();
    const waiting = stream.synchronize({ signal: controller.signal });
    controller.abort(reason);
    await assert.rejects(waiting, (error) => error === reason);
    assert.equal(stream.done, false);
  });

  test('after a reset everything made before is closed, and the context works again', async () => {
    const context = Context.primary();
    const stream = Stream.create();
    const event = CudaEvent.create();
    const buffer = DeviceBuffer.allocate(1024);
    const view = buffer.subarray(0, 16);
    event.record(stream);
    await context.reset();
    for (const resource of [stream, event, buffer, view]) assert.equal(resource.closed, true);
    assert.throws(() => stream.done, { name: 'ClosedError', message: /its context was reset/ });
    assert.throws(() => buffer.copyToHostSync(), { name: 'ClosedError' });
    buffer.close();
    using again = DeviceBuffer.allocate(1024);
    again.copyFromSync(new Uint8Array(1024).fill(9));
    assert.equal((await again.copyToHost())[1023], 9);
  });

  test('a reset gives back what the driver would keep over it: pools and virtual memory', async () => {
    const context = Context.primary();
    const size = 64 << 20;
    const used = (): number => context.device.totalMemory - context.memoryInfo().free;
    await context.reset();
    const before = used();
    const virtual = (): VirtualMemory => {
      const memory = VirtualMemory.reserve(size);
      memory.grow(size);
      return memory;
    };
    const make: readonly (() => DeviceBuffer | VirtualMemory)[] = [
      virtual,
      () => MemoryPool.create({ maxSize: 2 * size }).allocate(size),
      () => MemoryPool.default().allocate(size),
    ];
    for (const allocate of make) {
      const deferral = context.deferCleanup();
      const [closed, open] = [allocate(), allocate()];
      closed.close();
      await context.reset();
      deferral[Symbol.dispose]();
      assert.equal(open.closed, true);
      assert.ok(used() - before < size / 2, `${allocate} left ${used() - before} bytes`);
    }
  });
});
