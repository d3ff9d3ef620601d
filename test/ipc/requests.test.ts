/** Requests between processes: memory both ways, errors, time-outs, and the end of either. */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { afterEach, describe, test } from 'node:test';
import { setTimeout as delay } from 'node:timers/promises';
import { Context, DeviceBuffer, PeerGoneError, Stream } from '../../src/index.ts';
import { type ChildPeer, leases, spawnPeer } from '../../src/ipc/index.ts';
import { iterations, until } from '../support/iterations.ts';
import { Latch } from '../support/latch.ts';
import { comesBackTo, type ProcessState, processState } from '../support/process-state.ts';
import { programFile } from '../support/program.ts';
import { SharedProcesses } from '../support/shared-processes.ts';
import type { Asked } from './fixtures/served.ts';

const deadline = { timeout: 60_000 + iterations(0, 600_000) };
const program = programFile(new URL('./fixtures/served.ts', import.meta.url)).path;
const children: ChildPeer[] = [];

function start(): ChildPeer<unknown, Asked | string> {
  const child = spawnPeer<unknown, Asked | string>(program);
  children.push(child);
  return child;
}

async function end(child: ChildPeer): Promise<void> {
  child.process.kill('SIGKILL');
  await endOf(child);
  child.close();
}

async function endOf({ process: running }: ChildPeer): Promise<number | string> {
  if (running.exitCode === null && running.signalCode === null) await once(running, 'exit');
  return running.signalCode ?? (running.exitCode as number);
}

const valuesOf = async (buffer: DeviceBuffer, stream: Stream): Promise<number[]> => [
  ...(await buffer.copyToHost(undefined, { stream })),
];

/** Requests a copy of memory when the host is far ahead of the stream that fills it. */
async function copyLate(
  child: ChildPeer<unknown, Asked | string>,
  input: DeviceBuffer,
  value: number,
  stream: Stream,
): Promise<void> {
  using latch = new Latch();
  latch.hold(stream);
  input.fill(value, { stream });
  const asked = child.request({ do: 'copy', input, value: 200 }, { stream });
  using answer = (await asked) as DeviceBuffer;
  assert.equal(stream.done, false);
  latch.open();
  const copied = [200, 200, 200, 200, ...new Array<number>(4).fill(value)];
  assert.deepEqual(await valuesOf(answer, stream), copied);
}

describe('requests between processes', () => {
  afterEach(async () => {
    for (const child of children.splice(0)) await end(child);
  });
  const shared = new SharedProcesses(1, {
    start: () => spawnPeer<unknown, Asked | string>(program),
    // With its pool, which stays, and with what a connection needs for work that runs on both sides.
    async warmUp(child) {
      using stream = Stream.create({ nonBlocking: true });
      using input = DeviceBuffer.allocate(8);
      await copyLate(child, input, 1, stream);
    },
    clear: (child) => child.request({ do: 'pid' }),
    end,
  });

  test(
    'memory goes both ways, ordered behind busy streams, and nothing is left of it',
    deadline,
    async () => {
      const [child] = shared.lend();
      using stream = Stream.create({ nonBlocking: true });
      using input = DeviceBuffer.allocate(8);
      const ask = (value: number): Promise<void> => copyLate(child, input, value, stream);
      for (let value = 1; value <= 5; value++) await ask(value);
      await Context.primary().flush();
      const before = processState();
      const there = (await child.request({ do: 'state' })) as ProcessState;
      for (let round = 0; round < iterations(20, 2000); round++) await ask(6 + (round % 100));
      await Context.primary().flush();
      await comesBackTo(before);
      await comesBackTo(
        there,
        'the child',
        async () => (await child.request({ do: 'state' })) as ProcessState,
      );
      await until(() => leases.stats().leases.length === 0);
    },
  );

  test('a loop of values goes on beside requests', deadline, async () => {
    const [child] = shared.lend();
    const answers = Promise.all(
      Array.from({ length: 20 }, () => child.request({ do: 'pid' }, { timeoutMs: 30_000 })),
    );
    for (let n = 0; n < 20; n++) {
      await child.send(`${n}`);
      assert.equal(await child.receive({ timeoutMs: 30_000 }), `echo: ${n}`);
    }
    assert.deepEqual(new Set(await answers), new Set([child.pid]));
  });

  test('an error of the handler arrives as that error, with both stacks', deadline, async () => {
    const [child] = shared.lend();
    await assert.rejects(child.request({ do: 'fail', value: 3 }), (error: unknown) => {
      assert.ok(error instanceof RangeError);
      assert.equal(error.message, 'no 3');
      assert.equal((error.cause as Error).message, 'the cause');
      assert.match(
        error.stack ?? '',
        /served\.[\s\S]*in process \d+, which served the request[\s\S]*requests\.test/,
      );
      return true;
    });
  });

  test('a time-out and an abort reach the handler', deadline, async () => {
    const [child] = shared.lend();
    assert.equal(await child.request({ do: 'abortedCount' }), 0);
    const abort = new AbortController();
    const aborted = child.request({ do: 'hang' }, { signal: abort.signal });
    await assert.rejects(child.request({ do: 'hang' }, { timeoutMs: 50 }), {
      name: 'TimeoutError',
    });
    abort.abort(new Error('enough'));
    await assert.rejects(aborted, /enough/);
    while ((await child.request({ do: 'abortedCount' })) !== 2) await delay(5);
  });

  test(
    'the end of the process that serves rejects all its requests, each with how it ended',
    deadline,
    async () => {
      for (const [end, expected] of [
        ['kill', { name: 'PeerGoneError', signal: 'SIGKILL' }],
        ['exit', { name: 'PeerGoneError', exitCode: 7 }],
      ] as const) {
        const child = start();
        const before = leases.stats().leases.length;
        using input = DeviceBuffer.allocate(64);
        const asked = [
          child.request({ do: 'hang' }),
          child.request({ do: 'hang', input }),
          child.request({ do: 'hang' }, { timeoutMs: 30_000 }),
        ];
        await child.request({ do: 'pid' });
        if (end === 'kill') child.process.kill('SIGKILL');
        else asked.push(child.request({ do: 'exit' }));
        for (const rejected of await Promise.allSettled(asked)) {
          assert.ok(rejected.status === 'rejected');
          assert.ok(rejected.reason instanceof PeerGoneError);
          const { name, signal, exitCode } = rejected.reason;
          assert.deepEqual({ name, ...(signal ? { signal } : { exitCode }) }, expected);
        }
        await assert.rejects(child.request({ do: 'pid' }), { name: 'PeerGoneError' });
        await until(() => leases.stats().leases.length === before);
      }
    },
  );

  test(
    'the end of the process that asks aborts the handlers, and ends serving',
    deadline,
    async () => {
      const child = start();
      const asked = assert.rejects(child.request({ do: 'hang' }), { name: 'ClosedError' });
      await child.request({ do: 'pid' });
      child.close();
      await asked;
      // Its `serve` resolves once the handler has been aborted.
      assert.equal(await endOf(child), 0);
    },
  );
});
