/** Leases of peers in this process: what tells that one has ended is given by the test. */
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { test } from 'node:test';
import { socketPair } from '../../../../../ffi/socket.ts';
import { DeviceBuffer, MemoryPool, VirtualMemory } from '../../../../../src/index.ts';
import { leases } from '../../../../../src/ipc/index.ts';
import { PeerProcess } from '../../../../../src/ipc/lease/peer-process.ts';
import { Peer } from '../../../../../src/ipc/peer/peer.ts';
import { openDescriptors } from '../../../../support/descriptors.ts';
import { until } from '../../../../support/until.ts';
import { emulate } from '../../emulate.ts';

const uid = process.geteuid?.() ?? 0;

test('where nobody sees a process, its leases end some time after its connection', async () => {
  emulate();
  const [near, far] = socketPair();
  const init = { process: PeerProcess.child(0), orphanGraceMs: 100 };
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
      { pid: 0, kind: 'memory', byteLength: 64, limbo: false, revoked: false },
    ]),
  );
  assert.deepEqual(leases.stats().limbo, { count: 0, byteLength: 0 });
  assert.equal(leases.stats().byteLength, 64);
  buffer.close();
  assert.deepEqual(leases.stats().limbo, { count: 1, byteLength: 64 });
  // An end without a word, as of a process that is killed.
  other.connection.fail(new Error('gone') as never);
  await peer.ended;
  assert.equal(leases.stats().limbo.count, 1);
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

test('a process is watched by one descriptor, which goes with the last who asks', async () => {
  const before = openDescriptors();
  const child = spawn('sleep', ['60'], { stdio: 'ignore' });
  const pid = child.pid as number;
  const told: string[] = [];
  const first = PeerProcess.child(pid);
  const noMore = first.onGone(() => told.push('first'));
  const second = PeerProcess.child(pid);
  assert.equal(second, first);
  second.onGone(() => told.push('second'));
  noMore();
  assert.equal(openDescriptors(), before + 1);
  child.kill('SIGKILL');
  await until(() => told.length > 0);
  assert.deepEqual(told, ['second']);
  assert.equal(first.isGone, true);
  first.onGone(() => told.push('at once'));
  assert.deepEqual(told, ['second', 'at once']);
  assert.equal(openDescriptors(), before);
});

test('wrong arguments of leases are refused', async () => {
  emulate();
  assert.throws(() => leases.revoke({} as never), TypeError);
  await assert.rejects(leases.drain({ timeout: 5 } as object), TypeError);
  using buffer = DeviceBuffer.allocate(8);
  assert.throws(() => buffer.close({ leases: 'keep' as 'refuse' }), TypeError);
  leases.revoke(buffer);
});

test('a value whose getter closes what it has, or the peer, is not sent and lends nothing', async () => {
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
  // What is shared for the first time keeps a descriptor for the life of the process.
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
