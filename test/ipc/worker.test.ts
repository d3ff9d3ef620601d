/** Worker threads of one process, each with cuffi loaded: one driver, and JavaScript's state each. */
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { afterEach, test } from 'node:test';
import type { Worker } from 'node:worker_threads';
import { cu } from '../../ffi/driver.ts';
import { duplicateFd } from '../../ffi/libc.ts';
import { withAddress } from '../../ffi/native.ts';
import type { CUdeviceptr } from '../../ffi/types.ts';
import { Context, DeviceBuffer, MemoryPool } from '../../src/index.ts';
import { exportIpc, getIpcHandle, listen, openIpcBuffer } from '../../src/ipc/index.ts';
import { nextTurn } from '../../src/wait.ts';
import { dose } from '../support/dose.ts';
import { emulated } from '../support/driver.ts';
import { programFile } from '../support/program-file.ts';
import { valuesOf } from '../support/values.ts';
import { startWorker } from '../support/worker.ts';
import { User } from './fixtures/index.ts';
import { Mailbox } from './fixtures/mailbox.ts';
import type { Request } from './fixtures/worker.ts';

const deadline = { timeout: 60_000 };
const iterations = dose(3, 50);
const workers: Worker[] = [];
afterEach(async () => {
  for (const worker of workers.splice(0)) await worker.terminate();
});

function start(): Worker {
  const worker = startWorker(new URL('./fixtures/worker.ts', import.meta.url), undefined);
  workers.push(worker);
  return worker;
}

interface Found {
  readonly descriptor: unknown;
  readonly address: number;
  readonly values: number[];
}

async function ask<T>(worker: Worker, request: Request): Promise<T> {
  worker.postMessage(request);
  const [{ result, error }] = (await once(worker, 'message')) as [{ result: T; error?: object }];
  if (error) throw Object.assign(new Error(), error);
  return result;
}

/** What the driver says of a copy from an address that may be unmapped. */
const statusOfReading = (address: CUdeviceptr): number =>
  Context.primary().run(() =>
    withAddress(new Uint8Array(16), (into) => cu.cuMemcpyDtoH_v2(into, address, 16)),
  );

test('a descriptor goes to a worker thread by MessagePort, and back', deadline, async () => {
  await using user = await User.ready();
  const made = await user.do('allocate', { key: 'x', byteLength: 1000, value: 5 });
  const worker = start();
  const { descriptor, values } = await ask<Found>(worker, {
    do: 'open',
    descriptor: made,
    fds: [],
  });
  assert.deepEqual(values, [5]);
  assert.deepEqual(descriptor, made);
  await ask(worker, { do: 'fill', value: 6 });
  const back = openIpcBuffer(descriptor);
  assert.deepEqual(await valuesOf(back), [6]);
  await ask(worker, { do: 'close' });
  assert.deepEqual(await valuesOf(back), [6]);
  back.close();
  using own = DeviceBuffer.allocate(16);
  await assert.rejects(ask(worker, { do: 'open', descriptor: getIpcHandle(own), fds: [] }), {
    name: 'IpcError',
    code: 'same-process',
  });
});

test('a worker thread may be terminated while values come to it', deadline, async () => {
  const name = `@cuffi-test-${process.pid}-worker`;
  using listener = listen(name);
  for (let n = 0; n < iterations; n++) {
    const worker = start();
    const connected = ask(worker, { do: 'connect', name });
    using peer = await listener.accept();
    await connected;
    // Ready in every turn of its loop, from before its end until after it.
    let isOver = false;
    const sending = (async () => {
      while (!isOver) {
        peer.send('busy').catch(() => {});
        await nextTurn();
      }
    })();
    await once(worker, 'message');
    assert.equal(await worker.terminate(), 1);
    isOver = true;
    peer.close();
    await sending;
  }
});

for (const [how, code] of [
  ['process.exit(7)', 7],
  ["throw new Error('of the main thread')", 1],
] as const)
  test(`a process may end by ${how} while values come to its worker thread`, deadline, async () => {
    const name = `@cuffi-test-${process.pid}-main`;
    using listener = listen(name);
    const { path, execArgv } = programFile(new URL('./fixtures/ending.ts', import.meta.url));
    for (let n = 0; n < iterations; n++) {
      const child = spawn(process.execPath, [...execArgv, path, name, how], {
        stdio: ['ignore', 'ignore', 'ignore'],
      });
      const exit = once(child, 'exit');
      const kill = setTimeout(() => child.kill('SIGKILL'), 30_000);
      using peer = await listener.accept();
      let isOver = false;
      void peer.ended.then(() => {
        isOver = true;
      });
      while (!isOver) {
        peer.send('busy').catch(() => {});
        await nextTurn();
      }
      assert.deepEqual(await exit, [code, null]);
      clearTimeout(kill);
    }
  });

test('memory of a pool that one worker thread closes stays with the others, and goes with the last', {
  ...deadline,
  skip: emulated
    ? 'hardware only: the emulated driver has its state per worker thread'
    : !MemoryPool.supported(0, { shareable: true }) && 'no shareable pools',
}, async () => {
  using mailbox = new Mailbox();
  await using user = await User.ready();
  await user.do('createPool', { key: 'pool' });
  await user.do('allocateIn', { pool: 'pool', key: 'x', byteLength: 1 << 20, value: 5 });
  await user.do('send', { key: 'x', pid: process.pid });
  const buffer = mailbox.receive() as DeviceBuffer;
  const open = (worker: Worker): Promise<Found> => {
    const { descriptor, fds } = exportIpc(buffer);
    return ask(worker, { do: 'open', descriptor, fds: fds.map(duplicateFd) });
  };
  const { address } = buffer;
  const [one, other] = [start(), start()];
  for (const worker of [one, other]) {
    const found = await open(worker);
    assert.deepEqual([found.address, found.values], [address, [5]]);
  }
  await ask(one, { do: 'close' });
  assert.deepEqual(await valuesOf(buffer), [5]);
  buffer.close();
  await Context.primary().flush();
  await ask(other, { do: 'fill', value: 7 });
  await user.do('close', { key: 'x' });
  await user.do('flush');
  assert.equal(statusOfReading(address), 0);
  await ask(other, { do: 'close' });
  assert.equal(statusOfReading(address), 1);
});
