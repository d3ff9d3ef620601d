/** Captures on a driver that only pretends to: what cuffi itself does and refuses meanwhile. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { OUT3, writeUint64 } from '../../../../ffi/arena.ts';
import {
  CU_STREAM_CAPTURE_MODE_RELAXED,
  CU_STREAM_CAPTURE_STATUS_ACTIVE,
} from '../../../../ffi/constants.ts';
import { selectDriver } from '../../../../ffi/driver.ts';
import type { Driver, FunctionName } from '../../../../ffi/functions.ts';
import { CUresult } from '../../../../ffi/results.ts';
import type { Address } from '../../../../ffi/types.ts';
import {
  Context,
  CudaEvent,
  DeviceBuffer,
  Graph,
  MemoryPool,
  Stream,
} from '../../../../src/index.ts';
import { Latch } from '../../../support/latch.ts';
import { emulate } from '../emulate.ts';

/** A driver that takes the calls of captures, and writes down every call. */
function pretend(env: NodeJS.ProcessEnv = {}): {
  readonly calls: string[];
  answers: Partial<Record<FunctionName, CUresult>>;
} {
  const emulated = emulate(env);
  const calls: string[] = [];
  const answers: Partial<Record<FunctionName, CUresult>> = {};
  let capturing = false;
  const gives = (handle: number) => (out: Address) => {
    writeUint64(handle, out);
    return 0;
  };
  const graphs: Partial<Driver> = {
    cuStreamBeginCapture_v2: (_, mode) => {
      assert.equal(mode, CU_STREAM_CAPTURE_MODE_RELAXED);
      capturing = true;
      return 0;
    },
    cuStreamEndCapture: (_, out) => {
      capturing = false;
      return gives(0x77)(out);
    },
    cuGraphInstantiateWithFlags: gives(0x88),
    cuGraphDestroy: () => 0,
    cuGraphExecDestroy: () => 0,
    cuGraphLaunch: () => 0,
    cuGraphExecUpdate_v2: () => 0,
  };
  /** What a driver would take as the end of the capture. */
  const breaking = /Query|Synchronize|^cuMem(Alloc|Free)|Destroy_v2|^cuEventRecord/;
  const driver = { ...emulated, ...graphs } as unknown as Record<
    string,
    (...args: never[]) => CUresult
  >;
  const watched = Object.fromEntries(
    Object.entries(driver).map(([name, call]) => [
      name,
      (...args: never[]): CUresult => {
        calls.push(name);
        if (capturing && breaking.test(name)) assert.fail(`${name} in a capture`);
        return answers[name as FunctionName] ?? call(...args);
      },
    ]),
  );
  selectDriver(watched as unknown as Driver);
  return { calls, answers };
}

test('asks the driver nothing while a graph is captured, and gives back afterwards', async () => {
  pretend();
  const context = Context.primary();
  using stream = Stream.create({ nonBlocking: true });
  using event = CudaEvent.create();
  using buffer = DeviceBuffer.allocate(64);
  using pool = MemoryPool.create({ maxSize: 1 << 20 });
  const pooled = pool.allocate(16, { stream });
  const closed = DeviceBuffer.allocate(64);
  const refused = { name: 'CuffiError', message: /while a graph is captured/ };
  const waits: Promise<unknown>[] = [];
  const graph = Graph.capture(stream, () => {
    for (const act of [
      () => stream.done,
      () => stream.synchronizeSync(),
      () => event.done,
      () => event.synchronizeSync(),
      () => event.record(),
      () => CudaEvent.elapsedMs(event, event),
      () => context.synchronizeSync(),
      () => context.resetSync(),
      () => buffer.fill(1),
      () => buffer.fill(1, { stream: Stream.perThreadDefault() }),
      () => buffer.copyToHostSync(),
      () => buffer.copyFromSync(new Uint8Array(64), { stream }),
      () => DeviceBuffer.allocate(16),
      () => pool.allocate(16, { stream }),
      () => Graph.capture(stream, () => {}),
    ])
      assert.throws(act, refused, String(act));
    waits.push(stream.synchronize(), event.synchronize(), context.synchronize(), context.reset());
    waits.push(buffer.copyToHost());
    pooled.close();
    closed.close();
    buffer.fill(2, { stream });
  });
  graph.close();
  for (const wait of waits) await assert.rejects(wait, refused);
  assert.equal(context.pendingReleases.count, 3);
  await context.flush();
  assert.equal(context.pendingReleases.count, 0);
});

test('a graph that fails on the way is destroyed, and the capture is ended', () => {
  const { calls, answers } = pretend();
  using stream = Stream.create({ nonBlocking: true });
  const count = (name: string): number => calls.filter((call) => call === name).length;
  const ended = (): void => {
    assert.deepEqual(
      [count('cuStreamEndCapture'), count('cuGraphDestroy')],
      [count('cuStreamBeginCapture_v2'), count('cuStreamBeginCapture_v2')],
    );
    assert.equal(stream.done, true);
    assert.equal(Context.current(), undefined);
  };
  assert.throws(
    () =>
      Graph.capture(stream, () => {
        throw new Error('of the caller');
      }),
    /of the caller/,
  );
  ended();
  assert.throws(() => Graph.capture(stream, (async () => {}) as () => void), /synchronous/);
  ended();
  answers.cuGraphInstantiateWithFlags = CUresult.CUDA_ERROR_OUT_OF_MEMORY;
  assert.throws(() => Graph.capture(stream, () => {}), { code: 'CUDA_ERROR_OUT_OF_MEMORY' });
  ended();
  delete answers.cuGraphInstantiateWithFlags;
  const graph = Graph.capture(stream, () => {});
  answers.cuGraphExecUpdate_v2 = CUresult.CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER;
  assert.throws(() => graph.update(stream, () => {}), { name: 'NotSupportedError' });
  ended();
  answers.cuGraphLaunch = CUresult.CUDA_ERROR_INVALID_VALUE;
  assert.throws(() => graph.launch({ stream }), { call: 'cuGraphLaunch' });
  assert.throws(() => graph.launch(), { call: 'cuGraphLaunch' });
  assert.equal(Context.current(), undefined);
  graph.close();
  assert.equal(count('cuGraphExecDestroy'), 1);
});

test('work in a borrowed stream that another library captures is not marked', () => {
  const { calls, answers } = pretend();
  using owner = Stream.create({ nonBlocking: true });
  using buffer = DeviceBuffer.allocate(64);
  const borrowed = Stream.fromHandle(owner.handle);
  buffer.fill(1, { stream: borrowed });
  assert.ok(calls.includes('cuEventRecord'));
  calls.length = 0;
  answers.cuStreamIsCapturing = CUresult.CUDA_SUCCESS;
  // The answer is left where the driver would have written it.
  writeUint64(CU_STREAM_CAPTURE_STATUS_ACTIVE, OUT3);
  buffer.fill(2, { stream: borrowed });
  assert.ok(!calls.includes('cuEventRecord'), calls.join(' '));
});

test('memory of another device that a graph uses is kept until its launches are done', async () => {
  pretend({ CUFFI_EMULATED_DEVICES: '2' });
  using stream = Stream.create({ nonBlocking: true });
  using near = DeviceBuffer.allocate(64);
  const far = DeviceBuffer.allocate(64, { device: 1 });
  using graph = Graph.capture(stream, () => far.copyTo(near, { stream }));
  await Promise.all([Context.primary(0).synchronize(), Context.primary(1).synchronize()]);
  assert.equal(Context.primary(1).activity.isUntouched(), true);
  using latch = new Latch();
  latch.hold(stream);
  graph.launch({ stream });
  far.close();
  assert.equal(Context.primary(1).pendingReleases.count, 1);
  latch.open();
  await Context.primary(1).flush();
  assert.equal(Context.primary(1).pendingReleases.count, 0);
});
