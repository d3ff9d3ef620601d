import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { CU_STREAM_NON_BLOCKING } from '../../../ffi/constants.ts';
import { cu, recordCalls, selectDriver } from '../../../ffi/driver.ts';
import type { CUstream } from '../../../ffi/types.ts';
import {
  Context,
  CudaEvent,
  DeviceBuffer,
  Graph,
  Stream,
  type StreamOptions,
} from '../../../src/index.ts';
import { recordCallsOf } from '../../support/arguments.ts';
import { broken, failing } from '../../support/faults.ts';
import { until } from '../../support/iterations.ts';
import { Latch } from '../../support/latch.ts';
import { emulate, ForeignContext, runProgram } from './emulate.ts';

describe('Stream', () => {
  test('options are checked before the driver is called', () => {
    emulate();
    const recorder = recordCalls();
    assert.throws(() => Stream.create({ nonblocking: true } as never), {
      name: 'TypeError',
      message:
        "Stream.create: unknown option 'nonblocking' (did you mean 'nonBlocking'?); known: context, device, priority, nonBlocking",
    });
    for (const priority of [0.5, Number.NaN, 1e9])
      assert.throws(() => Stream.create({ priority }), RangeError);
    assert.throws(() => Stream.create({ priority: '0' as never }), TypeError);
    assert.throws(() => Stream.create({ nonBlocking: 1 as never }), TypeError);
    recorder.stop();
    assert.deepEqual(recorder.calls, []);
  });

  test('every way of borrowing a stream rejects unknown options, too', () => {
    emulate();
    using owner = Stream.create();
    const wrong = { devise: 1 } as never;
    assert.throws(() => Stream.legacyDefault(wrong), /unknown option 'devise'/);
    assert.throws(() => Stream.perThreadDefault(wrong), /unknown option 'devise'/);
    assert.throws(() => Stream.fromHandle(owner.handle, wrong), /unknown option 'devise'/);
  });

  test('synchronize() rejects an unknown option', async () => {
    emulate();
    using stream = Stream.create();
    await assert.rejects(stream.synchronize({ timeout: 5 } as never), {
      name: 'TypeError',
      message: /unknown option 'timeout' \(did you mean 'timeoutMs'\?\); known: signal, timeoutMs$/,
    });
  });

  test('priority and kind are those that the driver returns', () => {
    emulate();
    const { least, greatest } = Context.primary().streamPriorityRange();
    using urgent = Stream.create({ priority: greatest, nonBlocking: true });
    using plain = Stream.create();
    assert.deepEqual([urgent.priority, urgent.nonBlocking], [greatest, true]);
    assert.deepEqual([plain.priority, plain.nonBlocking], [least, false]);
  });

  test('each option reaches the driver, in the named context', () => {
    const told = recordCallsOf(
      emulate({ CUFFI_EMULATED_DEVICES: '2' }),
      'cuCtxPushCurrent_v2',
      'cuStreamCreateWithPriority',
    );
    const toldFor = (options?: StreamOptions): unknown[] => {
      told.length = 0;
      using _ = Stream.create(options);
      const [, , ...args] = told.find(([name]) => name === 'cuStreamCreateWithPriority') ?? [];
      return args;
    };
    assert.deepEqual(toldFor(), [0, 0]);
    for (const nonBlocking of [false, true])
      for (const priority of [-5, -1, 0, 7])
        assert.deepEqual(toldFor({ nonBlocking, priority }), [
          nonBlocking ? CU_STREAM_NON_BLOCKING : 0,
          priority,
        ]);
    const context = Context.primary(1);
    for (const options of [{ device: 1 }, { context }]) {
      toldFor(options);
      assert.deepEqual(told[0], ['cuCtxPushCurrent_v2', context.handle]);
    }
  });

  test('a closed stream is destroyed when its work is done, whatever is queued later', () => {
    const told = recordCallsOf(emulate(), 'cuStreamDestroy_v2');
    const context = Context.primary();
    using others = Stream.create({ nonBlocking: true });
    using latch = new Latch();
    using otherLatch = new Latch();
    const stream = Stream.create({ nonBlocking: true });
    const { handle } = stream;
    latch.hold(stream);
    stream.close();
    assert.equal(context.releases.drainReady(), false);
    otherLatch.hold(others);
    assert.deepEqual(told, []);
    latch.open();
    assert.equal(context.releases.drainReady(), true);
    assert.deepEqual(told, [['cuStreamDestroy_v2', handle]]);
    assert.equal(others.done, false);
  });

  test('a stream may be closed twice, and every later use throws a ClosedError', async () => {
    emulate();
    const stream = Stream.create();
    using event = CudaEvent.create();
    using buffer = DeviceBuffer.allocate(4);
    stream.close();
    stream.close();
    const uses: (() => unknown)[] = [
      () => stream.handle,
      () => stream.done,
      () => stream.priority,
      () => stream.nonBlocking,
      () => stream.wait(event),
      () => stream.synchronizeSync(),
      () => stream.autoSynchronize(),
      () => event.record(stream),
      () => buffer.fill(0, { stream }),
      () => buffer.copyTo(buffer, { stream }),
      () => buffer.copyToHostSync(undefined, { stream }),
      () => buffer.copyFromSync(new Uint8Array(4), { stream }),
    ];
    for (const use of uses)
      assert.throws(use, { name: 'ClosedError', message: /^this Stream is closed: / }, String(use));
    await assert.rejects(stream.synchronize(), { name: 'ClosedError' });
    await assert.rejects(buffer.copyToHost(undefined, { stream }), { name: 'ClosedError' });
    await assert.rejects(buffer.copyFrom(new Uint8Array(4), { stream }), { name: 'ClosedError' });
  });

  test('a stream that is closed while it is awaited rejects the wait, and is destroyed when idle', async () => {
    emulate();
    const context = Context.primary();
    const latch = new Latch(context);
    const stream = Stream.create({ nonBlocking: true });
    latch.hold(stream);
    const waiting = stream.synchronize();
    const recorder = recordCalls();
    stream.close();
    const destroyed = (): boolean =>
      recorder.calls.some((call) => call.name === 'cuStreamDestroy_v2');
    await assert.rejects(waiting, { name: 'ClosedError' });
    assert.equal(destroyed(), false);
    latch.open();
    await context.flush();
    assert.equal(destroyed(), true);
    recorder.stop();
    latch[Symbol.dispose]();
  });

  test('default and borrowed streams are forgotten, and never destroyed', () => {
    emulate();
    using owner = Stream.create();
    const borrowed = [
      Stream.legacyDefault(),
      Stream.perThreadDefault(),
      Stream.fromHandle(owner.handle),
      Stream.fromHandle(owner.handle, { device: 0 }),
      Stream.fromHandle(1 as CUstream),
    ];
    const recorder = recordCalls();
    for (const stream of borrowed) {
      assert.equal(stream.done, true);
      stream.close();
    }
    recorder.stop();
    assert.ok(!recorder.calls.some((call) => call.name === 'cuStreamDestroy_v2'));
    assert.equal(owner.done, true);
  });

  test('a borrowed stream belongs to the context in which it was made', () => {
    emulate();
    using foreign = new ForeignContext();
    using owner = Stream.create({ context: Context.fromHandle(foreign.handle) });
    const borrowed = Stream.fromHandle(owner.handle);
    assert.equal(borrowed.context.handle, foreign.handle);
    assert.ok(foreign.isCurrent);
    using own = Stream.create();
    assert.equal(Stream.fromHandle(own.handle).context, Context.primary());
    assert.equal(Stream.fromHandle(0).handle, 1);
    assert.throws(() => Stream.fromHandle(-1), RangeError);
    assert.throws(() => Stream.fromHandle(0xdead as CUstream), {
      name: 'CudaError',
      message: /while borrowing stream 57005/,
    });
  });

  test('a call on a stream that cuffi made never touches the current context', () => {
    emulate();
    using stream = Stream.create();
    using event = CudaEvent.create();
    using buffer = DeviceBuffer.allocate(64);
    const recorder = recordCalls();
    buffer.fill(1, { stream });
    buffer.copyTo(buffer, { stream });
    event.record(stream);
    stream.wait(event);
    stream.synchronizeSync();
    stream.done;
    event.done;
    recorder.stop();
    assert.deepEqual(
      recorder.calls.filter((call) => call.name.includes('Ctx')),
      [],
    );
  });

  test('wait() takes only an event', () => {
    emulate();
    using stream = Stream.create();
    for (const event of [undefined, null, {}, stream, 5])
      assert.throws(() => stream.wait(event as never), TypeError, String(event));
  });

  test('synchronize() does not block the event loop, and aborting it leaves the work', async () => {
    emulate();
    using stream = Stream.create({ nonBlocking: true });
    using buffer = DeviceBuffer.allocate(64);
    using latch = new Latch();
    latch.hold(stream);
    buffer.fill(3, { stream });
    const controller = new AbortController();
    const reason = new Error('enough');
    let ticks = 0;
    const ticking = setInterval(() => {
      ticks += 1;
      if (ticks === 3) controller.abort(reason);
    }, 1);
    await assert.rejects(
      stream.synchronize({ signal: controller.signal }),
      (error) => error === reason,
    );
    clearInterval(ticking);
    assert.equal(ticks, 3);
    assert.equal(stream.done, false);
    latch.open();
    await stream.synchronize();
    assert.deepEqual(new Set(buffer.copyToHostSync()), new Set([3]));
  });

  test('a scope of autoSynchronize() ends when the work is done, even if it throws', async () => {
    emulate();
    using stream = Stream.create({ nonBlocking: true });
    using latch = new Latch();
    setTimeout(() => latch.open(), 3);
    await assert.rejects(async () => {
      await using _scope = stream.autoSynchronize();
      latch.hold(stream);
      throw new Error('out of the scope');
    }, /out of the scope/);
    assert.equal(stream.done, true);
  });

  test('onDone refuses what is not a function, and a capture, before the driver is called', () => {
    emulate();
    using stream = Stream.create({ nonBlocking: true });
    const recorder = recordCalls();
    assert.throws(() => stream.onDone('done' as never), {
      name: 'TypeError',
      message: 'callback must be a function, not "done"',
    });
    recorder.stop();
    assert.deepEqual(recorder.calls, []);
    assert.throws(() => Graph.capture(stream, () => stream.onDone(() => {})), /captured/);
  });

  test('onDone destroys its event, also if the call was canceled or the event could not be recorded', async () => {
    const counted = async (use: () => unknown): Promise<number[]> => {
      const recorder = recordCalls();
      await use();
      recorder.stop();
      return ['cuEventCreate', 'cuEventDestroy_v2'].map(
        (call) => recorder.calls.filter(({ name }) => name === call).length,
      );
    };
    emulate();
    {
      using stream = Stream.create({ nonBlocking: true });
      using latch = new Latch();
      latch.hold(stream);
      const counts = await counted(async () => {
        stream.onDone(() => {})();
        let isCalled = false;
        stream.onDone(() => {
          isCalled = true;
        });
        latch.open();
        await until(() => isCalled);
      });
      assert.deepEqual(counts, [2, 2]);
    }
    selectDriver(broken(emulate(), 'cuEventRecord', 1));
    using stream = Stream.create({ nonBlocking: true });
    const refused = (): void =>
      assert.throws(() => stream.onDone(() => {}), { code: 'CUDA_ERROR_INVALID_VALUE' });
    assert.deepEqual(await counted(refused), [1, 1]);
  });

  test('an exception in a callback of onDone is an uncaught exception', () => {
    const { stdout } = runProgram(new URL('./fixtures/throwing-callback.ts', import.meta.url));
    assert.equal(stdout, 'uncaught: mine\n');
  });

  test('an error of the device is thrown by queries and waits', async () => {
    const driver = emulate();
    using stream = Stream.create();
    selectDriver(broken(driver, 'cuStreamQuery', 700));
    assert.throws(() => stream.done, { name: 'CudaError', status: 700, sticky: true });
    await assert.rejects(stream.synchronize(), { name: 'CudaError', status: 700 });
    selectDriver(failing(driver, 'cuStreamSynchronize', 1, 719));
    assert.throws(() => stream.synchronizeSync(), { name: 'CudaError', status: 719 });
    assert.equal(cu.cuStreamQuery(stream.handle), 0);
  });
});
