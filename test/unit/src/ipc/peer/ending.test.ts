/** How a connection ends: what goes out, what comes back, and what each call says of it. */

import assert from 'node:assert/strict';
import { after, afterEach, beforeEach, describe, test } from 'node:test';
import {
  closeFd,
  createMemfd,
  isOpenFd,
  mapShared,
  SystemError,
} from '../../../../../ffi/linux/libc.ts';
import { createSealedMemfd } from '../../../../../ffi/linux/memfd.ts';
import { listenSocket, socketPair } from '../../../../../ffi/linux/socket.ts';
import {
  ClosedError,
  DeviceBuffer,
  IpcError,
  PeerGoneError,
  Stream,
} from '../../../../../src/index.ts';
import { getIpcHandle, leases } from '../../../../../src/ipc/index.ts';
import { PeerProcess } from '../../../../../src/ipc/lease/peer-process.ts';
import { Control, type ControlHost } from '../../../../../src/ipc/peer/control.ts';
import { Peer } from '../../../../../src/ipc/peer/peer.ts';
import { Session } from '../../../../../src/ipc/peer/session.ts';
import {
  FrameKind,
  HEADER_BYTE_LENGTH,
  MAX_QUEUED_VALUES,
  Tag,
} from '../../../../../src/ipc/protocol.ts';
import { encodeFields } from '../../../../../src/ipc/sharing/descriptor-codec.ts';
import { SharedWords } from '../../../../../src/ipc/timeline/words.ts';
import {
  emptyControlBlock,
  readControlMessage,
} from '../../../../../src/ipc/wire/control-block.ts';
import type { FramedSocket, MessageType } from '../../../../../src/ipc/wire/framed-socket.ts';
import { readHeader } from '../../../../../src/ipc/wire/frames.ts';
import { nextLoopIteration } from '../../../../../src/poller.ts';
import { until } from '../../../../support/iterations.ts';
import { Latch } from '../../../../support/latch.ts';
import { leaves } from '../../../../support/left-open.ts';
import { descriptorsReturnTo, openDescriptors } from '../../../../support/process-state.ts';
import { emulate } from '../../emulate.ts';
import { leavesLeases, own, peerPair, RawPeer, tableOf, unknownObject } from './support.ts';

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

/** Of a timer of Node's: whether it has fired, or was cleared. */
interface Pending {
  readonly _destroyed: boolean;
}

/** Control messages: that an end is closed, and that it has nothing of the other end's. */
const CLOSING = 5;
const DONE = 8;
const news = { kind: FrameKind.control } as const;

const buffers = (count: number): DeviceBuffer[] =>
  Array.from({ length: count }, () => DeviceBuffer.allocate(64));
const drained = (): Promise<void> => leases.drain({ timeoutMs: 10_000 });
const ignore = (): void => {};
/** Sends more than the other end and the kernel take; the promises of those that wait are returned. */
async function fill(peer: Peer): Promise<Promise<void>[]> {
  const sends = Array.from({ length: 600 }, () => peer.send('x'.repeat(2000)));
  for (const send of sends) send.catch(ignore);
  await nextLoopIteration();
  return sends;
}
/** All that has come to a bare socket: the kind of each packet, and its bytes. */
function packets(other: RawPeer): { kind: number; body: number[] }[] {
  const all = [];
  for (let message = other.receive(); typeof message === 'object'; message = other.receive()) {
    message.fds.forEach(closeFd);
    const body = [...message.data.subarray(HEADER_BYTE_LENGTH)];
    all.push({ kind: readHeader(message.data).kind, body });
  }
  return all;
}

describe('Peer.close', () => {
  test('releases objects that lie unread in its socket', deadline, async () => {
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

  test('releases objects that come after its queue was full', deadline, async () => {
    using pair = peerPair();
    const sent = buffers(3 * MAX_QUEUED_VALUES);
    const sends = sent.map((buffer) => pair.a.send(buffer));
    for (let turn = 0; turn < 50; turn++) await nextLoopIteration();
    pair.b.close();
    await Promise.allSettled(sends);
    for (const buffer of sent) buffer.close();
    await drained();
    assert.equal(leases.stats().leases.length, 0);
  });

  test('completes a value that is half sent, and drops those behind it', deadline, async () => {
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

  test('sends the control entries of dropped values: what was closed here', deadline, async () => {
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

  test('sends the control entries of dropped values before the close', deadline, async () => {
    using other = new RawPeer();
    using buffer = DeviceBuffer.allocate(64);
    await other.peer.send(buffer);
    const bytes = encodeFields(getIpcHandle(buffer));
    other.send(Uint8Array.of(Tag.gpuObject, ...tableOf(3, { bytes })));
    const received = (await other.peer.receive()) as DeviceBuffer;
    void (await fill(other.peer));
    received.close();
    leases.revoke(buffer);
    // Takes both along, and is dropped.
    const last = other.peer.send('one more');
    last.catch(ignore);
    other.peer.close();
    await assert.rejects(last, { name: 'ClosedError' });
    const told: number[][] = [];
    for (let idle = 0; idle < 20; idle++) {
      for (const { kind, body } of packets(other)) {
        idle = 0;
        // The page of counters may go before the first points.
        if (kind === FrameKind.control && body[0] !== 1) told.push(body);
      }
      await nextLoopIteration();
    }
    const three = new Uint8Array(new Float64Array([3]).buffer);
    assert.deepEqual(told, [[3, 1, ...three, 1, 0, 4, 1, ...new Uint8Array(8)], [CLOSING]]);
    other.send(Uint8Array.of(CLOSING, DONE), { ...news, sequence: 1 });
    await until(() => leases.stats().leases.length === 0);
  });

  test('sends no revocation of a lease that was never sent', deadline, async () => {
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

  test('sends nothing but started messages and control messages', deadline, async () => {
    using other = new RawPeer();
    void (await fill(other.peer));
    other.peer.close();
    const kinds = new Set<number>();
    let last: number[] = [];
    for (let idle = 0; idle < 20; idle++) {
      for (const { kind, body } of packets(other)) {
        idle = 0;
        kinds.add(kind);
        // What went out before is the values' own.
        if (kind === FrameKind.control) last = [...last, ...body];
      }
      await nextLoopIteration();
    }
    assert.deepEqual(kinds, new Set([FrameKind.value, FrameKind.control]));
    assert.deepEqual(last, [CLOSING, DONE]);
    assert.equal(other.receive(), 'end');
  });

  test(
    'keeps the socket while leases are in use, and closes it with the last',
    deadline,
    async () => {
      using other = new RawPeer();
      using buffer = DeviceBuffer.allocate(64);
      await other.peer.send(buffer);
      other.peer.close();
      assert.deepEqual(packets(other).at(-1), { ...news, body: [CLOSING] });
      assert.equal(other.receive(), undefined);
      // Lease 0 is closed, and its work may go on: that is not the end of it.
      other.send(Uint8Array.of(3, 1, ...new Uint8Array(8), 0, 0), news);
      for (let turn = 0; turn < 10; turn++) await nextLoopIteration();
      assert.equal(leases.stats().leases.length, 1);
      // Now it is released, with no points.
      other.send(Uint8Array.of(3, 1, ...new Uint8Array(8), 1, 0), { ...news, sequence: 1 });
      await until(() => leases.stats().leases.length === 0);
      assert.deepEqual(packets(other), [{ ...news, body: [DONE] }]);
      assert.equal(other.receive(), 'end');
    },
  );

  test(
    'ends at once when the peer then breaks the protocol, though leases are in use',
    deadline,
    async () => {
      // Of a process whose end cannot be seen, leases end soon after the connection.
      const unobservable = { process: PeerProcess.ofChild(0), orphanGraceMs: 1 };
      using other = new RawPeer(unobservable as never, { ...own, pid: 0 });
      using buffer = DeviceBuffer.allocate(64);
      await other.peer.send(buffer);
      other.peer.close();
      packets(other);
      assert.equal(other.receive(), undefined);
      assert.equal(leases.stats().leases.length, 1);
      other.send(Uint8Array.of(200));
      await until(() => other.receive() === 'end');
      await until(() => leases.stats().leases.length === 0);
    },
  );

  test('releases objects that come after it, with their descriptors', deadline, async () => {
    using other = new RawPeer();
    using buffer = DeviceBuffer.allocate(64);
    await other.peer.send(buffer);
    other.peer.close();
    packets(other);
    const held = openDescriptors();
    const late = createMemfd('late', 0);
    const place = new Uint8Array(8);
    // An object with a descriptor of its own, and a link to its maker.
    const entry = { ...unknownObject, fdCount: 1, hasLink: true };
    other.send(Uint8Array.of(Tag.gpuObject, ...tableOf(3, entry)), {}, [late, late]);
    closeFd(late);
    other.send(Uint8Array.of(Tag.null), { sequence: 1 });
    let told: ReturnType<typeof packets> = [];
    while (told.length === 0) {
      await nextLoopIteration();
      told = packets(other);
    }
    const three = new Uint8Array(new Float64Array([3]).buffer);
    assert.deepEqual(told, [{ ...news, body: [3, 1, ...three, 1, 0] }]);
    await descriptorsReturnTo(held);
    other.send(Uint8Array.of(3, 1, ...place, 1, 0), { ...news, sequence: 2 });
    while (leases.stats().leases.length > 0) await nextLoopIteration();
    assert.deepEqual(packets(other), [{ ...news, body: [DONE] }]);
  });

  test('does not wait for a peer that never reads and has no leases', deadline, async () => {
    const other = new RawPeer();
    void (await fill(other.peer));
    other.peer.close();
    const held = openDescriptors();
    // The socket goes after a while, although the other end never read.
    await until(() => openDescriptors() !== held);
    // All but the other end's socket.
    await descriptorsReturnTo(before + 1);
    closeFd(other.socket);
  });
});

test('a close cancels a response that the host waits with', deadline, async (t) => {
  leaves(/worker-exports|for its reset/, 'the block is shared by all tests here');
  // No stream can wait for the other end's work: the host has to.
  t.mock.getter(SharedWords.prototype, 'isMemoryFixed', () => false);
  using stream = Stream.create();
  using latch = new Latch();
  using pair = peerPair();
  latch.hold(stream);
  const asked = t.mock.method(Session.prototype, 'whenReached');
  const opening = pair.a.open(getIpcHandle(block));
  opening.catch(ignore);
  await until(() => asked.mock.callCount() > 0);
  pair.a.close();
  // The work still runs.
  await assert.rejects(opening, { name: 'ClosedError' });
  latch.open();
  await stream.synchronize();
});

describe('a close that cannot be sent', () => {
  test(
    'closes the socket with the last lease, once the time to read it is over',
    deadline,
    async (t) => {
      const other = new RawPeer();
      using buffer = DeviceBuffer.allocate(64);
      await other.peer.send(buffer);
      void (await fill(other.peer));
      // Begun, and more than the kernel takes.
      other.peer.send(new Uint8Array(4 << 20)).catch(ignore);
      t.mock.timers.enable({ apis: ['setTimeout'] });
      other.peer.close();
      t.mock.timers.tick(60_000);
      t.mock.timers.reset();
      other.send(Uint8Array.of(3, 1, ...new Uint8Array(8), 1, 0), news);
      await until(() => leases.stats().leases.length === 0);
      // All but the other end's socket.
      await descriptorsReturnTo(before + 1);
      closeFd(other.socket);
    },
  );

  test('repeats forward requests, and keeps no link once they are sent', deadline, () => {
    const [link, ours] = socketPair();
    let isOut = true;
    const posted: (readonly number[])[] = [];
    const process = { pid: 1, isExitObservable: true, onGone: () => ignore };
    const session = new Session(process as unknown as PeerProcess, 'the peer', 0);
    const socket = {
      isOpen: true,
      sendQueue: { isEmpty: true },
      post(_type: MessageType, bytes: Buffer, fds: readonly number[]) {
        // As where no descriptor is left to keep those that wait.
        if (isOut) throw new IpcError('no descriptor is left');
        const { forwardRequests } = readControlMessage(
          bytes.subarray(HEADER_BYTE_LENGTH),
          fds.length,
        );
        assert.deepEqual(
          forwardRequests.map(({ lease, pid, startTime }) => [lease, pid, startTime]),
          [[7, 1, 2]],
        );
        posted.push([...fds]);
      },
    };
    const host = { onFailure: assert.fail, onLessInUse: ignore };
    const control = new Control(session, socket as unknown as FramedSocket, host);
    session.forwardRequester.request(7, 1, 2, link, ours).acknowledged.catch(ignore);
    control.sendAll();
    assert.equal(session.forwardRequester.hasUnsent(7), true);
    isOut = false;
    control.sendAll();
    assert.deepEqual(posted, [[link]]);
    assert.equal(isOpenFd(link), false);
    closeFd(ours);
    session.end();
  });

  test('is retried by one timer, however much is pending', deadline, async (t) => {
    using pair = peerPair();
    const lent = buffers(20);
    const received: DeviceBuffer[] = [];
    for (const buffer of lent) {
      await pair.a.send(buffer);
      received.push((await pair.b.receive()) as DeviceBuffer);
    }
    let isOut = true;
    const { post } = Control.prototype;
    // As where no descriptor is left.
    t.mock.method(
      Control.prototype,
      'post',
      function (this: Control, ...message: Parameters<typeof post>) {
        if (isOut) throw new IpcError('no descriptor is left');
        post.apply(this, message);
      },
    );
    const timers = t.mock.method(globalThis, 'setTimeout');
    for (const buffer of received) {
      buffer.close();
      await nextLoopIteration();
      await nextLoopIteration();
    }
    const retries = timers.mock.calls.filter(({ arguments: [, ms] }) => ms === 5);
    const ran = new Set(retries.map(({ result }) => result as NodeJS.Timeout & Pending));
    assert.ok(ran.size > 0);
    assert.equal([...ran].filter(({ _destroyed }) => !_destroyed).length, 1);
    isOut = false;
    for (const buffer of lent) buffer.close();
    await drained();
  });
});

describe('the peer', () => {
  test('releases every lease when it says that it has nothing', deadline, async () => {
    using other = new RawPeer();
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
    'keeps its leases as long as it lives when it closes without a control message',
    deadline,
    async () => {
      leavesLeases();
      const other = new RawPeer();
      using buffer = DeviceBuffer.allocate(64);
      await other.peer.send(buffer);
      closeFd(other.socket);
      await assert.rejects(other.peer.receive(), { name: 'ClosedError' });
      assert.equal(leases.stats().leases.length, 1);
      // This process is the one that lives.
      before = openDescriptors();
    },
  );

  test(
    'keeps its leases for as long as the options say if its end cannot be observed',
    deadline,
    async (t) => {
      const [near, far] = socketPair();
      const peer = new Peer(
        near,
        { pid: 0, uid: 0 },
        { process: PeerProcess.ofChild(0), orphanGraceMs: 12_345 },
      );
      using buffer = DeviceBuffer.allocate(64);
      await peer.send(buffer);
      const lent = leases.stats().leases.length;
      t.mock.timers.enable({ apis: ['setTimeout'] });
      peer.connection.fail(new IpcError('it broke'));
      peer.close();
      t.mock.timers.tick(12_344);
      assert.equal(leases.stats().leases.length, lent);
      t.mock.timers.tick(1);
      assert.equal(leases.stats().leases.length, lent - 1);
      t.mock.timers.reset();
      closeFd(far);
    },
  );

  test(
    'keeps the objects that its work may still use when the connection breaks',
    deadline,
    async (t) => {
      leavesLeases();
      leaves(/points|tick\(\)|pendingPolls/, 'its work may still use them', 2);
      const others = leases.stats().leases.length;
      const other = new RawPeer();
      using buffer = DeviceBuffer.allocate(64);
      await other.peer.send(buffer);
      // No stream can wait for its work: the host has to.
      t.mock.getter(SharedWords.prototype, 'isMemoryFixed', () => false);
      const page = createSealedMemfd('points', 4096);
      other.send(Uint8Array.of(1), { ...news, sequence: 0 }, [page]);
      closeFd(page);
      const five = new Uint8Array(new Float64Array([5]).buffer);
      // Lease 0 is released behind point 5 of word 0, which is not reached.
      const released = Uint8Array.of(3, 1, ...new Uint8Array(8), 1, 1, 0, ...five);
      other.send(released, { ...news, sequence: 1 });
      for (let turn = 0; turn < 10; turn++) await nextLoopIteration();
      other.peer.connection.fail(new IpcError('nothing can be sent'));
      other.peer.close();
      // Longer than any poll sleeps.
      await new Promise((resolve) => setTimeout(resolve, 200));
      assert.equal(leases.stats().leases.length, others + 1);
      closeFd(other.socket);
      before = openDescriptors();
    },
  );

  test('is not read further until the host has seen the end of its work', deadline, async (t) => {
    const others = leases.stats().leases.length;
    using other = new RawPeer();
    using buffer = DeviceBuffer.allocate(64);
    await other.peer.send(buffer);
    // No stream can wait for its work: the host has to.
    t.mock.getter(SharedWords.prototype, 'isMemoryFixed', () => false);
    const fd = createSealedMemfd('points', 4096);
    const page = mapShared(fd, 4096);
    other.send(Uint8Array.of(1), { ...news, sequence: 0 }, [fd]);
    closeFd(fd);
    const five = new Uint8Array(new Float64Array([5]).buffer);
    const released = Uint8Array.of(3, 1, ...new Uint8Array(8), 1, 1, 0, ...five);
    other.send(released, { ...news, sequence: 1 });
    other.send(Uint8Array.of(Tag.true), { sequence: 2 });
    let received: unknown;
    const receiving = other.peer.receive().then((value) => {
      received = value;
    });
    for (let turn = 0; turn < 20; turn++) await nextLoopIteration();
    assert.equal(received, undefined);
    new BigUint64Array(page.view()).fill(5n);
    await receiving;
    assert.equal(received, true);
    page.unmap();
    await until(() => leases.stats().leases.length === others);
  });

  test('leaves no link of its forward requests when it is gone', deadline, () => {
    let end = ignore;
    const process = {
      pid: 1,
      isSeen: true,
      onGone(gone: () => void) {
        end = gone;
        return ignore;
      },
    } as unknown as PeerProcess;
    const session = new Session(process, 'the other end', 0);
    const control = new Control(session, {} as FramedSocket, {} as ControlHost);
    end();
    const link = createMemfd('link', 0);
    const forwardRequests = [{ lease: 0, pid: 1, startTime: 1 }];
    assert.deepEqual(control.apply({ ...emptyControlBlock, forwardRequests }, [link]), []);
    session.end();
  });

  test('may close during a request: that is a close, not a protocol error', deadline, async () => {
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

describe('a socket that the system refuses to use', () => {
  for (const call of ['send', 'receive'] as const)
    test(`is the cause of the error of ${call}, and of the end`, deadline, async () => {
      // A socket without another end, which is not the end of a process.
      using peer = new Peer(listenSocket(`@cuffi-refused-${process.pid}`), own);
      const refused = await (call === 'send' ? peer.send('x') : peer.receive()).then(
        () => undefined,
        (error: Error) => error,
      );
      const reason = await peer.ended;
      assert.ok(reason instanceof IpcError);
      assert.ok(reason.cause instanceof SystemError, String(reason));
      assert.ok(reason.message.endsWith(`: ${reason.cause.message}`));
      if (call === 'send') assert.equal(refused, reason);
      assert.equal(refused?.message, reason.message);
      assert.equal(refused?.cause, reason.cause);
    });
});

describe('the error of a call', () => {
  test(
    'is a new error of the class of the reason, with the line of its caller',
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
        // It would print the same words twice.
        assert.equal('cause' in error, false);
        assert.equal(error.message, reason.message);
      }
      assert.match((errors.at(-1) as Error).stack ?? '', /at async caller /);
      await assert.rejects(pair.a.send(1), (error: Error) => {
        assert.equal(error.message, reason.message);
        return /ending\.test/.test(error.stack ?? '');
      });
      // What the loop found out has no frames of the loop.
      assert.doesNotMatch(reason.stack ?? '', /\n\s+at /);
    },
  );

  test('PeerGoneError is not a ClosedError', () => {
    const error = new PeerGoneError('gone', { pid: 1, abandonedWaits: 0, exitCode: 3 });
    assert.equal(error instanceof ClosedError, false);
    assert.deepEqual([error.pid, error.exitCode, error.signal], [1, 3, undefined]);
  });
});
