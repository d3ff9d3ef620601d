import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { setImmediate as turn } from 'node:timers/promises';
import { CU_STREAM_LEGACY } from '../../../../ffi/constants.ts';
import { selectDriver } from '../../../../ffi/driver.ts';
import type { Driver } from '../../../../ffi/functions.ts';
import { CUresult } from '../../../../ffi/results.ts';
import {
  Context,
  type DeviceArray,
  DeviceBuffer,
  deviceArray,
  float32,
  float64,
  fromBuffer,
  int32,
  ManagedMemory,
  Stream,
  type StreamOption,
  toDevice,
  toDeviceSync,
  uint8,
} from '../../../../src/index.ts';
import { recordArguments, type ToldCall } from '../../../support/arguments.ts';
import { keepingBooks, withFaults } from '../../../support/faults.ts';
import { until } from '../../../support/iterations.ts';
import { Latch } from '../../../support/latch.ts';
import { emulate } from '../emulate.ts';

describe('DeviceArray copies', () => {
  test('a copy uses the given stream, or the target’s, or the source’s', async () => {
    const recorder = recordArguments(emulate());
    using given = Stream.create({ nonBlocking: true });
    using own = Stream.create({ nonBlocking: true });
    using others = Stream.create({ nonBlocking: true });
    using plain = deviceArray(8);
    using source = deviceArray(8);
    const host = new Float64Array(8);
    const [mine, theirs] = [plain.withStream(own), source.withStream(others)];
    const LEGACY = 'the default stream';
    /** The streams in which work, or the event that a copy waits for, is queued first. */
    const first = async (use: (options: StreamOption) => unknown, options: StreamOption) => {
      recorder.calls.length = 0;
      await use(options);
      const isWork = ({ name }: ToldCall): boolean =>
        /Async|Record|Launch|^cuMemcpyHtoD/.test(name);
      const work = recorder.calls.find(isWork);
      const stream = work?.name.startsWith('cuMemcpyHtoD_') ? 0 : work?.args.at(-1);
      return stream === 0 || stream === CU_STREAM_LEGACY ? LEGACY : stream;
    };
    const uses: readonly [
      use: (options: StreamOption) => unknown,
      byDefault: Stream | undefined,
    ][] = [
      [(options) => mine.copyFrom(theirs, options), own],
      [(options) => plain.copyFrom(theirs, options), others],
      [(options) => plain.copyFrom(source, options), undefined],
      [(options) => mine.copyFromSync(theirs, options), own],
      [(options) => mine.copyFrom(host, options), own],
      [(options) => mine.copyFromSync(host, options), own],
      [(options) => plain.copyFromSync(host, options), undefined],
      [(options) => mine.set([0], 1, options), own],
      [(options) => mine.setSync([], theirs, options), own],
      [(options) => mine.set([], theirs, options), own],
      [(options) => mine.fill(1, options), own],
      [(options) => plain.fill(1, options), undefined],
      [(options) => theirs.copyTo(mine, options), others],
      [(options) => source.copyTo(mine, options), own],
      [(options) => mine.copyToHost(host, options), own],
      [(options) => mine.copyToHostSync(host, options), own],
      // So few bytes that there is a faster path if no stream must be waited for.
      [(options) => mine.copyToHostSync(undefined, options), own],
      [(options) => mine.copy(options).close(), own],
      [(options) => toDevice(host, { to: mine, ...options }), own],
      [(options) => toDeviceSync(theirs, { to: mine, ...options }), own],
    ];
    for (const [use, byDefault] of uses) {
      assert.equal(await first(use, { stream: given }), given.handle, `${use}`);
      assert.equal(await first(use, {}), byDefault?.handle ?? LEGACY, `${use}`);
    }
  });

  test('an asynchronous write resolves once the last work in its stream is done', async () => {
    const emulated = emulate();
    using stream = Stream.create({ nonBlocking: true });
    using large = deviceArray(8);
    using other = deviceArray(4);
    other.fill(3);
    const host = new Float64Array(4).fill(3);
    // Reversed items go through staging memory on the device.
    const array = large.slice({ step: -2 });
    for (const write of [
      () => array.copyFrom(host, { stream }),
      () => array.copyFrom(other, { stream }),
      () => array.set([], 3, { stream }),
      () => toDevice(host, { to: array, stream }),
      () => toDevice(other, { to: array, stream }),
    ]) {
      large.fill(0);
      Context.primary().synchronizeSync();
      const latch = new Latch();
      let isHeld = false;
      // The work that the write queues on the device, and nothing before it.
      const isWork = (name: string): boolean => /^cu(Memcpy3D|Memset|LaunchKernel)/.test(name);
      const held = Object.entries(emulated).map(([name, call]) => [
        name,
        (...args: never[]): unknown => {
          if (isWork(name) && !isHeld) {
            isHeld = true;
            latch.hold(stream);
          }
          return (call as (...values: never[]) => unknown)(...args);
        },
      ]);
      selectDriver(Object.fromEntries(held) as Driver);
      let isDone = false;
      const writing = write().then(() => {
        isDone = true;
      });
      await until(() => isHeld);
      for (let turns = 0; turns < 20; turns += 1) await turn();
      assert.equal(isDone, false, `${write}`);
      latch.open();
      await writing;
      selectDriver(emulated);
      latch[Symbol.dispose]();
      assert.deepEqual(large.copyToHostSync(), Float64Array.of(0, 3, 0, 3, 0, 3, 0, 3), `${write}`);
    }
  });

  test('a synchronous write returns once it is done', () => {
    emulate();
    using buffer = ManagedMemory.create().allocate(64);
    const seen = new Float64Array(buffer.buffer);
    using stream = Stream.create({ nonBlocking: true });
    using source = deviceArray(4);
    source.fill(3);
    Context.primary().synchronizeSync();
    const host = new Float64Array(4).fill(3);
    const whole = fromBuffer(buffer, 8, float64);
    for (const array of [
      whole.slice({ stop: 4 }),
      whole.slice({ step: 2 }),
      whole.slice({ step: -2 }),
    ])
      for (const write of [
        (options: StreamOption) => array.copyFromSync(source, options),
        (options: StreamOption) => array.copyFromSync(host, options),
        (options: StreamOption) => array.setSync([], source, options),
        (options: StreamOption) => array.setSync([], 3, options),
        (options: StreamOption) => void toDeviceSync(source, { to: array, ...options }),
      ])
        for (const options of [{}, { stream }]) {
          seen.fill(0);
          write(options);
          assert.equal(seen.filter((value) => value === 3).length, 4, `${write}`);
        }
  });

  test('a signal aborts the wait for a copy between host and device in either direction', async () => {
    emulate();
    using stream = Stream.create({ nonBlocking: true });
    using plane = deviceArray([4, 64]);
    using long = deviceArray(40_000);
    using latch = new Latch();
    latch.hold(stream);
    // The strategies: run, box, range and staging.
    const arrays = [plane, plane.slice('...', { stop: 8 }), plane.T, long.slice({ step: -2000 })];
    for (const array of arrays)
      for (const way of ['copyFrom', 'copyToHost'] as const) {
        const controller = new AbortController();
        const host = new Float64Array(array.size);
        let reason: unknown;
        array[way](host, { stream, signal: controller.signal }).catch((error: unknown) => {
          reason = error;
        });
        controller.abort('enough');
        for (let turns = 0; turns < 1000 && reason === undefined; turns += 1) await turn();
        assert.equal(reason, 'enough', `${way} of ${array}`);
      }
    assert.equal(stream.done, false);
  });

  test('copies between arrays of different dtypes throw, even with items of the same length', async () => {
    const recorder = recordArguments(emulate());
    using floats: DeviceArray = deviceArray(4, float32);
    using whole: DeviceArray = deviceArray(4, int32);
    recorder.calls.length = 0;
    const refused = { name: 'TypeError', message: 'cannot copy float32 to int32' };
    for (const copy of [
      () => floats.copyTo(whole),
      () => whole.copyFrom(floats),
      () => whole.copyFromSync(floats),
      () => whole.setSync([], floats),
    ])
      await assert.rejects(async () => copy(), refused, `${copy}`);
    assert.deepEqual(recorder.calls, []);
  });

  test('a copy rejects if the source or the target is closed before it is done', async () => {
    emulate();
    using stream = Stream.create({ nonBlocking: true });
    for (const closes of ['source', 'target'] as const) {
      const arrays = { source: deviceArray(64), target: deviceArray(64) };
      const { source, target } = arrays;
      const latch = new Latch();
      latch.hold(stream);
      const waits = [
        target.copyFrom(source, { stream }),
        target.set([], source, { stream }),
        toDevice(source, { to: target, stream }),
        ...(closes === 'target' ? [target.set([], 1, { stream })] : []),
      ];
      arrays[closes].close();
      latch[Symbol.dispose]();
      for (const wait of waits)
        await assert.rejects(wait, {
          name: 'ClosedError',
          message: /^this Device(Array|Buffer) is closed: /,
        });
      for (const array of [source, target]) array.close();
    }
  });

  test('a read-only array is never written to, whatever its memory', async () => {
    const recorder = recordArguments(emulate());
    using buffer = DeviceBuffer.allocate(64);
    using other = deviceArray(8);
    const host = new Float64Array(8);
    const arrays = [
      fromBuffer(buffer, 8, float64, { readOnly: true }),
      fromBuffer(buffer.readOnly(), 8, float64),
      fromBuffer(buffer, 8, float64).broadcastTo([2, 8]).at(0),
    ];
    for (const array of arrays) {
      assert.equal(array.readOnly, true);
      recorder.calls.length = 0;
      for (const write of [
        () => array.fill(1),
        () => array.copyFrom(host),
        () => array.copyFrom(other),
        () => array.copyFromSync(host),
        () => array.copyFromSync(other),
        () => array.set([0], 1),
        () => array.setSync([], other),
        () => other.copyTo(array),
        () => toDevice(host, { to: array }),
        () => toDeviceSync(other, { to: array }),
      ])
        await assert.rejects(
          async () => write(),
          { name: 'TypeError', message: /^the (array|target) is read only$/ },
          `${write}`,
        );
      assert.deepEqual(recorder.calls, []);
    }
  });

  test('copies within memory that two devices know are correct', async () => {
    emulate({ CUFFI_EMULATED_DEVICES: '2' });
    const [first, second] = [Context.primary(0), Context.primary(1)];
    first.enablePeerAccess(second);
    second.enablePeerAccess(first);
    using buffer = DeviceBuffer.allocate(64, { context: first });
    using again = DeviceBuffer.fromPointer(buffer.address, 64, { context: second });
    const counting = Uint8Array.from({ length: 64 }, (_, n) => n);
    for (const [to, from] of [
      [buffer, again],
      [again, buffer],
    ] as const) {
      buffer.copyFromSync(counting);
      const target = fromBuffer(to, 64, uint8);
      await target.copyFrom(fromBuffer(from, 64, uint8).slice({ step: -1 }));
      assert.deepEqual(await buffer.copyToHost(), counting.toReversed());
    }
  });

  test('a copy rejects if its host memory is detached meanwhile, at any step', async () => {
    emulate();
    const detached = {
      name: 'TypeError',
      message: 'the host memory was detached while it was copied',
    };
    const giveAway = ({ buffer }: Float64Array<ArrayBuffer>): void =>
      void structuredClone(buffer, { transfer: [buffer] });
    // So large that the CPU gathers the items over several turns of the event loop.
    using large = deviceArray([512, 1024]);
    large.fill(1);
    {
      const values = new Float64Array(large.size);
      const copying = large.T.copyFrom(values);
      setImmediate(giveAway, values);
      await assert.rejects(copying, detached);
    }
    {
      const values = new Float64Array(large.size);
      const copying = large.T.copyToHost(values);
      const giveAwayLater = (): void => {
        if (values[0] === 0) setImmediate(giveAwayLater);
        else giveAway(values);
      };
      giveAwayLater();
      await assert.rejects(copying, detached);
    }
    assert.deepEqual(new Set(large.copyToHostSync()), new Set([1]));
    // So small that there is one step: the copy waits only for earlier work.
    using small = deviceArray([8, 8]);
    using stream = Stream.create({ nonBlocking: true });
    const latch = new Latch();
    latch.hold(stream);
    const values = new Float64Array(64);
    const copying = small.copyToHost(values, { stream, order: 'F' });
    giveAway(values);
    latch[Symbol.dispose]();
    await assert.rejects(copying, detached);
  });

  test('a failed write closes a new array, and leaves an existing one open', async () => {
    const { driver: booked, open } = keepingBooks(emulate());
    const { driver, fail } = withFaults(booked, [
      'cuMemcpyHtoD_v2',
      'cuMemcpyHtoDAsync_v2',
      'cuMemcpy3DAsync_v2',
    ]);
    selectDriver(driver);
    using source = deviceArray(1000);
    using target = deviceArray(1000);
    const host = new Float64Array(1000);
    const memory = (): string[] => [...open].filter((handle) => handle.startsWith('cuMem'));
    const before = memory();
    const uses: readonly [name: Parameters<typeof fail>[0], use: () => unknown][] = [
      ['cuMemcpyHtoD_v2', () => toDeviceSync(host)],
      ['cuMemcpyHtoDAsync_v2', () => toDevice(host)],
      ['cuMemcpy3DAsync_v2', () => toDeviceSync(source)],
      ['cuMemcpy3DAsync_v2', () => toDevice(source)],
      ['cuMemcpy3DAsync_v2', () => source.copy()],
      ['cuMemcpyHtoD_v2', () => toDeviceSync(host, { to: target })],
      ['cuMemcpyHtoDAsync_v2', () => toDevice(host, { to: target })],
    ];
    for (const [name, use] of uses) {
      fail(name, 1, CUresult.CUDA_ERROR_INVALID_VALUE);
      await assert.rejects(async () => use(), { call: name, code: 'CUDA_ERROR_INVALID_VALUE' });
      await Context.primary().flush();
      assert.deepEqual(memory(), before, `${use}`);
    }
    assert.deepEqual([source.closed, target.closed], [false, false]);
    assert.equal(target.dtype, float64);
  });
});
