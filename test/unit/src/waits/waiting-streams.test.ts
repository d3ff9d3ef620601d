import assert from 'node:assert/strict';
import { once } from 'node:events';
import { afterEach, describe, test } from 'node:test';
import { setTimeout } from 'node:timers/promises';
import type { Worker } from 'node:worker_threads';
import { recordCalls, selectDriver } from '../../../../ffi/driver.ts';
import { addressOf } from '../../../../ffi/native.ts';
import { CUresult } from '../../../../ffi/results.ts';
import { Context, DeviceBuffer, Module, Stream } from '../../../../src/index.ts';
import { Timeline } from '../../../../src/ipc/index.ts';
import { assertNoStreamWaits } from '../../../../src/waits/waiting-streams.ts';
import { countOtherWaitingStreams, withTable } from '../../../../src/waits/worker-tables.ts';
import { losing } from '../../../support/faults.ts';
import { until } from '../../../support/iterations.ts';
import { loadKernels } from '../../../support/kernels.ts';
import { leaves } from '../../../support/left-open.ts';
import { startWorker } from '../../../support/program.ts';
import { emulate } from '../emulate.ts';

const program = new URL('./fixtures/waiting-thread.ts', import.meta.url);
const workers: Worker[] = [];
afterEach(async () => {
  await Promise.all(workers.splice(0).map((worker) => worker.terminate()));
});

async function startWaiting(): Promise<{ say(message: 'wait' | 'signal'): Promise<unknown> }> {
  const worker = startWorker(program, undefined);
  workers.push(worker);
  leaves(/pipe|cuffi-timeline/, 'a thread that is terminated closes nothing');
  await once(worker, 'message');
  return {
    say(message) {
      worker.postMessage(message);
      return once(worker, 'message');
    },
  };
}

describe('a stream that waits for another process', () => {
  test('makes Module.load throw instead of blocking, until it has waited', async () => {
    emulate();
    const context = Context.primary();
    using timeline = Timeline.create();
    using stream = Stream.create({ nonBlocking: true });
    using other = Stream.create({ nonBlocking: true });
    timeline.wait(1, { stream });
    const recorder = recordCalls();
    assert.throws(() => Module.load('.version 8.0'), {
      name: 'CuffiError',
      message: /loading code would block this process: 1 stream waits .*Load it before/,
    });
    recorder.stop();
    assert.equal(
      recorder.calls.some(({ name }) => name.startsWith('cuModuleLoad')),
      false,
    );
    assert.throws(() => assertNoStreamWaits(context, 'it', 'Wait.'), /^CuffiError: it would/);
    timeline.signal(1, { stream: other });
    await stream.synchronize();
    loadKernels().close();
  });

  test('holds back releases that would block, which come back when it has waited', async () => {
    emulate();
    const context = Context.primary();
    using timeline = Timeline.create();
    using stream = Stream.create({ nonBlocking: true });
    timeline.wait(1, { stream });
    const recorder = recordCalls();
    const buffer = DeviceBuffer.allocate(4096);
    buffer.close();
    recorder.stop();
    assert.equal(
      recorder.calls.some(({ name }) => name === 'cuMemFree_v2'),
      false,
    );
    assert.equal(context.pendingReleases.count, 1);
    timeline.signal(1);
    await until(() => context.pendingReleases.count === 0);
  });

  test('counts in the other threads of the process, even if its thread was terminated', async () => {
    // The driver of the worker is the emulated one of the process, too.
    selectDriver(emulate());
    const context = Context.primary();
    withTable('waits', () => {});
    const thread = await startWaiting();
    assert.equal(countOtherWaitingStreams(context), 0);
    await thread.say('wait');
    // Each thread has an emulated driver, and so other handles.
    const there = { handle: waitHandle() } as unknown as Context;
    assert.equal(countOtherWaitingStreams(there), 2);
    assert.throws(() => assertNoStreamWaits(there, 'it', 'Wait.'), /2 streams wait/);
    await thread.say('signal');
    assert.equal(countOtherWaitingStreams(there), 0);
    const second = await startWaiting();
    await second.say('wait');
    const handle = waitHandle();
    const gone = { handle } as unknown as Context;
    await workers[1]?.terminate();
    assert.equal(countOtherWaitingStreams(gone), 2);
    // What its streams wait for is reached: by the word itself, as nobody is left to say it.
    reach(handle);
    assert.equal(countOtherWaitingStreams(gone), 0);
  });
});

describe('a stream of another thread that waits', () => {
  test('takes one of the places for waiting streams, and holds back releases', async () => {
    emulate();
    await startWaiting();
    const context = Context.primary();
    using timeline = Timeline.create();
    using stream = Stream.create({ nonBlocking: true });
    const word = showOthers(context, 6);
    assert.throws(() => timeline.wait(1, { stream }), {
      name: 'CuffiError',
      message: /^too many streams of this process already wait/,
    });
    DeviceBuffer.allocate(4096).close();
    await setTimeout(20);
    assert.equal(context.pendingReleases.count, 1);
    word[0] = 1n;
    await until(() => context.pendingReleases.count === 0);
    timeline.wait(1, { stream });
    // Those of this thread are not counted again.
    assert.equal(countOtherWaitingStreams(context), 0);
    timeline.signal(1);
    await stream.synchronize();
  });

  test('does not hold up the reset of a lost context', async () => {
    const { driver, lose } = losing(emulate(), CUresult.CUDA_ERROR_LAUNCH_FAILED);
    selectDriver(driver);
    await startWaiting();
    const context = Context.primary();
    Stream.create().close();
    const word = showOthers(context, 1);
    await assert.rejects(context.reset({ timeoutMs: 5 }), { name: 'TimeoutError' });
    lose();
    await context.reset({ timeoutMs: 10_000 });
    word[0] = 1n;
  });

  test('no longer sees a wait whose timeline is closed', async () => {
    emulate();
    const context = Context.primary();
    const timeline = Timeline.create();
    using stream = Stream.create({ nonBlocking: true });
    timeline.wait(1, { stream });
    assert.equal(shownIn(context), 1);
    timeline.signal(1);
    await stream.synchronize();
    timeline.close();
    await context.flush();
    assert.equal(shownIn(context), 0);
  });
});

const RECORD_LENGTH = 5;

/** Adds waits of as many streams of another thread. Returns the word that they wait for to be 1. */
function showOthers(context: Context, count: number): BigUint64Array {
  const word = new BigUint64Array(new ArrayBuffer(4096));
  withTable('waits', (table) => {
    const end = (table[0] as number) || RECORD_LENGTH;
    for (let n = 0; n < count; n += 1)
      table.set([context.handle, 9999, n, addressOf(word), 1], end + n * RECORD_LENGTH);
    table[0] = end + count * RECORD_LENGTH;
  });
  return word;
}

/** How many waits of a context other threads see. */
const shownIn = ({ handle }: Context): number =>
  withTable('waits', (table) => {
    let count = 0;
    for (let at = RECORD_LENGTH; at < (table[0] as number); at += RECORD_LENGTH)
      if (table[at] === handle) count += 1;
    return count;
  });

/** The context of the waits that other threads show. */
const waitHandle = (): number =>
  withTable('waits', (table) => {
    for (let at = (table[0] as number) - RECORD_LENGTH; at > 0; at -= RECORD_LENGTH)
      if (table[at] && table[at + 1] !== 0) return table[at] as number;
    return 0;
  });

/** Makes the awaited values of a context 0, which every word has reached. */
const reach = (handle: number): void =>
  withTable('waits', (table) => {
    for (let at = RECORD_LENGTH; at < (table[0] as number); at += RECORD_LENGTH)
      if (table[at] === handle) table[at + 4] = 0;
  });
