import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { OUT0, readHandle } from '../../../ffi/arena.ts';
import { cu, recordCalls, selectDriver } from '../../../ffi/driver.ts';
import type { CUcontext } from '../../../ffi/types.ts';
import {
  Context,
  CudaEvent,
  Device,
  DeviceBuffer,
  NotSupportedError,
  Stream,
} from '../../../src/index.ts';
import { recordCallsOf } from '../../support/arguments.ts';
import { failing } from '../../support/faults.ts';
import { turns } from '../../support/iterations.ts';
import { loadKernels } from '../../support/kernels.ts';
import { Latch } from '../../support/latch.ts';
import { leaves } from '../../support/left-open.ts';
import { currentContext, emulate, ForeignContext } from './emulate.ts';

describe('Context', () => {
  test('the first use opens the primary context, naming it does not', () => {
    emulate();
    const recorder = recordCalls();
    const context = Context.primary(0);
    assert.equal(Context.primary(Device.get(0)), context);
    assert.ok(!recorder.calls.some((call) => call.name.includes('Ctx')));
    context.memoryInfo();
    context.memoryInfo();
    recorder.stop();
    const retained = recorder.calls.filter((call) => call.name === 'cuDevicePrimaryCtxRetain');
    assert.equal(retained.length, 1);
  });

  test('two devices work in one program, and each object stays on its own device', async () => {
    emulate({ CUFFI_EMULATED_DEVICES: '2' });
    const [first, second] = [Context.primary(0), Context.primary(1)];
    assert.notEqual(first, second);
    assert.notEqual(first.handle, second.handle);
    const before = second.memoryInfo().free;
    using here = DeviceBuffer.allocate(4096);
    using there = DeviceBuffer.allocate(4096, { device: 1 });
    assert.equal(there.context, second);
    assert.ok(second.memoryInfo().free < before);
    here.fill(1);
    there.fill(2);
    assert.deepEqual(new Set(await here.copyToHost()), new Set([1]));
    assert.deepEqual(new Set(await there.copyToHost()), new Set([2]));
    assert.equal(currentContext(), 0);
  });

  test('a place is either a context or a device', () => {
    emulate();
    const context = Context.primary();
    assert.throws(() => DeviceBuffer.allocate(1, { context, device: 0 }), {
      name: 'TypeError',
      message: 'pass either a context or a device, not both',
    });
    for (const place of [{ context: {} }, { context: null }, { device: {} }, { device: '0' }])
      assert.throws(
        () => DeviceBuffer.allocate(1, place as never),
        TypeError,
        JSON.stringify(place),
      );
    assert.throws(() => DeviceBuffer.allocate(1, { device: 7 }), RangeError);
  });

  test('run() makes the context current for its function, and restores the previous one if that throws', () => {
    emulate();
    const context = Context.primary();
    const result = context.run(() => {
      assert.equal(currentContext(), context.handle);
      assert.equal(Context.current(), context);
      return context.run(() => 'inner');
    });
    assert.equal(result, 'inner');
    const error = new Error('mine');
    assert.throws(
      () =>
        context.run(() => {
          throw error;
        }),
      (got) => got === error,
    );
    assert.equal(currentContext(), 0);
    assert.equal(Context.current(), undefined);
  });

  test('a context of another library is borrowed, used, and never reset', async () => {
    emulate();
    using foreign = new ForeignContext();
    const context = Context.current() as Context;
    assert.equal(context.handle, foreign.handle);
    assert.equal(context.borrowed, true);
    assert.equal(context.device, Device.get(0));
    using buffer = DeviceBuffer.allocate(64, { context });
    buffer.fill(9);
    assert.deepEqual(new Set(await buffer.copyToHost()), new Set([9]));
    assert.throws(() => context.resetSync(), NotSupportedError);
    await assert.rejects(context.reset(), NotSupportedError);
    assert.ok(foreign.isCurrent);
  });

  test('fromHandle() rejects a handle that is not a context, and nothing becomes current', () => {
    emulate();
    for (const handle of [0, -1, 0.5])
      assert.throws(() => Context.fromHandle(handle as never), RangeError);
    assert.throws(() => Context.fromHandle(0xdead as never), {
      name: 'CudaError',
      message: /while borrowing context 57005/,
    });
    assert.equal(currentContext(), 0);
  });

  test('limits have names, and the error for an unknown name lists them', () => {
    emulate();
    const context = Context.primary();
    assert.equal(context.setLimit('stackSize', 2048), 2048);
    assert.equal(context.limit('stackSize'), 2048);
    for (const name of ['stack', 'toString', undefined])
      assert.throws(() => context.limit(name as never), {
        name: 'TypeError',
        message: /; known: stackSize, printfFifoSize/,
      });
    for (const value of [-1, 0.5, Number.NaN])
      assert.throws(() => context.setLimit('stackSize', value), RangeError);
    assert.throws(() => context.limit('devRuntimeSyncDepth'), {
      code: 'CUDA_ERROR_UNSUPPORTED_LIMIT',
      message: /while reading devRuntimeSyncDepth/,
    });
  });

  test('a reset closes all objects and frees their memory, and the context works again', async () => {
    emulate();
    const context = Context.primary();
    const { free } = context.memoryInfo();
    const resources = [
      DeviceBuffer.allocate(1 << 20),
      DeviceBuffer.allocate(16).subarray(0, 8),
      Stream.create(),
      CudaEvent.create(),
    ];
    await context.reset();
    for (const resource of resources) {
      assert.equal(resource.closed, true);
      resource.close();
    }
    assert.throws(() => (resources[0] as DeviceBuffer).address, {
      name: 'ClosedError',
      message: /^this DeviceBuffer is closed: its context was reset$/m,
    });
    assert.equal(context.memoryInfo().free, free);
    assert.equal(context.resources.size, 0);
    assert.equal(Context.primary(), context);
    using again = DeviceBuffer.allocate(16);
    again.fill(4);
    assert.deepEqual(new Set(await again.copyToHost()), new Set([4]));
    assert.equal(currentContext(), 0);
  });

  test('a reset waits for blocked work without blocking the event loop, and can be aborted', async () => {
    emulate();
    const context = Context.primary();
    using stream = Stream.create({ nonBlocking: true });
    const latch = new Latch(context);
    latch.hold(stream);
    const reason = new Error('not now');
    const controller = new AbortController();
    const resetting = context.reset({ signal: controller.signal });
    await turns(3);
    controller.abort(reason);
    await assert.rejects(resetting, (error) => error === reason);
    assert.equal(stream.closed, false);
    latch[Symbol.dispose]();
    await context.reset();
    assert.equal(stream.closed, true);
  });

  test('a reset runs pending releases first, and each only once', async () => {
    emulate();
    const context = Context.primary();
    const stream = Stream.create({ nonBlocking: true });
    const latch = new Latch(context);
    latch.hold(stream);
    const buffer = DeviceBuffer.allocate(4096);
    buffer.close();
    assert.equal(context.releases.size, 1);
    latch[Symbol.dispose]();
    const recorder = recordCalls();
    context.resetSync();
    await context.flush();
    await turns(3);
    recorder.stop();
    const frees = recorder.calls.filter(({ name }) => name.startsWith('cuMemFree'));
    assert.equal(frees.length, 1);
    stream.close();
  });

  test('an awaited copy and an awaited stream end when their context is reset', async () => {
    emulate();
    const context = Context.primary();
    const stream = Stream.create({ nonBlocking: true });
    const latch = new Latch(context);
    const buffer = DeviceBuffer.allocate(4096);
    latch.hold(stream);
    const copying = assert.rejects(buffer.copyToHost(undefined, { stream }), {
      name: 'ClosedError',
      message: /its context was reset/,
    });
    const waiting = assert.rejects(stream.synchronize(), { name: 'ClosedError' });
    latch[Symbol.dispose]();
    context.resetSync();
    await copying;
    await waiting;
  });

  test('an error of the GPU rejects synchronize()', async () => {
    const driver = emulate();
    selectDriver(failing(driver, 'cuStreamQuery', 1, 700));
    const broken = Context.primary();
    broken.memoryInfo();
    await assert.rejects(broken.synchronize(), { name: 'CudaError', sticky: true });
  });

  test('memory is not freed while a stream of another context uses it', async () => {
    emulate({ CUFFI_EMULATED_DEVICES: '2' });
    const [first, second] = [Context.primary(0), Context.primary(1)];
    const latch = new Latch(first);
    using stream = Stream.create({ context: first, nonBlocking: true });
    using source = DeviceBuffer.allocate(4 << 20, { context: first });
    const target = DeviceBuffer.allocate(4 << 20, { context: second });
    const { free } = second.memoryInfo();
    latch.hold(stream);
    source.copyTo(target, { stream });
    target.close();
    assert.equal(second.memoryInfo().free, free);
    latch.open();
    await second.flush();
    assert.equal(second.memoryInfo().free, free + (4 << 20));
    latch[Symbol.dispose]();
  });

  test('memory is not freed while a borrowed stream uses it', async () => {
    emulate();
    const context = Context.primary();
    using owner = Stream.create({ nonBlocking: true });
    const borrowed = Stream.fromHandle(owner.handle);
    context.workTracker.forget(owner.handle); // as if another library had made it
    const latch = new Latch(context);
    const buffer = DeviceBuffer.allocate(4096);
    latch.hold(borrowed);
    buffer.fill(1, { stream: borrowed });
    buffer.close();
    assert.equal(context.releases.size, 1);
    latch.open();
    await context.flush();
    assert.equal(context.releases.size, 0);
    latch[Symbol.dispose]();
  });

  test('the check for a primary context leaves no reference to it', () => {
    emulate();
    assert.ok(Context.primary().handle);
    using foreign = new ForeignContext();
    using recorder = recordCalls();
    assert.equal(Context.fromHandle(foreign.handle).borrowed, true);
    assert.deepEqual(
      recorder.calls
        .map(({ name }) => name)
        .filter((name) => name.startsWith('cuDevicePrimaryCtxR')),
      ['cuDevicePrimaryCtxRetain', 'cuDevicePrimaryCtxRelease_v2'],
    );
  });

  test('peer access is enabled again after a reset of either context', () => {
    emulate({ CUFFI_EMULATED_DEVICES: '2' });
    const [first, second] = [Context.primary(0), Context.primary(1)];
    for (const reset of [undefined, first, second]) {
      reset?.resetSync();
      using recorder = recordCalls();
      for (let n = 0; n < 2; n += 1) first.enablePeerAccess(second);
      const asked = recorder.calls.filter(({ name }) => name === 'cuCtxEnablePeerAccess');
      assert.equal(asked.length, 1);
    }
  });

  test('a reset calls its listeners once the context is empty', () => {
    emulate();
    const context = Context.primary();
    using stream = Stream.create();
    const told: boolean[] = [];
    const tell = (): unknown => told.push(stream.closed);
    context.onReset.add(tell);
    context.resetSync();
    assert.deepEqual(told, [true]);
    context.onReset.delete(tell);
  });

  test('the primary context is recognized even if another library retained it first', () => {
    emulate();
    assert.equal(cu.cuInit(0), 0);
    assert.equal(cu.cuDevicePrimaryCtxRetain(OUT0, Device.get(0).handle), 0);
    const handle = readHandle<CUcontext>(OUT0);
    const found = Context.fromHandle(handle);
    assert.equal(found, Context.primary());
    assert.equal(found.borrowed, false);
  });

  test('flush() resolves at once if nothing is pending, and in a context that was never used', async () => {
    emulate();
    const recorder = recordCalls();
    await Context.primary().flush();
    recorder.stop();
    assert.ok(!recorder.calls.some((call) => call.name.includes('Ctx')));
    assert.equal(typeof cu.cuInit, 'function');
  });

  test('a release that resets the context drops all other pending releases', async () => {
    leaves(/of latch$/, 'the reset has taken the registration of the latch');
    const told = recordCallsOf(emulate(), 'cuStreamDestroy_v2', 'cuModuleUnload', 'cuMemFree_v2');
    const context = Context.primary();
    const stream = Stream.create({ nonBlocking: true });
    const [other, module, buffer] = [Stream.create(), loadKernels(), DeviceBuffer.allocate(1024)];
    const latch = new Latch();
    latch.hold(stream);
    const gone: readonly unknown[] = [other.handle, module.handle, buffer.address];
    context.releases.enqueue(() => context.resetSync());
    for (const object of [other, module, buffer]) object.close();
    context.releases.drainReady();
    latch.open();
    await stream.synchronize();
    assert.equal(context.releases.drainReady(), true);
    // Afterwards the same numbers may name what others made.
    assert.ok(!told.some(([, handle]) => gone.includes(handle)));
    assert.deepEqual(context.pendingReleases, { count: 0, byteLength: 0 });
    await context.flush();
  });
});
