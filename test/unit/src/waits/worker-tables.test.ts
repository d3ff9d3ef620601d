/** Real worker threads; the shared array stands for what the driver has once per process. */
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { randomUUID } from 'node:crypto';
import { once } from 'node:events';
import { readdirSync, readlinkSync, statSync } from 'node:fs';
import { afterEach, describe, test } from 'node:test';
import type { Worker } from 'node:worker_threads';
import type { CUdeviceptr } from '../../../../ffi/types.ts';
import {
  acquireSharedMapping,
  acquireSharedUse,
  addThreadExport,
  closeThreadExport,
  hasThreadExport,
  nameOfMapping,
  openSharedHandle,
  releaseSharedHandle,
  releaseSharedUse,
  removeThreadExport,
  retainSharedHandle,
  withTable,
} from '../../../../src/waits/worker-tables.ts';
import { startWorker } from '../../../support/program.ts';
import type { Task } from './fixtures/counting-worker.ts';

const program = new URL('./fixtures/counting-worker.ts', import.meta.url);
const mapped = new Int32Array(new SharedArrayBuffer(64));
const workers: Worker[] = [];
afterEach(async () => {
  for (const worker of workers.splice(0)) await worker.terminate();
  mapped.fill(0);
});

function start(): Worker {
  const worker = startWorker(program, mapped.buffer);
  workers.push(worker);
  return worker;
}

async function ask(worker: Worker, task: Task): Promise<number> {
  worker.postMessage(task);
  const [answer] = await once(worker, 'message');
  return answer as number;
}

/** The inodes of the memfds of counts that are open here. */
const files = (): Set<number> =>
  new Set(
    readdirSync('/proc/self/fd').flatMap((fd) => {
      try {
        const path = `/proc/self/fd/${fd}`;
        return /^\/memfd:cuffi-mappings-/.test(readlinkSync(path)) ? [statSync(path).ino] : [];
      } catch {
        return []; // the file descriptor of the listing itself
      }
    }),
  );

// Must run first: no worker has used the counts yet, so the main thread takes no lock.
describe('acquireSharedUse', () => {
  test('a worker that starts while the main thread uses the counts waits for it', async () => {
    const name = randomUUID();
    const worker = start();
    assert.equal(await ask(worker, { do: 'greet' }), 0);
    const answered = once(worker, 'message');
    const begun = acquireSharedUse(name, 1, () => {
      worker.postMessage({ do: 'begin', name } satisfies Task);
      Atomics.wait(mapped, 1, 0, 100);
      return Atomics.load(mapped, 0);
    });
    assert.equal(begun, 0);
    assert.deepEqual(await answered, [1]);
    releaseSharedUse(name, assert.fail);
    assert.equal(await ask(worker, { do: 'end', name }), 0);
  });

  test('memory that another worker uses stays mapped, and all memory is unmapped in the end', async () => {
    const names = Array.from({ length: 3 }, () => randomUUID());
    const racing = [start(), start(), start()];
    const found = await Promise.all(
      racing.map((worker) => ask(worker, { do: 'race', names, rounds: 200 })),
    );
    assert.deepEqual(found, [0, 0, 0]);
    assert.deepEqual([...mapped.subarray(0, 3)], [0, 0, 0]);
    assert.equal(files().size, 1, 'however many workers began at once');
    const { stdout } = spawnSync('ls', ['-l', '/proc/self/fd'], { encoding: 'utf8' });
    assert.doesNotMatch(stdout, /cuffi-mappings/, 'and no other process inherits it');
  });

  test('memory of a terminated worker stays mapped, and its lock is released', async () => {
    const name = randomUUID();
    const [one, other] = [start(), start()];
    assert.equal(await ask(one, { do: 'begin', name }), 1);
    assert.equal(await ask(other, { do: 'begin', name }), 1);
    await one.terminate();
    assert.equal(await ask(other, { do: 'end', name }), 1);
    await ask(other, { do: 'stall', name: randomUUID() });
    await other.terminate();
    let isEnded = false;
    acquireSharedUse(name, 1, () => {});
    releaseSharedUse(name, () => {
      isEnded = true;
    });
    assert.equal(isEnded, false);
  });

  test('another version of a name in use is refused, and a failure adds no use', () => {
    const name = randomUUID();
    const ended: string[] = [];
    assert.equal(
      acquireSharedUse(name, 1, () => 'mapped'),
      'mapped',
    );
    assert.throws(() => acquireSharedUse(name, 2, assert.fail), {
      name: 'IpcError',
      message: /another worker thread/,
    });
    const failing = (): never => {
      throw new RangeError('no');
    };
    assert.throws(() => acquireSharedUse(name, 1, failing), RangeError);
    releaseSharedUse(name, () => ended.push('first'));
    assert.throws(() => acquireSharedUse(name, 2, failing), RangeError);
    acquireSharedUse(name, 3, () => {});
    releaseSharedUse(name, () => ended.push('third'));
    assert.deepEqual(ended, ['first', 'third']);
  });
});

describe('many names', () => {
  // More than there are chains in a table: several stand in each.
  const COUNT = 10_000;

  test('have a record each, which the next names get when all of its users are gone', () => {
    const end = (): number => withTable('uses', ([length]) => length as number);
    let most = 0;
    for (const round of ['first', 'second']) {
      const names = Array.from({ length: COUNT }, (_, n) => `${round} ${n}`);
      for (const name of names) acquireSharedUse(name, 1, () => {});
      // Those that were added first, last and between them.
      for (const name of names) acquireSharedUse(name, 1, () => {});
      assert.throws(() => acquireSharedUse(names[0] as string, 2, assert.fail), {
        name: 'IpcError',
      });
      most ||= end();
      assert.equal(end(), most);
      for (const name of names) releaseSharedUse(name, assert.fail);
      let ended = 0;
      for (const name of [...names.slice(COUNT / 2), ...names.slice(0, COUNT / 2)])
        releaseSharedUse(name, () => {
          ended += 1;
        });
      assert.equal(ended, COUNT);
    }
  });

  test('of memory that a thread shares are found until it closes that', () => {
    const ids = Array.from({ length: COUNT }, (_, n) => 1e9 + n);
    const shared = ids.map((id) => ({ id, piece: 0, base: id as CUdeviceptr, byteLength: 64 }));
    const records = shared.map((each) => addThreadExport(each));
    const removed = new Set(records.filter((_, n) => n % 3 === 1));
    for (const at of removed) assert.equal(closeThreadExport(at), true);
    for (const [n, id] of ids.entries())
      assert.equal(hasThreadExport(id, 0), !removed.has(records[n] as number));
    assert.equal(hasThreadExport(ids[0] as number, 1), false);
    for (const at of records) if (!removed.has(at)) removeThreadExport(at);
    assert.ok(ids.every((id) => !hasThreadExport(id, 0)));
  });
});

describe('openSharedHandle', () => {
  test('the last release closes a handle as often as the driver has opened it', () => {
    const handle = 2 ** 50 + 3;
    let closed = 0;
    const close = (): void => releaseSharedHandle(handle, () => (closed += 1));
    openSharedHandle(() => handle);
    openSharedHandle(() => handle);
    retainSharedHandle(handle);
    close();
    close();
    assert.equal(closed, 0);
    close();
    assert.equal(closed, 2);
    openSharedHandle(() => handle);
    close();
    assert.equal(closed, 3);
  });
});

describe('acquireSharedMapping', () => {
  test('mappings are counted by address, and a failure does not unmap memory in use', () => {
    const base = 2 ** 51;
    const mapping = { base };
    const seen: boolean[] = [];
    const map = (isUsed: (address: number) => boolean) => {
      seen.push(isUsed(base));
      return mapping;
    };
    assert.equal(acquireSharedMapping(1, map), mapping);
    acquireSharedMapping(1, map);
    assert.throws(() => acquireSharedMapping(2, map), { name: 'IpcError' });
    assert.deepEqual(seen, [false, true, true]);
    releaseSharedUse(nameOfMapping(base), assert.fail);
    let isEnded = false;
    releaseSharedUse(nameOfMapping(base), () => {
      isEnded = true;
    });
    assert.equal(isEnded, true);
    acquireSharedMapping(2, map);
    releaseSharedUse(nameOfMapping(base));
  });
});
