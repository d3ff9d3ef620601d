import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import * as constants from '../../../ffi/constants.ts';
import { recordCalls, selectDriver } from '../../../ffi/driver.ts';
import { Context, CudaEvent, DeviceBuffer, type EventOptions, Stream } from '../../../src/index.ts';
import { recordCallsOf } from '../../support/arguments.ts';
import { broken, failing, keepingBooks } from '../../support/faults.ts';
import { Latch } from '../../support/latch.ts';
import { emulate } from './emulate.ts';

describe('CudaEvent', () => {
  test('options are checked before the driver is called', () => {
    emulate();
    const recorder = recordCalls();
    assert.throws(() => CudaEvent.create({ timed: true } as never), {
      name: 'TypeError',
      message: /unknown option 'timed'; known: context, device, timing, interprocess, blockingSync/,
    });
    for (const name of ['timing', 'interprocess', 'blockingSync'])
      assert.throws(() => CudaEvent.create({ [name]: 1 } as never), TypeError);
    assert.throws(() => CudaEvent.create({ timing: true, interprocess: true }), {
      name: 'TypeError',
      message: /cannot record the time/,
    });
    recorder.stop();
    assert.deepEqual(recorder.calls, []);
  });

  test('an event records the time by default, but an interprocess event does not', () => {
    emulate();
    using plain = CudaEvent.create();
    using shared = CudaEvent.create({ interprocess: true });
    using untimed = CudaEvent.create({ timing: false, blockingSync: true });
    const traits = ({ timing, interprocess, imported }: CudaEvent) => [
      timing,
      interprocess,
      imported,
    ];
    assert.deepEqual(traits(plain), [true, false, false]);
    assert.deepEqual(traits(shared), [false, true, false]);
    assert.deepEqual(traits(untimed), [false, false, false]);
  });

  test('each option reaches the driver, in the named context', () => {
    const told = recordCallsOf(
      emulate({ CUFFI_EMULATED_DEVICES: '2' }),
      'cuCtxPushCurrent_v2',
      'cuEventCreate',
    );
    const flagsOf = (options?: EventOptions): unknown => {
      told.length = 0;
      using _ = CudaEvent.create(options);
      const [, , flags] = told.find(([name]) => name === 'cuEventCreate') ?? [];
      return flags;
    };
    const { CU_EVENT_BLOCKING_SYNC: blocking, CU_EVENT_DISABLE_TIMING: untimed } = constants;
    const shared = constants.CU_EVENT_INTERPROCESS | untimed;
    assert.equal(flagsOf(), 0);
    for (const blockingSync of [false, true]) {
      const more = blockingSync ? blocking : 0;
      assert.equal(flagsOf({ blockingSync }), more);
      assert.equal(flagsOf({ blockingSync, timing: true }), more);
      assert.equal(flagsOf({ blockingSync, timing: false }), more | untimed);
      assert.equal(flagsOf({ blockingSync, interprocess: true }), more | shared);
    }
    const context = Context.primary(1);
    for (const options of [{ device: 1 }, { context }]) {
      assert.equal(flagsOf(options), 0);
      assert.deepEqual(told[0], ['cuCtxPushCurrent_v2', context.handle]);
    }
  });

  test('an event may be closed twice, and every later use throws a ClosedError', async () => {
    emulate();
    using stream = Stream.create();
    using other = CudaEvent.create();
    const event = CudaEvent.create();
    event.close();
    event.close();
    const uses: (() => unknown)[] = [
      () => event.handle,
      () => event.done,
      () => event.record(),
      () => event.record(stream),
      () => event.synchronizeSync(),
      () => stream.wait(event),
      () => CudaEvent.elapsedMs(event, other),
      () => CudaEvent.elapsedMs(other, event),
    ];
    for (const use of uses)
      assert.throws(
        use,
        { name: 'ClosedError', message: /^this CudaEvent is closed: / },
        String(use),
      );
    await assert.rejects(event.synchronize(), { name: 'ClosedError' });
  });

  test('an event that is closed behind blocked work is destroyed at once, and the work goes on', async () => {
    const { driver, open } = keepingBooks(emulate());
    selectDriver(driver);
    using stream = Stream.create({ nonBlocking: true });
    using other = Stream.create({ nonBlocking: true });
    using buffer = DeviceBuffer.allocate(16);
    const latch = new Latch();
    latch.hold(stream);
    const event = CudaEvent.create();
    event.record(stream);
    other.wait(event);
    buffer.fill(8, { stream: other });
    event.close();
    assert.ok(![...open].some((entry) => entry.startsWith('cuEventCreate')));
    assert.equal(other.done, false);
    latch[Symbol.dispose]();
    await other.synchronize();
    assert.deepEqual(new Set(buffer.copyToHostSync()), new Set([8]));
  });

  test('an event is done when the work of its last record is done', async () => {
    emulate();
    using stream = Stream.create({ nonBlocking: true });
    using latch = new Latch();
    using event = CudaEvent.create({ timing: false });
    assert.equal(event.done, true);
    event.record(stream);
    await event.synchronize();
    latch.hold(stream);
    assert.equal(event.done, true);
    event.record(stream);
    assert.equal(event.done, false);
    const waiting = event.synchronize();
    setTimeout(() => latch.open(), 2);
    await waiting;
    assert.equal(event.done, true);
  });

  test('elapsedMs() needs two events that record the time, were recorded, and are done', async () => {
    emulate();
    using stream = Stream.create({ nonBlocking: true });
    using latch = new Latch();
    using start = CudaEvent.create();
    using end = CudaEvent.create();
    using untimed = CudaEvent.create({ timing: false });
    using shared = CudaEvent.create({ interprocess: true });
    assert.throws(() => CudaEvent.elapsedMs(untimed, end), /^TypeError: start .*timing: false$/);
    assert.throws(() => CudaEvent.elapsedMs(start, shared), /^TypeError: end .*cannot be timed$/);
    assert.throws(() => CudaEvent.elapsedMs({} as never, end), /start must be a CudaEvent/);
    assert.throws(() => CudaEvent.elapsedMs(start, end), /were both events recorded/);
    start.record(stream);
    latch.hold(stream);
    end.record(stream);
    assert.throws(() => CudaEvent.elapsedMs(start, end), {
      code: 'CUDA_ERROR_NOT_READY',
      message: /before both events are done/,
    });
    latch.open();
    await end.synchronize();
    assert.ok(CudaEvent.elapsedMs(start, end) >= 0);
  });

  test('an interprocess event that cannot be exported is destroyed', () => {
    const { driver, open } = keepingBooks(emulate());
    selectDriver(failing(driver, 'cuIpcGetEventHandle', 1, 999));
    assert.throws(() => CudaEvent.create({ interprocess: true }), {
      name: 'CudaError',
      message: /while exporting an event/,
    });
    assert.equal(open.size, 0);
    CudaEvent.create({ interprocess: true }).close();
    assert.equal(open.size, 0);
  });

  test('the error for too many interprocess events says so', () => {
    selectDriver(broken(emulate(), 'cuEventCreate', 2));
    assert.throws(() => CudaEvent.create({ interprocess: true }), /about 4096 at a time/);
    assert.throws(
      () => CudaEvent.create(),
      (error: Error) => !error.message.includes('4096'),
    );
  });

  test('without a stream an event is recorded in the default stream of its own context', () => {
    emulate({ CUFFI_EMULATED_DEVICES: '2' });
    using event = CudaEvent.create({ device: 1 });
    event.record();
    event.synchronizeSync();
    assert.equal(event.context, Context.primary(1));
    assert.throws(() => event.record({} as never), /^TypeError: stream must be a Stream/);
  });

  test('an event that is recorded in a stream of another device throws, and stays usable', () => {
    emulate({ CUFFI_EMULATED_DEVICES: '2' });
    using event = CudaEvent.create({ device: 1 });
    using stream = Stream.create({ device: 0 });
    assert.throws(() => event.record(stream), { name: 'CudaError', call: 'cuEventRecord' });
    event.record();
    event.synchronizeSync();
  });
});
