/** Leases of peers in this process. The test decides when a peer counts as ended. */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { socketPair } from '../../../../../ffi/linux/socket.ts';
import { Context, DeviceBuffer, MemoryPool, VirtualMemory } from '../../../../../src/index.ts';
import { leases } from '../../../../../src/ipc/index.ts';
import { ExportTable, Lease } from '../../../../../src/ipc/lease/export-table.ts';
import { PeerProcess } from '../../../../../src/ipc/lease/peer-process.ts';
import { Peer } from '../../../../../src/ipc/peer/peer.ts';
import { until } from '../../../../support/iterations.ts';
import { openDescriptors } from '../../../../support/process-state.ts';
import { startProcess } from '../../../../support/program.ts';
import { emulate } from '../../emulate.ts';

const uid = process.geteuid?.() ?? 0;

describe('leases', () => {
  test('the leases of a process whose end cannot be observed end some time after its connection', async () => {
    emulate();
    const [near, far] = socketPair();
    const init = { process: PeerProcess.ofChild(0), orphanGraceMs: 100 };
    const peer = new Peer(near, { pid: 0, uid }, init);
    const other = new Peer(far, { pid: process.pid, uid });
    using buffer = DeviceBuffer.allocate(64);
    await peer.send({ again: buffer, and: buffer.subarray(0, 8) });
    const { again } = (await other.receive()) as { again: DeviceBuffer };
    const all = leases.stats().leases;
    assert.deepEqual(
      all.map(({ since, ...rest }) => [since <= new Date(), rest]),
      new Array(2).fill([
        true,
        { pid: 0, kind: 'memory', byteLength: 64, orphaned: false, revoked: false },
      ]),
    );
    assert.deepEqual(leases.stats().orphaned, { count: 0, byteLength: 0 });
    assert.equal(leases.stats().byteLength, 64);
    buffer.close();
    assert.deepEqual(leases.stats().orphaned, { count: 1, byteLength: 64 });
    // An end without a control message, as of a killed process.
    other.connection.fail(new Error('gone') as never);
    await peer.ended;
    assert.equal(leases.stats().orphaned.count, 1);
    const reason = new Error('enough');
    await assert.rejects(leases.drain({ signal: AbortSignal.abort(reason) }), reason);
    const abort = new AbortController();
    const draining = leases.drain({ signal: abort.signal });
    abort.abort(reason);
    await assert.rejects(draining, reason);
    await assert.rejects(leases.drain({ timeoutMs: 0 }), {
      name: 'TimeoutError',
      message:
        /^draining 64 bytes \(memory\) that a process of another pid namespace has took longer than 0 ms$/,
    });
    await leases.drain({ timeoutMs: 10_000 });
    again.close();
    peer.close();
  });

  test('a process is watched by one descriptor, which is closed with the last watcher', async () => {
    const before = openDescriptors();
    const child = startProcess('sleep', ['60'], { stdio: 'ignore' });
    const pid = child.pid as number;
    const notified: string[] = [];
    const first = PeerProcess.ofChild(pid);
    const stopWatching = first.onGone(() => notified.push('first'));
    const second = PeerProcess.ofChild(pid);
    assert.equal(second, first);
    second.onGone(() => notified.push('second'));
    stopWatching();
    assert.equal(openDescriptors(), before + 1);
    child.kill('SIGKILL');
    await until(() => notified.length > 0);
    assert.deepEqual(notified, ['second']);
    assert.equal(first.isGone, true);
    first.onGone(() => notified.push('at once'));
    assert.deepEqual(notified, ['second', 'at once']);
    assert.equal(openDescriptors(), before);
  });

  /** The exports to one process, and the leases that were revoked. */
  function makeTable(): { readonly table: ExportTable; readonly revoked: number[] } {
    const revoked: number[] = [];
    const holder = { pid: 7, name: 'process 7', revoke: (id: number) => void revoked.push(id) };
    return { table: new ExportTable(holder), revoked };
  }

  test('no lease is added if one of the objects is closed', async () => {
    emulate();
    const { table } = makeTable();
    const free = Context.primary().memoryInfo().free;
    const kept = DeviceBuffer.allocate(4 << 20);
    const virtual = VirtualMemory.reserve(2 << 20, { shareable: true });
    virtual.grow(2 << 20);
    const closed = DeviceBuffer.allocate(64);
    closed.close();
    assert.throws(() => table.add([kept, virtual, kept.subarray(0, 8), closed], undefined), {
      name: 'ClosedError',
    });
    assert.deepEqual([table.size, leases.stats().leases], [0, []]);
    // That process uses nothing, and the memory is freed at once.
    kept.close({ leases: 'refuse' });
    virtual.close();
    await Context.primary().flush();
    assert.equal(Context.primary().memoryInfo().free, free);
    // No number was used.
    using next = DeviceBuffer.allocate(64);
    assert.deepEqual(
      table.add([next, next], undefined).map(({ id }) => id),
      [0, 1],
    );
    table.endAll();
    assert.deepEqual(leases.stats().leases, []);
  });

  test('a lease is revoked once, however often it is requested, and lasts until it is released', () => {
    emulate();
    const { table, revoked } = makeTable();
    using buffer = DeviceBuffer.allocate(64);
    using other = DeviceBuffer.allocate(64);
    const [first] = table.add([buffer.subarray(8, 16), other], undefined);
    for (let n = 0; n < 3; n++) leases.revoke(buffer);
    assert.deepEqual(revoked, [0]);
    // An object that is sent after that has a new lease.
    table.add([buffer], undefined);
    leases.revoke(buffer);
    assert.deepEqual(revoked, [0, 2]);
    assert.deepEqual(
      leases.stats().leases.map((lease) => lease.revoked),
      [true, false, true],
    );
    assert.throws(() => buffer.close({ leases: 'refuse' }), { message: /is in use by process 7/ });
    if (first) table.endLease(first);
    assert.throws(() => table.get(0), {
      name: 'IpcError',
      message: 'lease 0 was already released, or was never sent',
    });
    table.endAll();
    assert.deepEqual(leases.stats().leases, []);
  });

  test('a lease that ends twice releases nothing of another holder', () => {
    emulate();
    const holder = (pid: number) => ({ pid, name: `process ${pid}`, revoke() {} });
    using buffer = DeviceBuffer.allocate(64);
    const lease = Lease.of(0, buffer, holder(7), undefined, undefined);
    const passed = lease.forwardTo(holder(8));
    let ended = 0;
    lease.onEnd = () => {
      ended += 1;
    };
    lease.end();
    lease.end();
    assert.equal(ended, 1);
    assert.throws(() => buffer.close({ leases: 'refuse' }), { message: /is in use by process/ });
    passed.end();
    passed.end();
    buffer.close({ leases: 'refuse' });
    assert.deepEqual(leases.stats().leases, []);
  });

  test('drain() does not wait for objects that are open here', async () => {
    emulate();
    const { table } = makeTable();
    using buffer = DeviceBuffer.allocate(64);
    table.add([buffer], undefined);
    assert.equal(leases.stats().leases.length, 1);
    await leases.drain({ timeoutMs: 0 });
    buffer.close();
    await assert.rejects(leases.drain({ timeoutMs: 0 }), { name: 'TimeoutError' });
    table.endAll();
    await leases.drain({ timeoutMs: 0 });
  });

  test('returned() and revoke() take virtual memory that is closed here', async () => {
    emulate();
    const { table } = makeTable();
    const memory = VirtualMemory.reserve(1 << 21, { shareable: true });
    memory.grow(1 << 21);
    const [lease] = table.add([memory], undefined) as [Lease];
    memory.close();
    leases.revoke(memory);
    assert.equal(lease.isRevoked, true);
    await assert.rejects(leases.returned(memory, { timeoutMs: 0 }), { name: 'TimeoutError' });
    table.endAll();
    await leases.returned(memory, { timeoutMs: 0 });
  });

  test('invalid arguments are refused', async () => {
    emulate();
    assert.throws(() => leases.revoke({} as never), TypeError);
    await assert.rejects(leases.drain({ timeout: 5 } as object), TypeError);
    using buffer = DeviceBuffer.allocate(8);
    assert.throws(() => buffer.close({ leases: 'keep' as 'refuse' }), TypeError);
    leases.revoke(buffer);
  });

  test('a value whose getter closes its object, or the peer, is not sent and adds no lease', async () => {
    emulate();
    const own = { pid: process.pid, uid };
    const [near, far] = socketPair();
    const [peer, other] = [new Peer(near, own), new Peer(far, own)];
    const virtual = (): VirtualMemory => {
      const memory = VirtualMemory.reserve(1 << 21, { shareable: true });
      memory.grow(1 << 21);
      return memory;
    };
    const pool = MemoryPool.create({ shareable: true });
    const makers = [
      () => virtual(),
      () => DeviceBuffer.allocate(64),
      () => pool.allocate(64),
      () => MemoryPool.create({ shareable: true }),
    ];
    const sendAll = async (): Promise<void> => {
      for (const make of makers) {
        const object = make();
        const value = {
          object: object instanceof VirtualMemory ? object.buffer : object,
          get closing() {
            object.close();
            return true;
          },
        };
        await assert.rejects(peer.send(value), { name: 'ClosedError' });
      }
    };
    // The first time, sharing keeps a descriptor for the life of the process.
    await sendAll();
    const before = openDescriptors();
    await sendAll();
    assert.equal(openDescriptors(), before);
    assert.deepEqual(leases.stats().leases, []);
    await peer.send('after');
    assert.equal(await other.receive(), 'after');
    const last = {
      get closing() {
        peer.close();
        return true;
      },
    };
    await assert.rejects(peer.send(last), { name: 'ClosedError' });
    await assert.rejects(other.receive(), { name: 'ClosedError' });
    pool.close();
  });
});
