import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { recordCalls } from '../../ffi/driver.ts';
import { Context, Device, DeviceBuffer, MemoryPool, Stream } from '../../src/index.ts';
import { getIpcHandle, ImportedPool } from '../../src/ipc/index.ts';
import { iterations } from '../support/iterations.ts';
import { Latch } from '../support/latch.ts';
import { valuesOf } from '../support/layouts.ts';
import { processState } from '../support/process-state.ts';
import { type Read, WorkerProcess } from './fixtures/index.ts';
import { Mailbox } from './fixtures/mailbox.ts';

const MIB = 1 << 20;
const GIB = 1024 * MIB;
// Memory that nothing is written to costs the emulated driver nothing.
process.env['CUFFI_EMULATED_MEMORY'] ||= '16G';
const options = {
  timeout: 60_000,
  skip: MemoryPool.supported(0, { shareable: true })
    ? false
    : 'the device does not make pools that can be shared by file descriptor',
};

/** What one process says of what it received. */
interface Received {
  readonly byteLength: number;
  readonly isMapped: boolean;
  readonly address: number;
  readonly pool: string;
}

describe('pools between processes', () => {
  test(
    'memory of a pool is read and written by both, and its pool is imported once',
    options,
    async () => {
      using mailbox = new Mailbox();
      await using user = await WorkerProcess.ready();
      using pool = MemoryPool.create({ maxSize: 64 * MIB, shareable: true });
      using first = pool.allocate(MIB);
      using second = pool.allocate(1000);
      first.fill(1);
      second.fill(2);
      await Context.primary().synchronize();
      assert.equal(mailbox.send(first, user.pid), 1, 'the descriptor of the pool goes along');
      const opened = await user.do<Received>('receive', { key: 'first' });
      assert.deepEqual([opened.byteLength, opened.isMapped], [MIB, true]);
      assert.equal(opened.pool, `ImportedPool(of process ${process.pid})`);
      assert.equal(mailbox.send(second.subarray(300, 400), user.pid), 0, 'and goes once');
      await user.do('receive', { key: 'second' });
      assert.deepEqual(await user.do<Read>('read', { key: 'first' }), {
        values: [1],
        byteLength: MIB,
      });
      assert.deepEqual(await user.do<Read>('read', { key: 'second' }), {
        values: [2],
        byteLength: 100,
      });
      await user.do('fill', { key: 'second', value: 3 });
      const bytes = await second.copyToHost();
      assert.deepEqual([bytes[299], bytes[300], bytes[399], bytes[400]], [2, 3, 3, 2]);
      assert.equal(await user.do('count', { name: 'cuMemPoolImportFromShareableHandle' }), 1);
      await user.do('close', { key: 'first' });
      await user.do('close', { key: 'second' });
    },
  );

  test(
    'sent twice it is mapped once: closing one leaves the other, also behind held work',
    options,
    async () => {
      using mailbox = new Mailbox();
      await using user = await WorkerProcess.ready();
      await user.do('createPool', { key: 'pool' });
      await user.do('allocateIn', { pool: 'pool', key: 'x', byteLength: MIB, value: 5 });
      const receive = async (): Promise<DeviceBuffer> => {
        await user.do('send', { key: 'x', pid: process.pid });
        return mailbox.receiveBuffer();
      };
      const recorder = recordCalls();
      const count = (name: string): number =>
        recorder.calls.filter((call) => call.name === name && call.status === 0).length;
      const context = Context.primary();
      const one = await receive();
      const other = await receive();
      assert.equal(one.address, other.address);
      one.close();
      one.close();
      assert.throws(() => one.copyToHostSync(), { name: 'ClosedError' });
      assert.deepEqual(await valuesOf(other), [5]);
      const stream = Stream.create({ nonBlocking: true });
      const latch = new Latch();
      latch.hold(stream);
      other.fill(6, { stream });
      other.close();
      assert.equal(stream.done, false);
      const again = await receive();
      latch.open();
      await stream.synchronize();
      assert.deepEqual(await valuesOf(again), [6]);
      assert.equal(count('cuMemPoolImportPointer'), 1);
      again.close();
      stream.close();
      await context.flush();
      latch[Symbol.dispose]();
      // The pool is kept for the next memory of it.
      using anew = await receive();
      assert.deepEqual(await valuesOf(anew), [6]);
      assert.equal(count('cuMemPoolImportPointer'), 2);
      assert.equal(count('cuMemPoolImportFromShareableHandle'), 1);
      recorder.stop();
    },
  );

  test(
    'an imported pool gives out nothing, is one object, and outlives its buffers',
    options,
    async () => {
      using mailbox = new Mailbox();
      await using user = await WorkerProcess.ready();
      await user.do('createPool', { key: 'pool' });
      await user.do('allocateIn', { pool: 'pool', key: 'x', byteLength: MIB, value: 5 });
      await user.do('send', { key: 'pool', pid: process.pid });
      const pool = mailbox.receive();
      assert.ok(pool instanceof ImportedPool);
      assert.equal(pool.isMapped, true);
      assert.throws(() => pool.allocate(), {
        name: 'IpcError',
        message: /^only process \d+, which made this pool, can allocate/,
      });
      assert.throws(() => DeviceBuffer.allocate(16, { memory: pool }), { name: 'IpcError' });
      await user.do('send', { key: 'x', pid: process.pid, begin: 8, end: 16 });
      const buffer = mailbox.receiveBuffer();
      assert.equal(buffer.resource, pool);
      await user.do('send', { key: 'pool', pid: process.pid });
      assert.equal(mailbox.receive(), pool);
      assert.throws(() => pool.close(), { name: 'CuffiError', message: /1 buffer of this pool/ });
      assert.throws(() => getIpcHandle(buffer), {
        name: 'IpcError',
        message: /no legacy IPC handle/,
      });
      buffer.close();
      assert.equal(pool.closed, false);
      pool.close();
      assert.throws(() => pool.handle, { name: 'ClosedError' });
      await user.do('send', { key: 'x', pid: process.pid });
      using later = mailbox.receiveBuffer();
      assert.deepEqual(await valuesOf(later), [5]);
    },
  );

  test(
    'what came from a process that has ended stays, and nothing more of it is opened',
    options,
    async () => {
      for (let kill = 0; kill < iterations(1, 100); kill += 1) {
        using mailbox = new Mailbox();
        await using user = await WorkerProcess.ready();
        await user.do('createPool', { key: 'pool' });
        for (const [key, value] of [
          ['x', 5],
          ['y', 6],
        ] as const) {
          await user.do('allocateIn', { pool: 'pool', key, byteLength: MIB, value });
          await user.do('send', { key, pid: process.pid });
        }
        using buffer = mailbox.receiveBuffer();
        await user.kill();
        assert.deepEqual(await valuesOf(buffer), [5]);
        buffer.fill(7);
        assert.deepEqual(await valuesOf(buffer), [7]);
        assert.throws(() => mailbox.receive(), { name: 'IpcError', code: 'exporter-gone' });
      }
    },
  );

  test(
    "passed on from A to B to C it is A's memory, and comes back to A as its own",
    options,
    async () => {
      using mailbox = new Mailbox();
      await using b = await WorkerProcess.ready();
      await using c = await WorkerProcess.ready();
      using pool = MemoryPool.create({ maxSize: 64 * MIB, shareable: true });
      using mine = pool.allocate(MIB);
      mine.fill(1);
      await Context.primary().synchronize();
      mailbox.send(mine, b.pid);
      await b.do('receive', { key: 'x' });
      assert.equal(await b.do('send', { key: 'x', pid: c.pid, begin: 100, end: 200 }), 1);
      await c.do('receive', { key: 'x' });
      await b.kill();
      assert.deepEqual(await c.do<Read>('read', { key: 'x' }), { values: [1], byteLength: 100 });
      await c.do('fill', { key: 'x', value: 2 });
      await c.do('send', { key: 'x', pid: process.pid });
      const back = mailbox.receiveBuffer();
      assert.equal(back.address, mine.address + 100);
      assert.deepEqual(await valuesOf(back), [2]);
      back.close();
      assert.equal(new Set(await mine.copyToHost()).size, 2);
    },
  );

  test(
    '20 tasks over two workers and three pools leave nothing behind anywhere',
    options,
    async () => {
      using mailbox = new Mailbox();
      await using one = await WorkerProcess.ready();
      await using two = await WorkerProcess.ready();
      const workers = [one, two];
      const context = Context.primary();
      const round = async (tasks: number): Promise<void> => {
        const pools = [0, 1, 2].map(() =>
          MemoryPool.create({ maxSize: 32 * MIB, shareable: true }),
        );
        for (let task = 0; task < tasks; task += 1) {
          const worker = workers[task % 2] as WorkerProcess;
          using buffer = (pools[task % 3] as MemoryPool).allocate(1000 + task);
          buffer.fill(task);
          await context.synchronize();
          mailbox.send(buffer, worker.pid);
          await worker.do('receive', { key: 'task' });
          assert.deepEqual((await worker.do<Read>('read', { key: 'task' })).values, [task]);
          await worker.do('fill', { key: 'task', value: task + 100 });
          await worker.do('send', { key: 'task', pid: process.pid });
          mailbox.receiveBuffer().close();
          assert.deepEqual(await valuesOf(buffer), [task + 100]);
          await worker.do('close', { key: 'task' });
          await worker.do('flush');
        }
        mailbox.end();
        for (const worker of workers) await worker.do('endSessions');
        for (const pool of pools) pool.close();
        await context.flush();
        for (const worker of workers) await worker.do('flush');
      };
      await round(6);
      const states = async () => [processState(), await one.do('state'), await two.do('state')];
      const before = await states();
      for (let n = 0; n < iterations(1, 50); n += 1) await round(20);
      assert.deepEqual(await states(), before);
    },
  );

  test('an allocation that would crash its receiver is refused at both ends, and ends neither', {
    ...options,
    skip: options.skip || (Device.get().totalMemory < 12 * GIB && 'it takes 12 GiB'),
  }, async (t) => {
    const limit = 'CUFFI_POOL_SHARE_LIMIT';
    t.after(() => delete process.env[limit]);
    using mailbox = new Mailbox();
    await using user = await WorkerProcess.ready();
    using pool = MemoryPool.create({ maxSize: 11 * GIB, shareable: true });
    const large = pool.allocate(5.25 * GIB);
    using most = pool.allocate(5 * GIB);
    const end = most.subarray(most.byteLength - 16);
    end.fill(7);
    await Context.primary().synchronize();
    const refused = { name: 'IpcError', message: /5637144576 bytes .* above 5368709120/ };
    assert.throws(() => mailbox.send(large, user.pid), refused);
    // A sender that does not mind.
    process.env[limit] = String(large.byteLength);
    mailbox.send(large.subarray(0, 16), user.pid);
    await assert.rejects(user.do('receive', { key: 'large' }), {
      name: 'IpcError',
      message: refused.message,
    });
    assert.equal(await user.do('count', { name: 'cuMemPoolImportPointer' }), 0);
    large.close();
    mailbox.send(end, user.pid);
    await user.do('receive', { key: 'end' });
    assert.deepEqual(await user.do<Read>('read', { key: 'end' }), { values: [7], byteLength: 16 });
    await user.do('close', { key: 'end' });
  });
});
