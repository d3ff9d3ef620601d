import assert from 'node:assert/strict';
import { afterEach, describe, test } from 'node:test';
import { OUT0, readHandle } from '../../../ffi/arena.ts';
import { CU_STREAM_LEGACY, CU_STREAM_NON_BLOCKING } from '../../../ffi/constants.ts';
import { cu, recordCalls, selectDriver } from '../../../ffi/driver.ts';
import { CUresult } from '../../../ffi/results.ts';
import type { CUstream } from '../../../ffi/types.ts';
import {
  Context,
  CudaEvent,
  DeviceBuffer,
  MemoryPool,
  Stream,
  VirtualMemory,
} from '../../../src/index.ts';
import { Timeline } from '../../../src/ipc/index.ts';
import { recordCallsOf } from '../../support/arguments.ts';
import { broken, failing } from '../../support/faults.ts';
import { loadKernels } from '../../support/kernels.ts';
import { Latch } from '../../support/latch.ts';
import { emulate, ForeignContext } from './emulate.ts';

const MIB = 1 << 20;

describe('WorkTracker', () => {
  test('memory that another device used waits for that work, and for no later work', async () => {
    emulate({ CUFFI_EMULATED_DEVICES: '2' });
    const there = Context.primary(1);
    const first = Stream.create({ context: there, nonBlocking: true });
    const second = Stream.create({ context: there, nonBlocking: true });
    using latch = new Latch(there);
    using later = new Latch(there);
    const source = DeviceBuffer.allocate(MIB, { device: 0 });
    const target = DeviceBuffer.allocate(MIB, { device: 1 });
    latch.hold(first);
    source.copyTo(target, { stream: first });
    source.close();
    const flushing = Context.primary(0).flush();
    assert.equal(Context.primary(0).pendingReleases.count, 1);
    later.hold(second);
    latch.open();
    await flushing;
    assert.equal(second.done, false);
  });

  test('work of every stream counts after a reset as before, that of the default stream included', async () => {
    emulate();
    const context = Context.primary();
    for (const isReset of [false, true]) {
      if (isReset) context.resetSync();
      {
        // Of another library, which tells nobody.
        using latch = new Latch();
        const { devicePointer } = latch;
        context.run(() =>
          assert.equal(cu.cuStreamWaitValue32_v2(CU_STREAM_LEGACY, devicePointer, 1, 0), 0),
        );
        assert.equal(context.workTracker.areStreamsIdle(), false, `${isReset}`);
      }
      for (const stream of [undefined, Stream.create({ nonBlocking: true })]) {
        using timeline = Timeline.create();
        using signaling = Stream.create({ nonBlocking: true });
        assert.equal(context.workTracker.areStreamsIdle(), true);
        timeline.wait(1, stream && { stream });
        assert.equal(context.workTracker.areStreamsIdle(), false, `${isReset} ${stream}`);
        const buffer = DeviceBuffer.allocate(64);
        buffer.close();
        assert.equal(context.pendingReleases.count, 1);
        timeline.signal(1, { stream: signaling });
        await context.flush();
        stream?.close();
      }
      await context.flush();
    }
  });

  describe('asks a stream', () => {
    let queries: ReturnType<typeof recordCallsOf>;
    const isAsked = (stream: Stream): boolean => {
      queries.length = 0;
      Context.primary().workTracker.areStreamsIdle();
      return queries.some(([, handle]) => handle === stream.queryHandle);
    };

    const queue: Readonly<
      Record<string, (stream: Stream, buffer: DeviceBuffer) => Disposable | undefined>
    > = {
      'that filled memory': (stream, buffer) => {
        buffer.fill(1, { stream });
        return undefined;
      },
      'that waited for an event': (stream) => {
        const event = CudaEvent.create();
        event.record();
        stream.wait(event);
        return event;
      },
      'where an event was recorded': (stream) => {
        const event = CudaEvent.create();
        event.record(stream);
        return event;
      },
      'that allocated memory of a pool': (stream) => {
        const pool = MemoryPool.create();
        pool.allocate(64, { stream });
        return { [Symbol.dispose]: () => pool.close({ buffers: true }) };
      },
      'that launched a kernel': (stream, buffer) => {
        const module = loadKernels();
        module.kernel('narrow', ['pointer']).launch({ grid: 1, block: 7, stream }, buffer);
        return module;
      },
    };
    for (const [what, use] of Object.entries(queue))
      test(`${what} once it may have work, and no more when that is done`, async () => {
        queries = recordCallsOf(emulate(), 'cuStreamQuery');
        using stream = Stream.create({ nonBlocking: true });
        using buffer = DeviceBuffer.allocate(64);
        assert.equal(isAsked(stream), false);
        const used = use(stream, buffer);
        assert.equal(isAsked(stream), true);
        await Context.primary().synchronize();
        assert.equal(isAsked(stream), false);
        used?.[Symbol.dispose]();
      });

    test('always, once others have its handle', async () => {
      emulate();
      using latch = new Latch();
      const stream = Stream.create({ nonBlocking: true });
      const { handle } = stream;
      await Context.primary().synchronize();
      assert.equal(cu.cuStreamWaitValue32_v2(handle, latch.devicePointer, 1, 0), 0);
      const buffer = DeviceBuffer.allocate(64);
      buffer.close();
      assert.equal(Context.primary().pendingReleases.count, 1);
      latch.open();
      await Context.primary().flush();
      stream.close();
    });

    test('whose call found it idle before it queued its work', async () => {
      emulate();
      using stream = Stream.create({ nonBlocking: true });
      using latch = new Latch();
      const { workTracker } = Context.primary();
      stream.enqueue((handle) => {
        assert.equal(workTracker.areStreamsIdle(), true);
        cu.cuStreamWaitValue32_v2(handle, latch.devicePointer, 1, 0);
      });
      assert.equal(workTracker.areStreamsIdle(), false);
    });
  });

  /** Counts the events that the driver makes until it is disposed of. */
  function countEvents(): Disposable & { readonly made: number } {
    const recorder = recordCalls();
    return {
      get made() {
        return recorder.calls.filter(({ name }) => name === 'cuEventCreate').length;
      },
      [Symbol.dispose]: () => recorder.stop(),
    };
  }

  /** A stream of another library, which cuffi only knows by what it queues there. */
  const theirs: CUstream[] = [];
  afterEach(() => {
    for (const handle of theirs.splice(0)) cu.cuStreamDestroy_v2(handle);
  });

  function theirStream(context = Context.primary()): Stream {
    context.run(() =>
      assert.equal(cu.cuStreamCreateWithPriority(OUT0, CU_STREAM_NON_BLOCKING, 0), 0),
    );
    const handle = readHandle<CUstream>(OUT0);
    theirs.push(handle);
    return Stream.fromHandle(handle, { context });
  }

  test('work in borrowed streams leaves no event behind', async () => {
    emulate();
    using events = countEvents();
    using buffer = DeviceBuffer.allocate(1024);
    for (let n = 0; n < 20; n += 1) {
      const owner = Stream.create();
      buffer.fill(n, { stream: Stream.fromHandle(owner.handle) });
      await owner.synchronize();
      owner.close();
    }
    assert.equal(events.made, 1);
  });

  test('repeated draining makes few events', async () => {
    emulate();
    const context = Context.primary();
    using stream = Stream.create({ nonBlocking: true });
    using latch = new Latch(context);
    {
      // The work of each release ends before that of the next is queued.
      using events = countEvents();
      for (let n = 0; n < 20; n += 1) {
        latch.word.shut();
        latch.hold(stream);
        context.releases.enqueue(() => {});
        assert.equal(context.releases.drainReady(), false);
        latch.open();
        await context.flush();
      }
      assert.equal(events.made, 1);
    }
    latch.word.shut();
    latch.hold(stream);
    using events = countEvents();
    for (let n = 0; n < 300; n += 1) {
      context.releases.enqueue(() => {});
      context.releases.drainReady();
    }
    // One for each of the batches, of which there are at most 64.
    assert.ok(events.made <= 64, `${events.made}`);
    latch.open();
    await context.flush();
  });

  test('a fence waits only for the work before it, even if the stream goes on', () => {
    emulate();
    const { workTracker } = Context.primary();
    const stream = theirStream();
    using before = new Latch();
    using after = new Latch();
    before.hold(stream);
    const fences = [workTracker.fence(), workTracker.fence()];
    after.hold(stream);
    assert.ok(fences.every((fence) => !fence.isDone()));
    before.open();
    assert.ok(fences.every((fence) => fence.isDone()));
    assert.equal(workTracker.areStreamsIdle(), false);
  });

  test('a fence that was not queried since its work was done does not wait for other work', () => {
    emulate();
    const { workTracker } = Context.primary();
    using before = new Latch();
    using after = new Latch();
    before.hold(theirStream());
    const fence = workTracker.fence();
    before.open();
    assert.equal(workTracker.areStreamsIdle(), true);
    after.hold(theirStream());
    assert.equal(fence.isDone(), true);
    assert.equal(workTracker.areStreamsIdle(), false);
  });

  test('work whose fence was disposed, or is done, still counts as running', () => {
    emulate();
    const { workTracker } = Context.primary();
    using buffer = DeviceBuffer.allocate(16);
    const [held, other] = [theirStream(), theirStream()];
    using latch = new Latch();
    latch.hold(held);
    const fences = [workTracker.fence(), workTracker.fence()];
    for (const fence of fences) {
      fence.dispose();
      // Marked by an event of its own.
      buffer.fill(1, { stream: other });
      assert.equal(workTracker.areStreamsIdle(), false);
    }
    latch.open();
    assert.equal(workTracker.areStreamsIdle(), true);
  });

  test('an event that two fences use is not recorded again when one of them releases it', () => {
    emulate();
    const { workTracker } = Context.primary();
    const stream = theirStream();
    using before = new Latch();
    using after = new Latch();
    before.hold(stream);
    const [dropped, kept] = [workTracker.fence(), workTracker.fence()];
    dropped.dispose();
    after.hold(stream);
    before.open();
    assert.equal(kept.isDone(), true);
    after.open();
  });

  test('a fence that fails halfway releases its events', () => {
    const emulated = emulate();
    // The first is behind the work of the borrowed stream, the second would be the fence's own.
    selectDriver(failing(emulated, 'cuEventCreate', 2, CUresult.CUDA_ERROR_OUT_OF_MEMORY));
    const { workTracker } = Context.primary();
    const stream = theirStream();
    using own = Stream.create({ nonBlocking: true });
    using latch = new Latch();
    using later = new Latch();
    latch.hold(stream);
    latch.hold(own);
    assert.equal(workTracker.fence().isDone(), false);
    using events = countEvents();
    // Its last event is free to be recorded again.
    later.hold(stream);
    assert.equal(events.made, 0);
    latch.open();
    later.open();
  });

  test('a stream whose event cannot be recorded for a fence loses no event, and is waited for', () => {
    const emulated = emulate();
    selectDriver(broken(emulated, 'cuEventRecord', CUresult.CUDA_ERROR_OUT_OF_MEMORY));
    const { workTracker } = Context.primary();
    using stream = Stream.create({ nonBlocking: true });
    using latch = new Latch();
    latch.hold(stream);
    using events = countEvents();
    const fences = Array.from({ length: 20 }, () => workTracker.fence());
    assert.equal(events.made, 1);
    assert.ok(fences.every((fence) => !fence.isDone()));
    latch.open();
    assert.ok(fences.every((fence) => fence.isDone()));
  });

  test('work without an event to record is not queued', () => {
    const emulated = emulate();
    selectDriver(failing(emulated, 'cuEventCreate', 1, CUresult.CUDA_ERROR_OUT_OF_MEMORY));
    const owner = Stream.create();
    const borrowed = Stream.fromHandle(owner.handle);
    const memory = VirtualMemory.reserve(MIB);
    const buffer = memory.grow(MIB);
    using recorder = recordCalls();
    assert.throws(() => buffer.fill(1, { stream: borrowed }), { call: 'cuEventCreate' });
    assert.ok(!recorder.calls.some(({ name }) => name.startsWith('cuMemset')));
  });

  test('work whose event cannot be recorded counts as running until it is', async () => {
    const emulated = emulate();
    selectDriver(failing(emulated, 'cuEventRecord', 1, CUresult.CUDA_ERROR_OUT_OF_MEMORY));
    const context = Context.primary();
    using owner = Stream.create();
    using latch = new Latch(context);
    latch.hold(owner);
    const memory = VirtualMemory.reserve(MIB);
    memory.grow(MIB).fill(1, { stream: Stream.fromHandle(owner.handle) });
    memory.close();
    assert.equal(context.pendingReleases.count, 1);
    latch.open();
    await context.flush();
  });

  test('work whose event is never recorded counts as running until the context is synchronized', () => {
    const emulated = emulate();
    selectDriver(broken(emulated, 'cuEventRecord', CUresult.CUDA_ERROR_OUT_OF_MEMORY));
    const context = Context.primary();
    using owner = Stream.create();
    const memory = VirtualMemory.reserve(MIB);
    memory.grow(MIB).fill(1, { stream: Stream.fromHandle(owner.handle) });
    memory.close();
    assert.equal(context.releases.drainReady(true), false);
    context.synchronizeSync();
    assert.equal(context.releases.drainReady(true), true);
  });

  test('a borrowed context is not queried after its work is done: its owner may destroy it', async () => {
    const told = recordCallsOf(emulate(), 'cuCtxPushCurrent_v2');
    const context = Context.primary();
    using buffer = DeviceBuffer.allocate(64);
    using foreign = new ForeignContext();
    const theirs = Context.fromHandle(foreign.handle);
    using latch = new Latch(theirs);
    {
      using stream = Stream.create({ context: theirs, nonBlocking: true });
      latch.hold(stream);
      buffer.fill(1, { stream });
      assert.equal(context.workTracker.isIdle(), false);
      latch.open();
      await stream.synchronize();
    }
    assert.equal(context.workTracker.isIdle(), true);
    told.length = 0;
    assert.equal(context.workTracker.isIdle(), true);
    assert.deepEqual(
      told.map(([, handle]) => handle),
      [context.handle],
    );
  });

  test('earlier work does not count after a reset, nor does that of other contexts', () => {
    emulate({ CUFFI_EMULATED_DEVICES: '2' });
    const [here, there] = [Context.primary(0), Context.primary(1)];
    const stream = Stream.create({ context: there, nonBlocking: true });
    const latch = new Latch(there);
    const buffer = DeviceBuffer.allocate(64);
    latch.hold(stream);
    buffer.fill(1, { stream: Stream.legacyDefault() });
    here.synchronizeSync();
    here.workTracker.addOtherContext(there.workTracker);
    assert.equal(here.workTracker.isIdle(), false);
    here.resetSync();
    assert.equal(here.workTracker.isIdle(), true);
    latch[Symbol.dispose]();
    stream.close();
  });

  test('work without an event does not count after a reset that could not wait', () => {
    const emulated = emulate();
    let isBroken = true;
    const { CUDA_ERROR_OUT_OF_MEMORY: NO_EVENT, CUDA_ERROR_LAUNCH_FAILED: FAILED } = CUresult;
    selectDriver({
      ...emulated,
      cuEventRecord: (event, stream) =>
        isBroken ? NO_EVENT : emulated.cuEventRecord(event, stream),
      cuCtxSynchronize: () => (isBroken ? FAILED : emulated.cuCtxSynchronize()),
    });
    const context = Context.primary();
    using buffer = DeviceBuffer.allocate(64);
    buffer.fill(1);
    assert.equal(context.workTracker.areStreamsIdle(), false);
    context.resetSync();
    isBroken = false;
    // It is open again.
    using again = DeviceBuffer.allocate(64);
    assert.equal(again.closed, false);
    assert.equal(context.workTracker.areStreamsIdle(), true);
  });
});

describe('a context that cannot be entered', () => {
  /** What `cuCtxPushCurrent_v2` returns in place of success; undefined: it works. */
  function refusingEntry(): { status: CUresult | undefined } {
    const emulated = emulate();
    const entry: { status: CUresult | undefined } = { status: undefined };
    selectDriver({
      ...emulated,
      cuCtxPushCurrent_v2: (context) => entry.status ?? emulated.cuCtxPushCurrent_v2(context),
    });
    return entry;
  }

  test('its work counts as running, unless the context is gone', () => {
    const entry = refusingEntry();
    const { workTracker } = Context.primary();
    using stream = Stream.create({ nonBlocking: true });
    using latch = new Latch();
    latch.hold(stream);
    const unknown = [1, 2, 400, 801, 999];
    const over = [4, 201, 709, 719];
    for (const status of [...unknown, ...over]) {
      entry.status = status as CUresult;
      const fence = workTracker.fence();
      const isIdle = over.includes(status);
      assert.deepEqual(
        [workTracker.areStreamsIdle(), workTracker.isIdle()],
        [isIdle, isIdle],
        `${status}`,
      );
      assert.equal(workTracker.poll(), status);
      entry.status = undefined;
      assert.equal(fence.isDone(), isIdle, `${status}`);
      assert.equal(workTracker.areStreamsIdle(), false);
      fence.dispose();
    }
    latch.open();
    assert.equal(workTracker.areStreamsIdle(), true);
  });

  test('a flush throws, and the next one frees the memory', {
    timeout: 20_000,
  }, async () => {
    const entry = refusingEntry();
    const context = Context.primary();
    using stream = Stream.create({ nonBlocking: true });
    using latch = new Latch();
    latch.hold(stream);
    const buffer = DeviceBuffer.allocate(64);
    buffer.fill(1, { stream });
    entry.status = CUresult.CUDA_ERROR_UNKNOWN;
    buffer.close();
    await assert.rejects(context.flush(), { call: 'cuCtxPushCurrent_v2', status: 999 });
    assert.equal(context.pendingReleases.count, 1);
    entry.status = undefined;
    latch.open();
    await context.flush();
    assert.equal(context.pendingReleases.count, 0);
  });

  test('it can be reset', { timeout: 20_000 }, async () => {
    const entry = refusingEntry();
    const context = Context.primary();
    DeviceBuffer.allocate(64);
    entry.status = CUresult.CUDA_ERROR_UNKNOWN;
    await context.reset();
    entry.status = undefined;
    assert.equal(context.pendingReleases.count, 0);
    using buffer = DeviceBuffer.allocate(64);
    buffer.copyFromSync(new Uint8Array(64).fill(3));
    assert.deepEqual(buffer.copyToHostSync(), new Uint8Array(64).fill(3));
  });
});
