/** Pools of processes: what a task gets, what becomes of it when its process ends, and what is left. */
import assert from 'node:assert/strict';
import { afterEach, describe, test } from 'node:test';
import { setTimeout as delay } from 'node:timers/promises';
import { inspect } from 'node:util';
import { type CudaError, Device, DeviceBuffer, devices, PeerGoneError } from '../../src/index.ts';
import { leases, PeerPool, type PeerPoolOptions } from '../../src/ipc/index.ts';
import { emulated } from '../support/driver.ts';
import { iterations, until } from '../support/iterations.ts';
import { programFile } from '../support/program.ts';
import type { PoolTask } from './fixtures/pool-member.ts';

// On hardware, as many as there are.
if (emulated) process.env['CUFFI_EMULATED_DEVICES'] = '2';

const deadline = { timeout: 60_000 + iterations(0, 600_000) };
const script = programFile(new URL('./fixtures/pool-member.ts', import.meta.url)).path;
const pythonScript = new URL('./fixtures/pool-member.py', import.meta.url);
const pools: PeerPool[] = [];

interface Where {
  readonly pid: number;
  readonly devices: readonly string[];
  readonly began: number;
}

type Options = Omit<PeerPoolOptions<unknown, PoolTask>, 'script'>;

function start(options?: Options): PeerPool<unknown, PoolTask> {
  const pool = PeerPool.create<unknown, PoolTask>({ script, devices: [0], ...options });
  pools.push(pool as PeerPool);
  return pool;
}

const where = async (pool: PeerPool<unknown, PoolTask>, device?: Device): Promise<Where> =>
  (await pool.run({ do: 'where' }, device && { device })) as Where;

const serve = (pool: Pick<PeerPool, 'stats'>): Promise<void> =>
  until(() => pool.stats().members.every(({ state }) => state === 'serving'));

const isAlive = (pid: number): boolean => {
  try {
    return process.kill(pid, 0);
  } catch {
    return false;
  }
};

afterEach(async () => {
  await Promise.all(pools.splice(0).map((pool) => pool.destroy()));
});

describe('PeerPool', () => {
  test(
    'has processes for each GPU, which see it alone, and a task may name its GPU',
    deadline,
    async () => {
      const pool = start({ devices: 'all', perDevice: 2 });
      assert.equal(pool.size, 2 * Device.count);
      await serve(pool);
      for (const device of devices()) {
        const found = await Promise.all([where(pool, device), where(pool, device)]);
        assert.deepEqual(
          found.map((each) => each.devices),
          [[device.uuid], [device.uuid]],
        );
        const pids = new Set(found.map(({ pid }) => pid));
        assert.equal(pids.size, 2);
        const members = pool.stats().members.filter((each) => each.device.uuid === device.uuid);
        assert.deepEqual(new Set(members.map(({ pid }) => pid)), pids);
      }
      await assert.rejects(start().run({ do: 'where' }, { device: 99 }), { name: 'RangeError' });
    },
  );

  test('sends memory both ways, and what all share before the first task', deadline, async () => {
    using weights = DeviceBuffer.allocate(64);
    weights.fill(7);
    const pool = start({
      args: ['shared'],
      perDevice: 2,
      setup: (peer) => peer.send({ shared: weights } as never),
    });
    for (let n = 0; n < 4; n += 1) assert.equal(await pool.run({ do: 'first' }), 7);
    using input = DeviceBuffer.allocate(64);
    using answer = (await pool.run({ do: 'fill', input, value: 3 })) as DeviceBuffer;
    assert.deepEqual([(await input.copyToHost())[0], (await answer.copyToHost())[63]], [3, 4]);
    await leases.returned(input, { timeoutMs: 10_000 });
  });

  test('a process gets its first task when its setup is over', deadline, async () => {
    let isSetUp = false;
    const pool = start({
      async setup() {
        await delay(300);
        isSetUp = true;
      },
    });
    await where(pool);
    assert.equal(isSetUp, true);
  });

  test(
    'begins tasks in order, one at a time in each process, and refuses those that find no room',
    deadline,
    async () => {
      const pool = start({ maxQueue: 2 });
      await where(pool);
      const first = pool.run({ do: 'wait', value: 200 });
      const queued = [pool.run({ do: 'where' }), pool.run({ do: 'where' })];
      assert.equal(pool.queueSize, 2);
      await assert.rejects(pool.run({ do: 'where' }), {
        name: 'IpcError',
        code: 'limit-exceeded',
        message: /^2 tasks wait for a process of the pool already: .*maxQueue/,
      });
      await first;
      const begun = (await Promise.all(queued)) as Where[];
      assert.deepEqual(
        begun.map(({ began }) => began),
        [3, 4],
      );
      assert.deepEqual([pool.queueSize, pool.stats().completed], [0, 4]);
    },
  );

  test('takes processes in turns, and the one with the fewest tasks', deadline, async () => {
    const pool = start({ perDevice: 2, args: ['', '2'], concurrency: 2 });
    await serve(pool);
    assert.equal(inspect(pool), 'PeerPool(2 processes)');
    const pids = new Set([(await where(pool)).pid, (await where(pool)).pid]);
    assert.equal(pids.size, 2);
    const stop = new AbortController();
    const running = [0, 1].map(() => pool.run({ do: 'untilAborted' }, { signal: stop.signal }));
    const countsOf = (): number[] => pool.stats().members.map(({ running: count }) => count);
    assert.deepEqual(countsOf(), [1, 1]);
    running.push(pool.run({ do: 'untilAborted' }, { signal: stop.signal }));
    // One process is full, the other one is not.
    await where(pool);
    running.push(pool.run({ do: 'untilAborted' }, { signal: stop.signal }));
    assert.deepEqual(countsOf(), [2, 2]);
    running.push(pool.run({ do: 'untilAborted' }, { signal: stop.signal }));
    assert.equal(inspect(pool), 'PeerPool(2 processes, 1 task waiting)');
    stop.abort();
    for (const { status } of await Promise.allSettled(running)) assert.equal(status, 'rejected');
    await pool.close();
    assert.equal(inspect(pool), 'PeerPool(closed)');
  });

  test('close waits for a task that no process has yet', deadline, async () => {
    const pool = start();
    const task = where(pool);
    await pool.close();
    assert.equal((await task).began, 1);
  });

  test('close waits for a task that runs', deadline, async () => {
    const pool = start();
    const { pid } = await where(pool);
    const running = pool.run({ do: 'wait', value: 100 });
    await pool.close();
    assert.equal(await running, pid);
  });

  test('gives a process as many tasks at a time as it says', deadline, async () => {
    const pool = start({ args: ['', '3'], concurrency: 3 });
    await where(pool);
    const running = Array.from({ length: 4 }, () => pool.run({ do: 'wait', value: 100 }));
    assert.deepEqual([pool.queueSize, pool.stats().members[0]?.running], [1, 3]);
    await Promise.all(running);
  });

  test('throws what a handler throws, in a process that goes on', deadline, async () => {
    const pool = start();
    const { pid } = await where(pool);
    await assert.rejects(pool.run({ do: 'fail', value: 8 }), {
      name: 'RangeError',
      message: 'no 8',
    });
    assert.equal((await where(pool)).pid, pid);
    assert.deepEqual(pool.stats().failed, 1);
  });

  for (const [act, expected] of [
    ['exit', { exitCode: 3, signal: undefined }],
    ['kill', { exitCode: undefined, signal: 'SIGKILL' }],
  ] as const)
    test(
      `rejects the tasks of a process that ends by ${act} with the reason, and starts another one`,
      deadline,
      async () => {
        const pool = start({ args: ['', '2'], concurrency: 2 });
        const { pid } = await where(pool);
        const beside = pool.run({ do: 'hang' });
        const waiting = [pool.run({ do: act, value: 3 }), pool.run({ do: 'where' })];
        const [lost, ended, next] = await Promise.allSettled([beside, ...waiting]);
        for (const { reason } of [lost, ended] as PromiseRejectedResult[]) {
          assert.ok(reason instanceof PeerGoneError, String(reason));
          const { exitCode, signal } = reason;
          assert.deepEqual({ exitCode, signal }, expected);
          if (act === 'exit') assert.match(reason.message, /with code 3.*: this is why$/);
        }
        // The task that waited was not begun there: the new process runs it.
        const { pid: other, began } = (next as PromiseFulfilledResult<Where>).value;
        assert.deepEqual([other !== pid, began], [true, 1]);
        assert.equal(isAlive(pid), false);
        assert.equal(pool.stats().restarts, 1);
      },
    );

  test('starts a process again as often as one ends that had served', deadline, async () => {
    const pool = start({ restart: { limit: 1, backoffMs: 1 } });
    for (let n = 1; n <= 3; n += 1) {
      await assert.rejects(pool.run({ do: 'kill' }), { signal: 'SIGKILL' });
      await where(pool);
      assert.equal(pool.stats().restarts, n);
    }
  });

  test('restarts a process that has lost its context, and the task says so', deadline, async () => {
    const pool = start();
    const { pid } = await where(pool);
    await assert.rejects(pool.run({ do: 'lose' }), (error: CudaError) => {
      assert.deepEqual([error.name, error.code], ['CudaError', 'CUDA_ERROR_ILLEGAL_ADDRESS']);
      return true;
    });
    assert.notEqual((await where(pool)).pid, pid);
    await until(() => !isAlive(pid));
  });

  test(
    'an aborted task aborts its handler, and a task that waits does not begin',
    deadline,
    async () => {
      const pool = start();
      const { pid } = await where(pool);
      const stop = new AbortController();
      const [running, waiting] = [
        pool.run({ do: 'untilAborted' }, { signal: stop.signal }),
        pool.run({ do: 'exit', value: 1 }, { signal: stop.signal }),
      ];
      stop.abort(new Error('enough'));
      assert.equal(pool.queueSize, 0);
      await assert.rejects(running, /enough/);
      await assert.rejects(waiting, /enough/);
      assert.deepEqual([await pool.run({ do: 'aborted' }), (await where(pool)).pid], [1, pid]);
      assert.deepEqual([pool.stats().givenUp, pool.stats().failed], [2, 0]);
      await assert.rejects(pool.run({ do: 'untilAborted' }, { timeoutMs: 20 }), {
        name: 'TimeoutError',
        message: 'a task of a pool took longer than 20 ms: 1 task runs, and 0 wait',
      });
      await assert.rejects(pool.run({ do: 'where' }, { signal: AbortSignal.abort() }), {
        name: 'AbortError',
      });
    },
  );

  test(
    'a handler that goes on after its task was given up loses its process',
    deadline,
    async () => {
      const pool = start({ closeTimeoutMs: 50 });
      const { pid } = await where(pool);
      await assert.rejects(pool.run({ do: 'hang' }, { timeoutMs: 10 }), { name: 'TimeoutError' });
      const next = await where(pool);
      assert.notEqual(next.pid, pid);
      assert.equal(isAlive(pid), false);
    },
  );

  test(
    'a process that may be killed for a handler that goes on gets no other task',
    deadline,
    async () => {
      const pool = start({ args: ['', '2'], concurrency: 2, closeTimeoutMs: 200 });
      const { pid } = await where(pool);
      await assert.rejects(pool.run({ do: 'hang' }, { timeoutMs: 10 }), { name: 'TimeoutError' });
      assert.notEqual((await where(pool)).pid, pid);
      assert.equal(pool.stats().failed, 0);
    },
  );

  test(
    'a script that fails at start is started as often as the limit says, and then its tasks reject',
    deadline,
    async () => {
      const pool = start({
        args: ['broken'],
        stdio: ['ignore', 'ignore', 'inherit'],
        restart: { limit: 1, backoffMs: 1 },
      });
      const task = pool.run({ do: 'where' });
      await assert.rejects(task, {
        name: 'IpcError',
        code: 'spawn-failed',
        message:
          /^no process of the pool is left: process \d+ has exited with code 1 .*no model here/,
      });
      await assert.rejects(pool.run({ do: 'where' }), { code: 'spawn-failed' });
      const { members, restarts } = pool.stats();
      assert.deepEqual([pool.size, members[0]?.state, restarts], [0, 'given up', 1]);
    },
  );

  test(
    'a setup that fails after its process has ended does nothing to the next process',
    deadline,
    async () => {
      const pids: number[] = [];
      let isLate = false;
      const pool = start({
        restart: { backoffMs: 1 },
        async setup(peer) {
          pids.push(peer.pid);
          if (pids.length > 1) return;
          peer.process.kill('SIGKILL');
          await until(() => pids.length > 1);
          await delay(50);
          isLate = true;
          throw new Error('too late');
        },
      });
      const { pid } = await where(pool);
      await until(() => isLate);
      await delay(20);
      assert.deepEqual([(await where(pool)).pid, pool.stats().restarts], [pid, 1]);
    },
  );

  test('the others go on when one process is not started again', deadline, async () => {
    const pool = PeerPool.create<unknown, PoolTask>({
      script: ({ index }) => (index === 0 ? '/does/not/exist.js' : script),
      devices: [0, 0],
      stdio: ['ignore', 'ignore', 'ignore'],
      restart: { limit: 0 },
    });
    pools.push(pool as PeerPool);
    await until(() => pool.size === 1);
    const found = (await Promise.all([where(pool), where(pool)])).map(({ pid }) => pid);
    assert.equal(new Set(found).size, 1);
    const stop = new AbortController();
    const running = pool.run({ do: 'untilAborted' }, { signal: stop.signal });
    await assert.rejects(pool.run({ do: 'where' }, { timeoutMs: 20 }), {
      message: /: 1 task runs, and 1 wait$/,
    });
    stop.abort();
    await assert.rejects(running, { name: 'AbortError' });
    assert.deepEqual(
      pool.stats().members.map(({ state }) => state),
      ['given up', 'serving'],
    );
  });

  test('a script that never serves is named when a task takes too long', deadline, async () => {
    const pool = start({ args: ['silent'] });
    await assert.rejects(pool.run({ do: 'where' }, { timeoutMs: 50 }), {
      message: /no process serves yet: does its script call serve\(\)\?$/,
    });
    assert.equal(pool.stats().members[0]?.state, 'starting');
  });

  test('a setup that throws ends the process, and its error is the reason', deadline, async () => {
    const pids: number[] = [];
    const pool = start({
      args: ['silent'],
      restart: { limit: 1, backoffMs: 1 },
      closeTimeoutMs: 120_000,
      setup(peer) {
        pids.push(peer.pid);
        throw new Error('no weights');
      },
    });
    await assert.rejects(pool.run({ do: 'where' }), {
      code: 'spawn-failed',
      message: /no weights/,
    });
    assert.equal(pids.length, 2);
    await until(() => !pids.some(isAlive));
  });

  test('close runs what it has to the end, and leaves no process', deadline, async () => {
    const pool = start({ perDevice: 2 });
    const tasks = Array.from({ length: 6 }, () => pool.run({ do: 'wait', value: 20 }));
    const closing = pool.close();
    await assert.rejects(pool.run({ do: 'where' }), { name: 'ClosedError' });
    const pids = new Set((await Promise.all(tasks)) as number[]);
    await closing;
    assert.deepEqual(
      [...pids].map(isAlive),
      [...pids].map(() => false),
    );
    assert.equal(pool.size, 0);
  });

  test('close waits no longer for a process than closeTimeoutMs', deadline, async () => {
    const pool = start({ args: ['silent'], closeTimeoutMs: 20 });
    const pid = pool.stats().members[0]?.pid as number;
    await pool.close();
    assert.equal(isAlive(pid), false);
  });

  test('destroy rejects all tasks, and kills the processes', deadline, async () => {
    const pool = start({ closeTimeoutMs: 120_000 });
    const { pid } = await where(pool);
    const tasks = Promise.allSettled([pool.run({ do: 'hang' }), pool.run({ do: 'where' })]);
    await pool.destroy();
    for (const { reason } of (await tasks) as PromiseRejectedResult[])
      assert.equal(reason.name, 'ClosedError');
    assert.equal(isAlive(pid), false);
  });

  test(
    'its processes may be of Python, and their ends have a reason as well',
    deadline,
    async () => {
      const mixed = PeerPool.create<unknown, PoolTask>({
        script: ({ index }) => (index === 0 ? pythonScript : script),
        devices: [0, 0],
        stdio: ['ignore', 'ignore', 'inherit'],
      });
      pools.push(mixed as PeerPool);
      await serve(mixed);
      const found = await Promise.all([where(mixed), where(mixed)]);
      assert.equal(new Set(found.map(({ pid }) => pid)).size, 2);
      const { uuid } = Device.get();
      assert.deepEqual(
        found.map((each) => each.devices),
        [[uuid], [uuid]],
      );
      const python = mixed.stats().members[0]?.pid as number;
      const ends = await Promise.allSettled([0, 1].map(() => mixed.run({ do: 'exit', value: 4 })));
      for (const { reason } of ends as PromiseRejectedResult[]) assert.equal(reason.exitCode, 4);
      assert.equal(isAlive(python), false);
    },
  );

  test(
    'with any number of kills, each task is answered once or rejected with a reason',
    deadline,
    async () => {
      const count = iterations(120, 20_000);
      const kills = iterations(6, 50);
      const pool = start({
        devices: 'all',
        perDevice: 2,
        restart: { backoffMs: 1 },
        maxQueue: count,
      });
      let settled = 0;
      const tasks = Array.from({ length: count }, async () => {
        try {
          assert.equal(typeof (await pool.run({ do: 'wait', value: 1 })), 'number');
        } catch (error) {
          assert.ok(error instanceof PeerGoneError, String(error));
          assert.equal(error.signal, 'SIGKILL');
        }
        settled += 1;
      });
      for (let n = 0; n < kills; n += 1) {
        await until(() => settled >= (count * (n + 1)) / (kills + 2));
        const alive = pool.stats().members.filter(({ pid }) => pid !== undefined);
        const pid = alive[n % alive.length]?.pid;
        if (pid !== undefined) process.kill(pid, 'SIGKILL');
      }
      await Promise.all(tasks);
      const { completed, failed, members, queueSize } = pool.stats();
      assert.deepEqual([completed + failed, queueSize], [count, 0]);
      assert.deepEqual(
        members.map(({ running }) => running),
        members.map(() => 0),
      );
    },
  );

  test('refuses invalid options before it starts anything', () => {
    const wrong = (options: object): void => {
      assert.throws(
        () => PeerPool.create({ script, ...options } as never),
        TypeError,
        JSON.stringify(options),
      );
    };
    wrong({ script: undefined });
    wrong({ script: 7 });
    wrong({ scripts: 'a' });
    wrong({ devices: [] });
    wrong({ devices: 'some' });
    wrong({ devices: ['cuda:0'] });
    wrong({ setup: true });
    wrong({ visibleDevices: 'none' });
    wrong({ restart: { times: 1 } });
    wrong({ env: 'PATH' });
    for (const options of [
      { perDevice: 0 },
      { maxQueue: -1 },
      { closeTimeoutMs: -1 },
      { devices: [99] },
    ])
      assert.throws(() => PeerPool.create({ script, ...options }), RangeError);
  });
});
