import assert from 'node:assert/strict';
import { once } from 'node:events';
import { describe, test } from 'node:test';
import { setImmediate as turn } from 'node:timers/promises';
import {
  CU_EVENT_DISABLE_TIMING,
  CU_STREAM_LEGACY,
  CU_STREAM_NON_BLOCKING,
  CU_STREAM_WAIT_VALUE_GEQ,
} from '../../../../ffi/constants.ts';
import { recordCalls, selectDriver } from '../../../../ffi/driver.ts';
import type { FunctionName } from '../../../../ffi/functions.ts';
import { CUresult } from '../../../../ffi/results.ts';
import { bytesCopied } from '../../../../ffi/trace.ts';
import type { CUstream } from '../../../../ffi/types.ts';
import {
  Context,
  copyPitched,
  copyPitchedSync,
  DeviceBuffer,
  deviceArray,
  dlpack,
  fillPitched,
  Graph,
  ManagedMemory,
  PinnedBuffer,
  queuePitchedCopy,
  Stream,
  type StreamOption,
} from '../../../../src/index.ts';
import { recordArguments, type ToldCall } from '../../../support/arguments.ts';
import { broken, failing, withFaults } from '../../../support/faults.ts';
import { until } from '../../../support/iterations.ts';
import { Latch } from '../../../support/latch.ts';
import { leaves } from '../../../support/left-open.ts';
import { emulate } from '../emulate.ts';

const counting = (byteLength: number): Uint8Array =>
  new Uint8Array(byteLength).map((_, index) => (index * 31 + (index >> 8)) & 255);
const same = (actual: Uint8Array, expected: Uint8Array): void =>
  assert.equal(Buffer.compare(actual, expected), 0);

const SLICE = 4 << 20;
const MIB = 1 << 20;

describe('copySync and copyAsync', () => {
  test('copies of every size around a slice arrive complete, awaited and blocking', async () => {
    emulate();
    for (const byteLength of [1, SLICE - 1, SLICE, SLICE + 1, 3 * SLICE + 5]) {
      using buffer = DeviceBuffer.allocate(byteLength);
      const bytes = counting(byteLength);
      await buffer.copyFrom(bytes);
      same(buffer.copyToHostSync(), bytes);
      buffer.fill(0);
      buffer.copyFromSync(bytes);
      same(await buffer.copyToHost(), bytes);
    }
  });

  test('copies read and fill every kind of host memory in place, and return the same object', async () => {
    emulate();
    using buffer = DeviceBuffer.allocate(32);
    const bytes = counting(24);
    const shared = new SharedArrayBuffer(24);
    new Uint8Array(shared).set(bytes);
    const sources = [
      bytes,
      bytes.buffer,
      shared,
      Buffer.from(bytes),
      new Uint16Array(bytes.buffer),
      new Float64Array(bytes.buffer),
      new BigInt64Array(bytes.buffer),
      new DataView(bytes.buffer),
    ];
    for (const source of sources) {
      buffer.fill(0);
      await buffer.copyFrom(source);
      same(buffer.copyToHostSync(new Uint8Array(24)), bytes);
    }
    const targets = [
      new Uint8Array(24),
      new ArrayBuffer(24),
      new SharedArrayBuffer(24),
      Buffer.alloc(24),
      new Uint8ClampedArray(24),
      new Int32Array(6),
      new DataView(new ArrayBuffer(24)),
    ];
    for (const target of targets) {
      assert.equal(await buffer.copyToHost(target), target);
      const memory = ArrayBuffer.isView(target)
        ? new Uint8Array(target.buffer, target.byteOffset, target.byteLength)
        : new Uint8Array(target);
      same(memory, bytes);
      memory.fill(0);
      assert.equal(buffer.copyToHostSync(target), target);
      same(memory, bytes);
    }
  });

  test('a copy to part of an array leaves the rest unchanged', async () => {
    emulate();
    using buffer = DeviceBuffer.allocate(16);
    buffer.fill(0);
    const bytes = counting(16);
    await buffer.subarray(4, 8).copyFrom(bytes.subarray(10, 14));
    const whole = new Uint8Array(12).fill(9);
    await buffer.subarray(2, 10).copyToHost(whole.subarray(2, 10));
    const expected = new Uint8Array(12).fill(9);
    expected.fill(0, 2, 10);
    expected.set(bytes.subarray(10, 14), 4);
    same(whole, expected);
  });

  test('each call uses the given stream, or else the legacy default stream of the memory', async () => {
    const recorder = recordArguments(emulate({ CUFFI_EMULATED_DEVICES: '2' }));
    const [first, second] = [Context.primary(0), Context.primary(1)];
    using stream = Stream.create({ context: second, nonBlocking: true });
    using buffer = DeviceBuffer.allocate(4096, { context: second });
    using other = DeviceBuffer.allocate(4096, { context: second });
    using far = DeviceBuffer.allocate(4096, { context: first });
    const host = new Uint8Array(4096);
    const box = { width: 8, height: 2 };
    const at = (memory: DeviceBuffer | Uint8Array) => ({ memory, rowPitch: 16 });
    const fill = (elementByteLength: 1 | 2 | 4) => (options: StreamOption) =>
      buffer.fill(1, { ...options, elementByteLength });
    const fillRows = (elementByteLength: 1 | 2 | 4) => (options: StreamOption) =>
      fillPitched(at(buffer), 1, box, { ...options, elementByteLength });
    type Use = (options: StreamOption) => unknown;
    /**
     * The first call in the stream; for awaited host copies, the record of the event that they wait
     * for.
     */
    const queuing: readonly [name: FunctionName, use: Use, context?: Context][] = [
      ['cuMemsetD8Async', fill(1)],
      ['cuMemsetD16Async', fill(2)],
      ['cuMemsetD32Async', fill(4)],
      ['cuMemsetD2D8Async', fillRows(1)],
      ['cuMemsetD2D16Async', fillRows(2)],
      ['cuMemsetD2D32Async', fillRows(4)],
      ['cuMemcpyDtoDAsync_v2', (options) => buffer.copyTo(other, options)],
      ['cuMemcpyPeerAsync', (options) => buffer.copyTo(far, options)],
      ['cuMemcpyPeerAsync', (options) => far.copyTo(buffer, options), first],
      ['cuMemcpy3DAsync_v2', (options) => queuePitchedCopy(at(other), at(buffer), box, options)],
      ['cuMemcpy3DPeerAsync', (options) => queuePitchedCopy(at(far), at(buffer), box, options)],
      ['cuMemcpy3DAsync_v2', (options) => copyPitched(at(other), at(buffer), box, options)],
      ['cuMemcpy3DAsync_v2', (options) => copyPitchedSync(at(buffer), at(host), box, options)],
      ['cuMemcpy3DAsync_v2', (options) => copyPitchedSync(at(host), at(buffer), box, options)],
      ['cuEventRecord', (options) => copyPitched(at(buffer), at(host), box, options)],
      ['cuEventRecord', (options) => copyPitched(at(host), at(buffer), box, options)],
      ['cuEventRecord', (options) => buffer.copyFrom(host, options)],
      ['cuEventRecord', (options) => buffer.copyToHost(host, options)],
    ];
    const isWork = ({ name }: ToldCall): boolean => /Async|EventRecord|^cuMemcpy/.test(name);
    for (const [name, use, context = second] of queuing) {
      recorder.calls.length = 0;
      await use({ stream });
      const [named] = recorder.calls.filter(isWork);
      assert.deepEqual([named?.name, named?.args.at(-1)], [name, stream.handle], `${use}`);
      recorder.calls.length = 0;
      await use({});
      const [byDefault] = recorder.calls.filter(isWork);
      assert.deepEqual([byDefault?.name, byDefault?.context], [name, context.handle], `${use}`);
      assert.ok([0, CU_STREAM_LEGACY].includes(byDefault?.args.at(-1) as number), `${use}`);
    }
    const blocking: readonly [named: FunctionName, byDefault: FunctionName, use: Use][] = [
      ['cuMemcpyHtoDAsync_v2', 'cuMemcpyHtoD_v2', (options) => buffer.copyFromSync(host, options)],
      [
        'cuMemcpyDtoHAsync_v2',
        'cuMemcpyDtoH_v2',
        (options) => buffer.copyToHostSync(host, options),
      ],
    ];
    for (const [named, byDefault, use] of blocking) {
      recorder.calls.length = 0;
      use({ stream });
      const [copy, wait] = recorder.calls.slice(-2);
      assert.deepEqual([copy?.name, copy?.args.at(-1)], [named, stream.handle]);
      assert.deepEqual([wait?.name, wait?.args[0]], ['cuStreamSynchronize', stream.handle]);
      recorder.calls.length = 0;
      use({});
      const [only] = recorder.of(byDefault);
      assert.equal(only?.context, second.handle);
    }
  });

  test('a blocking copy of rows between devices is done when it returns', () => {
    emulate({ CUFFI_EMULATED_DEVICES: '2' });
    using target = ManagedMemory.create().allocate(64);
    const seen = new Uint8Array(target.buffer);
    using stream = Stream.create({ nonBlocking: true });
    for (const device of [0, 1])
      for (const options of [{}, { stream }]) {
        using source = DeviceBuffer.allocate(64, { device });
        source.copyFromSync(new Uint8Array(64).fill(3));
        seen.fill(0);
        const box = { width: 8, height: 2 };
        copyPitchedSync({ memory: target, rowPitch: 16 }, { memory: source }, box, options);
        assert.equal(seen.filter((value) => value === 3).length, 16);
      }
  });

  test('a blocking copy to the device waits for the default stream, even if the driver does not', () => {
    const recorder = recordArguments(emulate());
    using buffer = DeviceBuffer.allocate(64);
    recorder.calls.length = 0;
    buffer.copyFromSync(new Uint8Array(64));
    const told = recorder.calls.map(({ name, args, context }) => [name, args[0], context]);
    const copy = told.findIndex(([name]) => name === 'cuMemcpyHtoD_v2');
    assert.deepEqual(told.slice(copy, copy + 2), [
      ['cuMemcpyHtoD_v2', buffer.address, buffer.context.handle],
      ['cuStreamSynchronize', 0, buffer.context.handle],
    ]);
  });

  test('calls that would wait throw during a capture, and do not become part of the graph', async () => {
    const recorder = recordArguments(emulate());
    using stream = Stream.create({ nonBlocking: true });
    using buffer = DeviceBuffer.allocate(4096);
    using array = deviceArray([8, 8]);
    const box = { width: 8, height: 2 };
    const at = (memory: DeviceBuffer | Uint8Array) => ({ memory, rowPitch: 16 });
    const host = new Uint8Array(64);
    const [row, other] = [array.slice(0), array.slice(1)];
    const refused: Record<string, (() => unknown)[]> = {
      'copying to or from the host': [
        () => buffer.copyFrom(host, { stream }),
        () => buffer.copyToHost(undefined, { stream }),
        () => buffer.copyFromSync(host, { stream }),
        () => buffer.copyToHostSync(undefined, { stream }),
        () => buffer.subarray(0, 8).copyToHostSync(),
        () => row.copyFrom(new Float64Array(8), { stream }),
        () => row.copyToHostSync(undefined, { stream }),
        // Few items go another way.
        () => row.copyToHostSync(),
      ],
      'waiting for a copy': [
        () => copyPitched(at(buffer), at(host), { width: 8 }, { stream }),
        () => copyPitched(at(buffer), at(host), box, { stream }),
        () => copyPitched(at(buffer.subarray(0, 64)), at(buffer.subarray(64)), box, { stream }),
        () => copyPitchedSync(at(buffer), at(host), box, { stream }),
        () => copyPitchedSync(at(buffer.subarray(0, 64)), at(buffer.subarray(64)), box, { stream }),
        () => row.copyFrom(other, { stream }),
        () => row.copyFromSync(other, { stream }),
        () => row.set([], other, { stream }),
      ],
      'waiting for a fill': [
        () => array.set([0], 1, { stream }),
        () => array.setSync([0], 1, { stream }),
      ],
      'waiting for work': [() => dlpack(array, { stream })],
    };
    const outcomes: [doing: string, use: string, outcome: Promise<unknown>][] = [];
    Graph.capture(stream, () => {
      recorder.calls.length = 0;
      for (const [doing, uses] of Object.entries(refused))
        for (const use of uses) {
          const outcome = (async () => use())();
          // Checked below, after the capture.
          outcome.catch(() => {});
          outcomes.push([doing, `${use}`, outcome]);
        }
      assert.deepEqual(
        recorder.calls.filter(({ name }) => /Memcpy|Memset|Launch|Event/.test(name)),
        [],
      );
    }).close();
    for (const [doing, use, outcome] of outcomes)
      await assert.rejects(
        outcome,
        {
          name: 'CuffiError',
          message: new RegExp(`^${doing} is not possible while a graph is captured: `),
        },
        use,
      );
  });

  test('memory stays allocated while a stream of another context uses it', async () => {
    const recorder = recordArguments(emulate({ CUFFI_EMULATED_DEVICES: '2' }));
    const [first, second] = [Context.primary(0), Context.primary(1)];
    first.enablePeerAccess(second);
    second.enablePeerAccess(first);
    using stream = Stream.create({ context: second, nonBlocking: true });
    using other = DeviceBuffer.allocate(4096, { context: second });
    const box = { width: 8, height: 2 };
    const at = (memory: DeviceBuffer) => ({ memory, rowPitch: 16 });
    const uses: ((buffer: DeviceBuffer) => unknown)[] = [
      (buffer) => buffer.fill(1, { stream }),
      (buffer) => buffer.copyTo(buffer, { stream }),
      (buffer) => buffer.copyTo(other, { stream }),
      (buffer) => other.copyTo(buffer, { stream }),
      (buffer) => fillPitched(at(buffer), 1, box, { stream }),
      (buffer) => queuePitchedCopy(at(buffer), at(buffer), box, { stream }),
      (buffer) => queuePitchedCopy(at(buffer), at(other), box, { stream }),
      (buffer) => queuePitchedCopy(at(other), at(buffer), box, { stream }),
    ];
    for (const use of uses) {
      const buffer = DeviceBuffer.allocate(4096, { context: first });
      const { address } = buffer;
      const isFreed = (): boolean =>
        recorder.calls.some(
          ({ name, args }) => name.startsWith('cuMemFree') && args[0] === address,
        );
      using latch = new Latch(second);
      latch.hold(stream);
      use(buffer);
      recorder.calls.length = 0;
      buffer.close();
      assert.deepEqual([first.pendingReleases.count, isFreed()], [1, false], `${use}`);
      latch.open();
      await first.flush();
      assert.deepEqual([first.pendingReleases.count, isFreed()], [0, true], `${use}`);
    }
  });

  test('pages stay locked while another context copies from or to them', async () => {
    const driver = emulate({ CUFFI_EMULATED_DEVICES: '2' });
    let held: Latch | undefined;
    const hold = (stream: CUstream): void => {
      if (held)
        driver.cuStreamWaitValue32_v2(stream, held.devicePointer, 1, CU_STREAM_WAIT_VALUE_GEQ);
    };
    const recorder = recordArguments({
      ...driver,
      cuMemcpyHtoDAsync_v2: (...args) => {
        hold(args[3]);
        return driver.cuMemcpyHtoDAsync_v2(...args);
      },
      cuMemcpyDtoHAsync_v2: (...args) => {
        hold(args[3]);
        return driver.cuMemcpyDtoHAsync_v2(...args);
      },
    });
    const [first, second] = [Context.primary(0), Context.primary(1)];
    using buffer = DeviceBuffer.allocate(MIB, { context: second });
    for (const way of ['copyFrom', 'copyToHost'] as const) {
      const pinned = PinnedBuffer.allocate(MIB, { context: first });
      const { address } = pinned;
      const isUnlocked = (): boolean =>
        recorder.of('cuMemHostUnregister').some(({ args }) => args[0] === address);
      using latch = new Latch(second);
      held = latch;
      recorder.calls.length = 0;
      const copying = buffer[way](new Uint8Array(pinned.buffer));
      await until(() => recorder.calls.some(({ name }) => /^cuMemcpy(HtoD|DtoH)Async/.test(name)));
      pinned.close();
      assert.equal(isUnlocked(), false, way);
      assert.equal(first.pendingReleases.count, 1);
      latch.open();
      await copying;
      await first.flush();
      assert.equal(isUnlocked(), true, way);
      held = undefined;
    }
  });

  test('a copy of zero bytes makes no driver call', async () => {
    emulate();
    using buffer = DeviceBuffer.allocate(16);
    const recorder = recordCalls();
    await buffer.copyFrom(new Uint8Array(0));
    buffer.copyFromSync(new ArrayBuffer(0));
    assert.equal((await buffer.copyToHost(new Uint8Array(0))).length, 0);
    assert.equal(buffer.subarray(16).copyToHostSync().length, 0);
    recorder.stop();
    assert.deepEqual(recorder.calls, []);
  });

  test('a copy that does not fit, or is not of memory, throws and copies nothing', async () => {
    emulate();
    using buffer = DeviceBuffer.allocate(16);
    const detached = new Uint8Array(8);
    structuredClone(detached.buffer, { transfer: [detached.buffer] });
    const recorder = recordCalls();
    const long = {
      name: 'RangeError',
      message: '17 bytes do not fit in the buffer, which has 16 bytes',
    };
    await assert.rejects(buffer.copyFrom(new Uint8Array(17)), long);
    assert.throws(() => buffer.copyFromSync(new Uint8Array(17)), long);
    await assert.rejects(buffer.copyToHost(new Uint8Array(17)), long);
    assert.throws(() => buffer.copyToHostSync(new Uint8Array(17)), long);
    for (const wrong of [[1, 2], 'text', 5, {}, null, detached]) {
      await assert.rejects(
        buffer.copyFrom(wrong as never),
        /^TypeError: source (must be a typed array|is detached)/,
      );
      await assert.rejects(
        buffer.copyToHost(wrong as never),
        /^TypeError: into (must be a typed array|is detached)/,
      );
      assert.throws(
        () => buffer.copyFromSync(wrong as never),
        /^TypeError: source (must be a typed array|is detached)/,
      );
      assert.throws(
        () => buffer.copyToHostSync(wrong as never),
        /^TypeError: into (must be a typed array|is detached)/,
      );
    }
    await assert.rejects(
      buffer.copyToHost(undefined, { streem: 1 } as never),
      /known: stream, signal, timeoutMs$/,
    );
    await assert.rejects(
      buffer.copyFrom(detached, { stream: 1 } as never),
      /^TypeError: source is detached: its memory was transferred to another owner$/,
    );
    recorder.stop();
    assert.deepEqual(recorder.calls, []);
  });

  test('an invalid or aborted signal rejects the copy, even an empty one', async () => {
    emulate();
    using buffer = DeviceBuffer.allocate(16);
    for (const memory of [new Uint8Array(0), new Uint8Array(16)]) {
      for (const signal of [0, null, '', {}]) {
        const options = { signal } as never;
        const wrong = { name: 'TypeError', message: /^signal must be an AbortSignal, not / };
        await assert.rejects(buffer.copyFrom(memory, options), wrong);
        await assert.rejects(buffer.copyToHost(memory, options), wrong);
        const extent = { width: memory.byteLength, height: 1 };
        await assert.rejects(copyPitched({ memory: buffer }, { memory }, extent, options), wrong);
      }
      const aborted = { signal: AbortSignal.abort(new Error('enough')) };
      await assert.rejects(buffer.copyFrom(memory, aborted), /enough/);
      await assert.rejects(buffer.copyToHost(memory, aborted), /enough/);
      const extent = { width: memory.byteLength, height: 1 };
      await assert.rejects(copyPitched({ memory: buffer }, { memory }, extent, aborted), /enough/);
    }
  });

  test('an event that cannot be destroyed causes a warning, and the copy succeeds', async () => {
    const driver = emulate();
    using buffer = DeviceBuffer.allocate(16);
    selectDriver(broken(driver, 'cuEventDestroy_v2', 999));
    const warned = once(process, 'warning');
    await buffer.copyFrom(counting(16));
    const [warning] = await warned;
    assert.equal(warning.code, 'CUFFI_RELEASE');
    assert.match(warning.message, /cuEventDestroy_v2 failed/);
    same(buffer.copyToHostSync(), counting(16));
  });

  test('an awaited copy waits for earlier work without blocking the event loop', async () => {
    emulate();
    using stream = Stream.create({ nonBlocking: true });
    using buffer = DeviceBuffer.allocate(4096);
    using latch = new Latch();
    latch.hold(stream);
    buffer.fill(7, { stream });
    let ticks = 0;
    const ticking = setInterval(() => {
      ticks += 1;
      if (ticks === 5) latch.open();
    }, 1);
    const bytes = await buffer.copyToHost(undefined, { stream });
    clearInterval(ticking);
    assert.ok(ticks >= 5);
    assert.deepEqual(new Set(bytes), new Set([7]));
  });

  test('a copy without a stream waits for blocking streams, and not for non-blocking ones', async () => {
    emulate();
    using blocking = Stream.create();
    using free = Stream.create({ nonBlocking: true });
    using buffer = DeviceBuffer.allocate(16);
    buffer.fill(1);
    {
      using latch = new Latch();
      latch.hold(free);
      buffer.fill(2, { stream: free });
      assert.deepEqual(new Set(await buffer.copyToHost()), new Set([1]));
    }
    using latch = new Latch();
    latch.hold(blocking);
    buffer.fill(3, { stream: blocking });
    const copied = buffer.copyToHost();
    latch.open();
    assert.deepEqual(new Set(await copied), new Set([3]));
  });

  test('a page-locked copy is polled for eagerly when it would end at the speed of the last one', {
    timeout: 30_000,
  }, async (t) => {
    const driver = emulate();
    let [asked, isHeld] = [0, false];
    selectDriver({
      ...driver,
      cuMemcpyHtoDAsync_v2: (...args) => {
        isHeld = true;
        return driver.cuMemcpyHtoDAsync_v2(...args);
      },
      cuEventQuery: (event) => {
        asked += 1;
        return isHeld ? CUresult.CUDA_ERROR_NOT_READY : driver.cuEventQuery(event);
      },
    });
    using pinned = PinnedBuffer.allocate(4 * MIB);
    using buffer = DeviceBuffer.allocate(4 * MIB);
    const clock = { now: Math.ceil(performance.now()) };
    t.mock.method(performance, 'now', () => clock.now);
    const turns = async (count: number): Promise<number> => {
      const before = asked;
      for (let n = 0; n < count; n += 1) await turn();
      return asked - before;
    };
    const passed = async (ms: number): Promise<boolean> => {
      clock.now += ms;
      const before = asked;
      while (asked === before) await new Promise((resolve) => setTimeout(resolve, 1));
      return (await turns(200)) > 100;
    };
    const begun = async (byteLength: number): Promise<{ copied: Promise<void> }> => {
      const copied = buffer.copyFrom(new Uint8Array(pinned.buffer, 0, byteLength));
      while (!isHeld) await turn();
      // All that a new wait is asked without regard to its expected end.
      await turns(300);
      return { copied };
    };
    // The first copy has no last one.
    const first = await begun(2 * MIB);
    for (const ms of [27, 2]) assert.equal(await passed(ms), false);
    isHeld = false;
    clock.now += 1;
    await first.copied;
    // 2 MiB took 30 ms, so that 4 MiB should take 60. Polling begins two periods before.
    const second = await begun(4 * MIB);
    for (const [ms, isEager] of [
      [57, false],
      [2, true],
      [1.5, true],
      [1.5, false],
    ] as const)
      assert.equal(await passed(ms), isEager, `after ${ms} ms more`);
    isHeld = false;
    clock.now += 1;
    await second.copied;
  });

  test('many concurrent copies all arrive', async () => {
    emulate();
    using buffer = DeviceBuffer.allocate(1 << 20);
    const parts = Array.from({ length: 64 }, (_, n) => buffer.subarray(n << 14, (n + 1) << 14));
    await Promise.all(
      parts.map((part, n) => part.copyFrom(new Uint8Array(part.byteLength).fill(n))),
    );
    const back = await Promise.all(parts.map((part) => part.copyToHost()));
    back.forEach((bytes, n) => {
      assert.deepEqual(new Set(bytes), new Set([n]));
    });
  });

  test('closing a buffer during a copy rejects the copy, and frees the memory afterwards', async () => {
    emulate();
    const context = Context.primary();
    {
      // The first awaited copy creates the stream that all use.
      using first = DeviceBuffer.allocate(1);
      await first.copyToHost();
    }
    const buffer = DeviceBuffer.allocate(4 * SLICE);
    const { free } = context.memoryInfo();
    const copying = buffer.copyFrom(counting(buffer.byteLength));
    setImmediate(() => buffer.close());
    await assert.rejects(copying, { name: 'ClosedError' });
    await context.flush();
    assert.equal(context.memoryInfo().free, free + 4 * SLICE);
  });

  test('closing a buffer before its copy starts rejects the copy, and copies nothing', async () => {
    emulate();
    using stream = Stream.create({ nonBlocking: true });
    const latch = new Latch();
    const buffer = DeviceBuffer.allocate(64);
    latch.hold(stream);
    const recorder = recordCalls();
    const copying = buffer.copyToHost(undefined, { stream });
    buffer.close();
    latch[Symbol.dispose]();
    await assert.rejects(copying, { name: 'ClosedError' });
    recorder.stop();
    assert.equal(bytesCopied(recorder.calls), 0);
    await Context.primary().flush();
  });

  test('closing a buffer while its copy waits rejects the copy, however long the earlier work takes', async () => {
    emulate();
    using stream = Stream.create({ nonBlocking: true });
    using latch = new Latch();
    const buffer = DeviceBuffer.allocate(64);
    latch.hold(stream);
    let reason: unknown;
    buffer.copyToHost(undefined, { stream }).catch((error: unknown) => {
      reason = error;
    });
    buffer.close();
    // Only closing the buffer can end it: the stream stays blocked.
    for (let turns = 0; turns < 1000 && reason === undefined; turns += 1) await turn();
    assert.equal((reason as Error | undefined)?.name, 'ClosedError');
    assert.equal(stream.done, false);
  });

  test('a copy of rows between devices rejects if either buffer is closed before it is done', async () => {
    emulate();
    using stream = Stream.create({ nonBlocking: true });
    const box = { width: 8, height: 2 };
    for (const closes of [0, 1] as const) {
      const buffers = [DeviceBuffer.allocate(64), DeviceBuffer.allocate(64)] as const;
      const latch = new Latch();
      latch.hold(stream);
      const [target, source] = buffers.map((memory) => ({ memory, rowPitch: 16 }));
      assert.ok(target && source);
      const copying = copyPitched(target, source, box, { stream });
      buffers[closes].close();
      latch[Symbol.dispose]();
      await assert.rejects(copying, /^ClosedError: this DeviceBuffer is closed: /);
      for (const buffer of buffers) buffer.close();
    }
  });

  test('detaching host memory during a copy rejects the copy', async () => {
    emulate();
    using stream = Stream.create({ nonBlocking: true });
    using buffer = DeviceBuffer.allocate(64);
    const latch = new Latch();
    latch.hold(stream);
    const bytes = new Uint8Array(64);
    const copying = buffer.copyFrom(bytes, { stream });
    structuredClone(bytes.buffer, { transfer: [bytes.buffer] });
    latch[Symbol.dispose]();
    await assert.rejects(copying, {
      name: 'TypeError',
      message: 'the host memory was detached while it was copied',
    });
  });

  test('a failed copy states its size and direction, and the buffer stays usable', async () => {
    const driver = emulate();
    using buffer = DeviceBuffer.allocate(64);
    using stream = Stream.create();
    const faults = [
      ['cuMemcpyHtoD_v2', () => buffer.copyFromSync(new Uint8Array(64)), 'to device'],
      ['cuMemcpyDtoH_v2', () => buffer.copyToHostSync(), 'to host'],
      ['cuMemcpyHtoDAsync_v2', () => buffer.copyFrom(new Uint8Array(64)), 'to device'],
      ['cuMemcpyDtoHAsync_v2', () => buffer.copyToHostSync(undefined, { stream }), 'to host'],
      ['cuMemcpyDtoDAsync_v2', () => buffer.copyTo(buffer), 'on the device'],
    ] as const;
    for (const [call, copy, where] of faults) {
      selectDriver(failing(driver, call, 1, 700));
      await assert.rejects(async () => copy(), {
        name: 'CudaError',
        call,
        doing: `copying 64 bytes ${where}`,
      });
      await copy();
    }
    selectDriver(failing(driver, 'cuMemsetD8Async', 1, 700));
    assert.throws(() => buffer.fill(1), { call: 'cuMemsetD8Async', doing: 'filling 64 bytes' });
  });

  test('a copy whose event cannot be recorded settles only when its memory is unused', async () => {
    const driver = emulate();
    for (const way of ['copyFrom', 'copyToHost'] as const) {
      let asked = 0;
      const faults = withFaults(
        {
          ...driver,
          cuStreamQuery: (stream) => {
            asked += 1;
            return asked < 4 ? CUresult.CUDA_ERROR_NOT_READY : driver.cuStreamQuery(stream);
          },
        },
        ['cuEventRecord'],
      );
      selectDriver(faults.driver);
      using buffer = DeviceBuffer.allocate(4096);
      // The first event is for the earlier work, the second for the copy.
      faults.fail('cuEventRecord', 2, CUresult.CUDA_ERROR_UNKNOWN);
      await assert.rejects(buffer[way](new Uint8Array(4096)), {
        name: 'CudaError',
        call: 'cuEventRecord',
        code: 'CUDA_ERROR_UNKNOWN',
      });
      assert.equal(asked, 4);
    }
  });

  test('a copy whose event and stream both fail rejects with the first error', async () => {
    const driver = emulate();
    const faults = withFaults(driver, ['cuEventRecord', 'cuStreamQuery']);
    selectDriver(faults.driver);
    const buffer = DeviceBuffer.allocate(4096);
    faults.fail('cuEventRecord', 2, CUresult.CUDA_ERROR_LAUNCH_FAILED);
    faults.fail('cuStreamQuery', 1, CUresult.CUDA_ERROR_LAUNCH_FAILED);
    await assert.rejects(buffer.copyFrom(new Uint8Array(4096)), { call: 'cuEventRecord' });
  });

  test('awaited copies destroy their events, and keep one stream per context', async () => {
    emulate({ CUFFI_EMULATED_DEVICES: '2' });
    using buffer = DeviceBuffer.allocate(64);
    using stream = Stream.create({ device: 1 });
    {
      // One event in the stream's context, after the earlier work, and one in the copy's own.
      using both = recordCalls();
      await buffer.copyToHost(undefined, { stream });
      const made = both.calls.filter(({ name }) => name === 'cuEventCreate');
      const gone = both.calls.filter(({ name }) => name === 'cuEventDestroy_v2');
      assert.deepEqual([made.length, gone.length], [2, 2]);
    }
    Context.primary().resetSync();
    using again = DeviceBuffer.allocate(64);
    const recorder = recordCalls();
    for (let n = 0; n < 5; n += 1) await again.copyToHost();
    recorder.stop();
    const count = (name: string): number =>
      recorder.calls.filter((call) => call.name === name).length;
    assert.equal(count('cuEventCreate'), 5);
    assert.equal(count('cuEventDestroy_v2'), 5);
    assert.equal(count('cuStreamCreateWithPriority'), 1);
  });

  test('an awaited copy uses a non-blocking stream, and events without timing', async () => {
    const recorder = recordArguments(emulate());
    using buffer = DeviceBuffer.allocate(64);
    await buffer.copyToHost();
    assert.deepEqual(
      recorder.of('cuStreamCreateWithPriority').map(({ args }) => args.slice(1)),
      [[CU_STREAM_NON_BLOCKING, 0]],
    );
    assert.deepEqual(
      recorder.of('cuEventCreate').map(({ args }) => args[1]),
      [CU_EVENT_DISABLE_TIMING],
    );
  });

  test('a reset ends the wait of a copy between devices, which then queries no destroyed object', async () => {
    leaves('driver: host registration', 'a latch of a context that was not reset');
    emulate({ CUFFI_EMULATED_DEVICES: '2' });
    using target = DeviceBuffer.allocate(64, { device: 0 });
    using source = DeviceBuffer.allocate(64, { device: 0 });
    const other = Context.primary(1);
    for (const reset of [other, target.context]) {
      const stream = Stream.create({ context: other, nonBlocking: true });
      const latch = new Latch(other);
      latch.hold(stream);
      const copying = copyPitched(
        { memory: target },
        { memory: source },
        { width: 64 },
        { stream },
      );
      // The reset waits for the work; nothing has queried it since.
      latch.open();
      reset.resetSync();
      if (reset === other) await copying;
      else await assert.rejects(copying, /ClosedError: .* its context was reset/);
      latch.word[Symbol.dispose]();
      stream.close();
    }
  });

  test('an awaited copy after a reset uses a stream of the new context', async () => {
    emulate();
    const context = Context.primary();
    using before = DeviceBuffer.allocate(16);
    await before.copyFrom(new Uint8Array(16));
    context.resetSync();
    using after = DeviceBuffer.allocate(16);
    await after.copyFrom(new Uint8Array(16).fill(6));
    assert.deepEqual(new Set(await after.copyToHost()), new Set([6]));
  });
});
