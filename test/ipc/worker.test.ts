/** Worker threads of one process, each with cuffi loaded: one driver, and JavaScript's state each. */

import assert from 'node:assert/strict';
import { once } from 'node:events';
import { afterEach, describe, test } from 'node:test';
import type { Worker } from 'node:worker_threads';
import { cu } from '../../ffi/driver.ts';
import { duplicateFd } from '../../ffi/linux/libc.ts';
import { withAddress } from '../../ffi/native.ts';
import type { CUdeviceptr } from '../../ffi/types.ts';
import { ClosedError, Context, DeviceBuffer, MemoryPool, VirtualMemory } from '../../src/index.ts';
import {
  Channel,
  type ChannelConsumer,
  explain,
  exportIpc,
  getIpcHandle,
  leases,
  listen,
  openIpcBuffer,
  type Timeline,
} from '../../src/ipc/index.ts';
import { withChecksum } from '../../src/ipc/sharing/descriptor-codec.ts';
import { nextLoopIteration } from '../../src/poller.ts';
import { emulated } from '../support/driver.ts';
import { iterations, until } from '../support/iterations.ts';
import { valuesOf } from '../support/layouts.ts';
import { leaves } from '../support/left-open.ts';
import { startProgram, startWorker } from '../support/program.ts';
import { WorkerProcess } from './fixtures/index.ts';
import { Mailbox } from './fixtures/mailbox.ts';
import type { Request } from './fixtures/worker.ts';

const deadline = { timeout: 60_000 };
const rounds = iterations(1, 50);
const workers: Worker[] = [];
const NOBODY_CLOSES = 'nobody closes what a thread has that is terminated';

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

/** Whether the driver still lets this thread read there. */
const isThere = (address: CUdeviceptr): boolean => statusOfReading(address) === 0;

describe('worker threads', () => {
  afterEach(async () => {
    for (const worker of workers.splice(0)) await worker.terminate();
  });

  test('a descriptor goes to a worker thread by MessagePort, and back', deadline, async () => {
    await using user = await WorkerProcess.ready();
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
  });

  test('a worker thread may be terminated while values come to it', deadline, async () => {
    leaves(/^descriptor of (socket|anon_inode:\[pidfd\])$/, NOBODY_CLOSES, 2 * rounds);
    leaves(
      /^(timer|watch of .*|entry of (ffi\/linux\/poll|src\/ipc))/,
      'what was sent and is not read keeps the connection for two seconds',
      2 * rounds,
    );
    const name = `@cuffi-test-${process.pid}-worker`;
    using listener = listen(name);
    for (let n = 0; n < rounds; n++) {
      const worker = start();
      const connected = ask(worker, { do: 'take', name });
      using peer = await listener.accept();
      await connected;
      // Ready in every turn of its loop, from before its end until after it.
      let isOver = false;
      const sending = (async () => {
        while (!isOver) {
          peer.send('busy').catch(() => {});
          await nextLoopIteration();
        }
      })();
      await once(worker, 'message');
      assert.equal(await worker.terminate(), 1);
      isOver = true;
      peer.close();
      await sending;
    }
  });

  test('a worker thread that ends by itself closes its connections', deadline, async () => {
    const name = `@cuffi-test-${process.pid}-ends`;
    using listener = listen(name);
    for (const code of [0, 1]) {
      const worker = start();
      const connected = ask(worker, { do: 'connect', name });
      using peer = await listener.accept();
      await connected;
      const exit = once(worker, 'exit');
      worker.postMessage({ do: 'exit', code } satisfies Request);
      await exit;
      assert.ok((await peer.ended) instanceof ClosedError, `${code}`);
    }
  });

  for (const [how, code] of [
    ['process.exit(7)', 7],
    ["throw new Error('of the main thread')", 1],
  ] as const)
    test(
      `a process may end by ${how} while values come to its worker thread`,
      deadline,
      async () => {
        const name = `@cuffi-test-${process.pid}-main`;
        using listener = listen(name);
        const program = new URL('./fixtures/ending.ts', import.meta.url);
        for (let n = 0; n < rounds; n++) {
          const exit = once(startProgram(program, [name, how]), 'exit');
          using peer = await listener.accept();
          let isOver = false;
          void peer.ended.then(() => {
            isOver = true;
          });
          while (!isOver) {
            peer.send('busy').catch(() => {});
            await nextLoopIteration();
          }
          assert.deepEqual(await exit, [code, null]);
        }
      },
    );

  test('memory of a pool that one worker thread closes stays with the others, and goes with the last', {
    ...deadline,
    skip: emulated
      ? 'hardware only: the emulated driver has its state per worker thread'
      : !MemoryPool.supported(0, { shareable: true }) && 'no shareable pools',
  }, async () => {
    using mailbox = new Mailbox();
    await using user = await WorkerProcess.ready();
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

  test(
    'memory of this thread opens in another one at its address, unmapped by nobody',
    deadline,
    async () => {
      const worker = start();
      const memory = VirtualMemory.reserve(4 << 20, { shareable: true });
      memory.grow(2 << 20);
      using pool = MemoryPool.create({ maxSize: 32 << 20, shareable: true });
      using plain = DeviceBuffer.allocate(1000);
      using pooled = pool.allocate(1000);
      const last = memory.grow(4 << 20).subarray(3 << 20, (3 << 20) + 1000);
      for (const buffer of [plain, pooled, last]) {
        buffer.fill(3);
        await Context.primary().synchronize();
        const part = buffer.subarray(16, 48);
        const { descriptor, fds } = exportIpc(part);
        const open = (given: readonly number[]): Promise<Found> =>
          ask<Found>(worker, { do: 'open', descriptor, fds: given.map(duplicateFd) });
        const there = await open(fds);
        assert.deepEqual([there.address, there.values], [part.address, [3]]);
        assert.deepEqual(there.descriptor, descriptor);
        await ask(worker, { do: 'close' });
        // Without file descriptors it opens, too, and does not go on to other processes.
        if (fds.length > 0)
          await assert.rejects(open([]), { message: /share it in the thread that made it/ });
        else await open([]);
        await ask(worker, { do: 'fill', value: 9 });
        assert.deepEqual(await valuesOf(part), [9]);
        await ask(worker, { do: 'close' });
        assert.deepEqual(await valuesOf(part), [9]);
      }
      memory.close();
    },
  );

  test(
    'virtual memory that has grown opens in another thread at its new size',
    deadline,
    async () => {
      const worker = start();
      const memory = VirtualMemory.reserve(4 << 20, { shareable: true });
      for (const byteLength of [2 << 20, 4 << 20]) {
        const buffer = memory.grow(byteLength);
        buffer.fill(byteLength >> 20);
        await Context.primary().synchronize();
        const { descriptor, fds } = exportIpc(buffer);
        const there = await ask<Found>(worker, {
          do: 'open',
          descriptor,
          fds: fds.map(duplicateFd),
        });
        assert.deepEqual(there.values, [byteLength >> 20]);
        assert.deepEqual(there.descriptor, descriptor);
        await ask(worker, { do: 'close' });
      }
      memory.close();
    },
  );

  test('memory that another thread has open stays until that has closed it', deadline, async () => {
    const worker = start();
    const buffer = DeviceBuffer.allocate(4 << 20);
    buffer.fill(5);
    await Context.primary().synchronize();
    const { address } = buffer;
    const descriptor = getIpcHandle(buffer);
    const there = await ask<Found>(worker, { do: 'open', descriptor, fds: [] });
    assert.deepEqual([there.address, there.values, there.descriptor], [address, [5], descriptor]);
    buffer.close();
    await Context.primary().flush();
    assert.equal(isThere(address), true);
    await ask(worker, { do: 'fill', value: 6 });
    assert.equal(isThere(address), true);
    // What is closed here opens nowhere any more.
    await assert.rejects(ask(start(), { do: 'open', descriptor, fds: [] }), {
      name: 'IpcError',
      code: 'exporter-gone',
      message: /no longer exists/,
    });
    await ask(worker, { do: 'close' });
    await until(() => {
      void Context.primary().flush();
      return !isThere(address);
    });
  });

  test(
    'a descriptor that says more than another thread has shared opens nothing, and keeps nothing',
    deadline,
    async () => {
      const worker = start();
      const buffer = DeviceBuffer.allocate(4 << 20);
      const { address, byteLength } = buffer;
      const larger = { baseByteLength: 2 * byteLength, byteLength: byteLength + 1 };
      const descriptor = withChecksum({ ...getIpcHandle(buffer), ...larger });
      await assert.rejects(ask(worker, { do: 'open', descriptor, fds: [] }), {
        name: 'IpcError',
        code: 'invalid-descriptor',
        message: /bytes 0 to 4194305 of an allocation of process \d+ that has 4194304/,
      });
      buffer.close();
      await Context.primary().flush();
      assert.equal(isThere(address), false);
    },
  );

  test(
    'a handle of this thread stays refused here, and closing it frees at once',
    deadline,
    async () => {
      const buffer = DeviceBuffer.allocate(4 << 20);
      const { address } = buffer;
      const descriptor = getIpcHandle(buffer);
      assert.throws(() => openIpcBuffer(descriptor), { code: 'same-process' });
      assert.deepEqual(explain(descriptor).code, 'same-process');
      buffer.close();
      await Context.primary().flush();
      assert.equal(isThere(address), false);
      for (const sameProcess of ['refuse', 'alias'] as const)
        assert.throws(() => openIpcBuffer(descriptor, { sameProcess }), {
          name: /IpcError|ClosedError/,
        });
    },
  );

  test(
    'memory of another thread opens here, and stays until it is closed here',
    deadline,
    async () => {
      const worker = start();
      const shared = await ask<{ descriptor: unknown; address: CUdeviceptr }>(worker, {
        do: 'share',
        byteLength: 4 << 20,
        value: 8,
      });
      assert.equal(explain(shared.descriptor).openable, true);
      const buffer = openIpcBuffer(shared.descriptor);
      assert.deepEqual([buffer.address, await valuesOf(buffer)], [shared.address, [8]]);
      await ask(worker, { do: 'close' });
      assert.deepEqual(await valuesOf(buffer), [8]);
      buffer.close();
      await Context.primary().flush();
      assert.throws(() => openIpcBuffer(shared.descriptor), { code: 'exporter-gone' });
    },
  );

  test(
    'a connection between threads carries memory there and back, and keeps it as between processes',
    deadline,
    async () => {
      const worker = start();
      const name = `@cuffi-threads-${process.pid}`;
      using listener = listen(name);
      const connected = ask(worker, { do: 'connect', name });
      using peer = await listener.accept();
      await connected;
      const buffer = DeviceBuffer.allocate(4 << 20);
      buffer.fill(4);
      const { address } = buffer;
      await peer.send(buffer.subarray(0, 1 << 20));
      const there = await ask<Found>(worker, { do: 'receive' });
      assert.deepEqual([there.address, there.values], [address, [4]]);
      await ask(worker, { do: 'fill', value: 7 });
      await ask(worker, { do: 'send' });
      {
        using back = (await peer.receive()) as DeviceBuffer;
        assert.deepEqual([back.address, back.byteLength, back.isMapped], [address, 1 << 20, false]);
        assert.deepEqual(await valuesOf(back), [7]);
      }
      buffer.close();
      await Context.primary().flush();
      assert.equal(isThere(address), true);
      assert.equal(leases.stats().orphaned.count, 1);
      await ask(worker, { do: 'close' });
      await leases.drain({ timeoutMs: 30_000 });
      await until(() => {
        void Context.primary().flush();
        return !isThere(address);
      });
      await ask(worker, { do: 'disconnect' });
    },
  );

  // Last: the lease of a thread that was terminated stays as long as the process.
  test(
    'a worker thread consumes a channel of this one, and its end gives the slots back',
    deadline,
    async () => {
      leaves(/^descriptor of (socket|anon_inode:\[pidfd\]|cuffi\.virtual)$/, NOBODY_CLOSES, 6);
      leaves(
        /^(entry of (src\/ipc|ffi\/linux\/poll)|watch of (socket|anon_inode:\[pidfd\])|timer|driver: |listener of (a context|process for exit))/,
        'the leases of a thread that was terminated stay as long as the process',
        3,
      );
      const name = `@cuffi-test-${process.pid}-channel`;
      using listener = listen(name);
      const worker = start();
      const asked = ask(worker, { do: 'consume', name });
      using peer = await listener.accept();
      using channel = Channel.create({ slots: 3, shape: 4, dtype: 'uint32', deliver: 'all' });
      await peer.send(channel);
      assert.equal(await asked, undefined);
      const produce = async (count: number): Promise<void> => {
        for (let at = 0; at < count; at += 1) {
          const slot = await channel.acquire({ timeoutMs: 10_000 });
          slot.array.fill(slot.message);
          slot.publish();
        }
      };
      await produce(10);
      await assert.rejects(channel.drained({ timeoutMs: 50 }), { name: 'TimeoutError' });
      await worker.terminate();
      await channel.drained({ timeoutMs: 10_000 });
      assert.equal(channel.consumers, 0);
      // The next one sees all, to the end.
      const next = start();
      const consuming = ask(next, { do: 'consume', name });
      using other = await listener.accept();
      await other.send(channel);
      await consuming;
      const ended = once(next, 'message');
      await produce(3);
      channel.close();
      const [{ result }] = (await ended) as [{ readonly result: number[] }];
      assert.deepEqual(result, [10, 11, 12]);
    },
  );

  test('what a worker thread has sent ends when the thread is terminated', deadline, async () => {
    leaves(
      /^descriptor of (socket|pipe|anon_inode:\[pidfd\]|cuffi(\.virtual|-channel|-timeline))$/,
      NOBODY_CLOSES,
      2,
    );
    const name = `@cuffi-test-${process.pid}-holds`;
    using listener = listen(name);
    const worker = start();
    const holding = ask(worker, { do: 'hold', name });
    using peer = await listener.accept();
    const sent = (await peer.receive()) as { channel: ChannelConsumer; timeline: Timeline };
    using channel = sent.channel;
    using timeline = sent.timeline;
    await holding;
    assert.equal(timeline.value, 0);
    const limits = { timeoutMs: 20_000 };
    await worker.terminate();
    await assert.rejects(timeline.reached(1, limits), { name: 'PeerGoneError' });
    await assert.rejects(channel.receive(limits), { name: 'PeerGoneError' });
  });
});
