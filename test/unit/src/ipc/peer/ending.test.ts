/** How a connection ends: what goes out, what comes back, and what each call says of it. */
import assert from 'node:assert/strict';
import { after, afterEach, beforeEach, describe, test } from 'node:test';
import { closeFd } from '../../../../../ffi/libc.ts';
import { ClosedError, DeviceBuffer, PeerGoneError } from '../../../../../src/index.ts';
import { getIpcHandle, leases } from '../../../../../src/ipc/index.ts';
import { HEADER_BYTE_LENGTH, MAX_WAITING_VALUES } from '../../../../../src/ipc/peer/limits.ts';
import { PacketKind, readHeader } from '../../../../../src/ipc/peer/packet.ts';
import type { Peer } from '../../../../../src/ipc/peer/peer.ts';
import { nextTurn } from '../../../../../src/wait.ts';
import { descriptorsReturnTo, openDescriptors } from '../../../../support/descriptors.ts';
import { emulate } from '../../emulate.ts';
import { peerPair, Stranger } from './support.ts';

const deadline = { timeout: 30_000 };
let before = 0;
emulate();
// Small memory comes from a block, which has a descriptor.
const block = DeviceBuffer.allocate(64);
after(() => block.close());
beforeEach(() => {
  before = openDescriptors();
});
afterEach(() => descriptorsReturnTo(before));

/** Control messages: that an end is closed, and that it has nothing of the other end's. */
const CLOSING = 5;
const DONE = 10;
const news = { kind: PacketKind.news } as const;

const buffers = (count: number): DeviceBuffer[] =>
  Array.from({ length: count }, () => DeviceBuffer.allocate(64));
const drained = (): Promise<void> => leases.drain({ timeoutMs: 10_000 });
const ignore = (): void => {};
/** Sends more than the other end and the kernel take; the promises of those that wait are returned. */
async function fill(peer: Peer): Promise<Promise<void>[]> {
  const sends = Array.from({ length: 600 }, () => peer.send('x'.repeat(2000)));
  for (const send of sends) send.catch(ignore);
  await nextTurn();
  return sends;
}
/** All that has come to a bare socket: the kind of each packet, and its bytes. */
function packets(other: Stranger): { kind: number; body: number[] }[] {
  const all = [];
  for (let message = other.receive(); typeof message === 'object'; message = other.receive()) {
    message.fds.forEach(closeFd);
    const body = [...message.data.subarray(HEADER_BYTE_LENGTH)];
    all.push({ kind: readHeader(message.data).kind, body });
  }
  return all;
}

describe('Peer.close', () => {
  test('gives back what lies unread in its socket', deadline, async () => {
    using pair = peerPair();
    const sent = buffers(20);
    for (const buffer of sent) await pair.a.send(buffer);
    // Nothing of it was read: the loop has not turned.
    pair.b.close();
    for (const buffer of sent) buffer.close();
    await drained();
    assert.ok((await pair.a.ended) instanceof ClosedError);
    assert.equal(leases.stats().leases.length, 0);
  });

  test('gives back what comes after its queue was full', deadline, async () => {
    using pair = peerPair();
    const sent = buffers(3 * MAX_WAITING_VALUES);
    const sends = sent.map((buffer) => pair.a.send(buffer));
    for (let turn = 0; turn < 50; turn++) await nextTurn();
    pair.b.close();
    await Promise.allSettled(sends);
    for (const buffer of sent) buffer.close();
    await drained();
    assert.equal(leases.stats().leases.length, 0);
  });

  test('finishes a value that is half sent, and drops those behind it', deadline, async () => {
    using pair = peerPair();
    const large = new Uint8Array(4 << 20).fill(7);
    const begun = pair.a.send(large);
    const behind = pair.a.send('behind');
    pair.a.close();
    await assert.rejects(behind, { name: 'ClosedError' });
    assert.deepEqual(await pair.b.receive(), large);
    await begun;
    await assert.rejects(pair.b.receive(), { name: 'ClosedError' });
  });

  test('tells what dropped values were to tell: what was closed here', deadline, async () => {
    using pair = peerPair();
    const [lent] = buffers(1) as [DeviceBuffer];
    await pair.b.send(lent);
    const received = (await pair.a.receive()) as DeviceBuffer;
    void (await fill(pair.a));
    received.close();
    // Its control block has the note, and it is dropped.
    const last = pair.a.send('one more');
    last.catch(ignore);
    pair.a.close();
    await assert.rejects(last, { name: 'ClosedError' });
    lent.close();
    let count = 0;
    for await (const _ of pair.b) count += 1;
    assert.ok(count > 0);
    await drained();
    assert.equal(leases.stats().leases.length, 0);
  });

  test('sends no revocation of what never went out', deadline, async () => {
    using pair = peerPair();
    using late = DeviceBuffer.allocate(64);
    void (await fill(pair.a));
    const sending = pair.a.send(late);
    sending.catch(ignore);
    const behind = pair.a.send('behind');
    behind.catch(ignore);
    leases.revoke(late);
    // Takes the revocation along.
    pair.a.send('last').catch(ignore);
    pair.a.close();
    for await (const _ of pair.b);
    assert.ok((await pair.b.ended) instanceof ClosedError);
    assert.equal(leases.stats().leases.length, 0);
  });

  test('lets nothing out but what was begun, and control messages', deadline, async () => {
    using other = new Stranger();
    void (await fill(other.peer));
    other.peer.close();
    const kinds = new Set<number>();
    let last: number[] = [];
    for (let idle = 0; idle < 20; idle++) {
      for (const { kind, body } of packets(other)) {
        idle = 0;
        kinds.add(kind);
        // What went out before is the values' own.
        if (kind === PacketKind.news) last = [...last, ...body];
      }
      await nextTurn();
    }
    assert.deepEqual(kinds, new Set([PacketKind.value, PacketKind.news]));
    assert.deepEqual(last, [CLOSING, DONE]);
    assert.equal(other.receive(), 'end');
  });

  test(
    'keeps the socket while something is lent, and closes it with the last',
    deadline,
    async () => {
      using other = new Stranger();
      using buffer = DeviceBuffer.allocate(64);
      await other.peer.send(buffer);
      other.peer.close();
      assert.deepEqual(packets(other).at(-1), { ...news, body: [CLOSING] });
      assert.equal(other.receive(), undefined);
      // Lease 0 is released, with no points.
      other.send(Uint8Array.of(3, 1, ...new Uint8Array(8), 1, 0), news);
      while (leases.stats().leases.length > 0) await nextTurn();
      assert.deepEqual(packets(other), [{ ...news, body: [DONE] }]);
      assert.equal(other.receive(), 'end');
    },
  );

  test('does not wait for one that never reads and shares nothing', deadline, async () => {
    const other = new Stranger();
    void (await fill(other.peer));
    other.peer.close();
    const held = openDescriptors();
    // The socket goes after a while, although the other end never read.
    while (openDescriptors() === held) await new Promise((resolve) => setTimeout(resolve, 5));
    closeFd(other.socket);
  });
});

describe('the other end', () => {
  test('releases every lease when it says that it has nothing', deadline, async () => {
    using other = new Stranger();
    using buffer = DeviceBuffer.allocate(64);
    await other.peer.send([buffer, buffer]);
    assert.equal(leases.stats().leases.length, 2);
    other.send(Uint8Array.of(CLOSING, DONE), news);
    await assert.rejects(other.peer.receive(), {
      name: 'ClosedError',
      message: /has closed the connection/,
    });
    assert.equal(leases.stats().leases.length, 0);
  });

  test(
    'keeps what it has when it closes without a note, as long as it lives',
    deadline,
    async () => {
      const other = new Stranger();
      using buffer = DeviceBuffer.allocate(64);
      await other.peer.send(buffer);
      closeFd(other.socket);
      await assert.rejects(other.peer.receive(), { name: 'ClosedError' });
      assert.equal(leases.stats().leases.length, 1);
      // This process is the one that lives.
      before = openDescriptors();
    },
  );

  test('may close while it is asked: that is a close, not a breach', deadline, async () => {
    for (let n = 0; n < 20; n++) {
      using pair = peerPair();
      // A question that its maker cannot answer any more.
      const question = pair.a.open(getIpcHandle(block)).catch((error: unknown) => error);
      pair.a.close();
      assert.ok((await question) instanceof ClosedError);
      for await (const _ of pair.b);
      assert.ok((await pair.b.ended) instanceof ClosedError);
    }
  });
});

describe('the error of a call', () => {
  test(
    'is its own, of the class of the reason, and has the line of its caller',
    deadline,
    async () => {
      using pair = peerPair();
      const sends = await fill(pair.a);
      const receiving = Array.from({ length: 2 }, async () => await pair.a.receive());
      async function caller(): Promise<unknown> {
        return await pair.a.send('one more');
      }
      const calling = caller();
      pair.b.close();
      const reason = await pair.a.ended;
      const errors: unknown[] = [];
      for (const call of [...sends, ...receiving, calling])
        await call.catch((error: unknown) => errors.push(error));
      assert.ok(errors.length > 100);
      assert.equal(new Set(errors).size, errors.length);
      for (const error of errors as Error[]) {
        assert.equal(error.constructor, ClosedError);
        assert.equal(error.cause, reason);
        assert.equal(error.message, reason.message);
      }
      assert.match((errors.at(-1) as Error).stack ?? '', /at async caller /);
      await assert.rejects(pair.a.send(1), (error: Error) => {
        assert.equal(error.cause, reason);
        return /ending\.test/.test(error.stack ?? '');
      });
      // What the loop found out has no frames of the loop.
      assert.doesNotMatch(reason.stack ?? '', /\n\s+at /);
    },
  );

  test('PeerGoneError is no ClosedError', () => {
    const error = new PeerGoneError('gone', { pid: 1, unreached: 0, exitCode: 3 });
    assert.equal(error instanceof ClosedError, false);
    assert.deepEqual([error.pid, error.exitCode, error.signal], [1, 3, undefined]);
  });
});
