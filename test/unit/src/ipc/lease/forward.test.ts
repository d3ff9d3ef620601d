import assert from 'node:assert/strict';
import { once } from 'node:events';
import { openSync, readSync } from 'node:fs';
import { connect, createServer } from 'node:net';
import { afterEach, beforeEach, describe, test } from 'node:test';
import { closeFd, createMemfd, duplicateFd, SystemError } from '../../../../../ffi/linux/libc.ts';
import { receiveMessage, sendMessage } from '../../../../../ffi/linux/message.ts';
import { processStartTime } from '../../../../../ffi/linux/process.ts';
import { listenSocket, socketPair } from '../../../../../ffi/linux/socket.ts';
import { DeviceBuffer } from '../../../../../src/index.ts';
import { leases } from '../../../../../src/ipc/index.ts';
import {
  ForwardRequester,
  forwardObjects,
  MAX_FORWARDS_IN_PROGRESS,
} from '../../../../../src/ipc/lease/forward.ts';
import type { ForwardHandle, OwnerConnection } from '../../../../../src/ipc/lease/import-table.ts';
import { PeerProcess } from '../../../../../src/ipc/lease/peer-process.ts';
import { Peer } from '../../../../../src/ipc/peer/peer.ts';
import type { PeerOptions } from '../../../../../src/ipc/peer/peer-options.ts';
import { HEADER_BYTE_LENGTH } from '../../../../../src/ipc/protocol.ts';
import { factsOf } from '../../../../../src/ipc/sharing/facts.ts';
import { helloFrame, writeHeader } from '../../../../../src/ipc/wire/frames.ts';
import { nextLoopIteration } from '../../../../../src/poller.ts';
import { until } from '../../../../support/iterations.ts';
import { descriptorsReturnTo, openDescriptors } from '../../../../support/process-state.ts';
import { startProcess } from '../../../../support/program.ts';
import { withRoomFor } from '../../../ffi/fixtures/descriptors.ts';
import { emulate } from '../../emulate.ts';
import { leavesLeases, RawPeer } from '../peer/support.ts';

/** Requests to a simulated owner, which acknowledges them or not through the link. */
describe('ForwardRequester', () => {
  let before = 0;
  beforeEach(() => {
    before = openDescriptors();
  });
  afterEach(() => descriptorsReturnTo(before));

  const request = (
    requester: ForwardRequester,
  ): ForwardHandle & { theirs: number; ours: number } => {
    const [theirs, ours] = socketPair();
    return { ...requester.request(0, process.pid, 1, theirs, ours), theirs, ours };
  };

  /**
   * Whether promises are resolved after some turns of the event loop, which none of them keeps
   * alive.
   */
  async function isAnswered(...promises: Promise<void>[]): Promise<boolean> {
    let count = 0;
    for (const promise of promises)
      void promise.then(() => {
        count += 1;
      });
    for (let turn = 0; turn < 20; turn++) await nextLoopIteration();
    return count === promises.length;
  }

  const answers: Readonly<Record<string, (link: number) => void>> = {
    'the byte that is agreed on': (link) => sendMessage(link, Uint8Array.of(1)),
    'many messages of many bytes': (link) => {
      while (sendMessage(link, Buffer.alloc(10_000, 7)));
    },
    'file descriptors': (link) => sendMessage(link, Uint8Array.of(1), [link, link]),
    nothing: () => {},
  };

  for (const [what, answer] of Object.entries(answers))
    test(`${what}, like the end of the link, counts as an acknowledgement and leaves no descriptor`, async () => {
      const requester = new ForwardRequester(() => {});
      const { acknowledged, ours } = request(requester);
      const { link } = requester.take()[0] as { link: number };
      answer(link);
      closeFd(link);
      assert.equal(await isAnswered(acknowledged), true);
      closeFd(ours);
    });

  test('the acknowledgement does not reach the third process', async () => {
    const requester = new ForwardRequester(() => {});
    const { acknowledged, ours } = request(requester);
    const { link } = requester.take()[0] as { link: number };
    sendMessage(link, Uint8Array.of(1));
    assert.equal(await isAnswered(acknowledged), true);
    assert.throws(() => readSync(ours, new Uint8Array(1)), { code: 'EAGAIN' });
    [link, ours].forEach(closeFd);
  });

  test('an owner that never acknowledges is awaited until its connection ends', async () => {
    const requester = new ForwardRequester(() => {});
    const sent = request(requester);
    const { link } = requester.take()[0] as { link: number };
    const unsent = request(requester);
    assert.deepEqual(
      [await isAnswered(sent.acknowledged), await isAnswered(unsent.acknowledged)],
      [false, false],
    );
    requester.end();
    assert.equal(await isAnswered(sent.acknowledged, unsent.acknowledged), true);
    // After the end nobody is asked.
    const late = request(requester);
    assert.equal(await isAnswered(late.acknowledged), true);
    assert.deepEqual(requester.take(), []);
    [link, sent.ours, unsent.ours, late.ours].forEach(closeFd);
  });

  test('requests above the limit wait until others end', async () => {
    let changes = 0;
    const requester = new ForwardRequester(() => {
      changes += 1;
    });
    const requests = Array.from({ length: MAX_FORWARDS_IN_PROGRESS + 3 }, () => request(requester));
    const [first, ...others] = requests;
    const sent: { readonly link: number }[] = [];
    const tell = (): number => {
      for (let taken = requester.take(); taken.length > 0; taken = requester.take())
        sent.push(...taken);
      return sent.length;
    };
    assert.equal(tell(), MAX_FORWARDS_IN_PROGRESS);
    // An unsent request that is released is never sent, and makes no room.
    others.at(-1)?.release();
    assert.equal(tell(), MAX_FORWARDS_IN_PROGRESS);
    changes = 0;
    first?.release();
    assert.equal(changes, 1);
    assert.equal(tell(), MAX_FORWARDS_IN_PROGRESS + 1);
    for (const { release } of others.slice(0, 5)) release();
    assert.equal(tell(), MAX_FORWARDS_IN_PROGRESS + 2);
    requester.end();
    assert.equal(await isAnswered(...requests.map(({ acknowledged }) => acknowledged)), true);
    for (const { link } of sent) closeFd(link);
    for (const { ours } of requests) closeFd(ours);
  });

  test('nothing is requested if the acknowledgement cannot be watched for', () => {
    const requester = new ForwardRequester(() => {});
    const [theirs, ours] = socketPair();
    // There is no descriptor left for the copy.
    withRoomFor(1, () => {
      const last = duplicateFd(ours);
      assert.throws(() => requester.request(0, process.pid, 1, theirs, ours), { code: 'EMFILE' });
      closeFd(last);
    });
    closeFd(ours);
    assert.deepEqual(requester.take(), []);
  });
});

/** Requests of a hostile peer, and the links that it sends. */
describe('ForwardedLease', () => {
  let buffer: DeviceBuffer;
  let before = 0;
  beforeEach(() => {
    emulate();
    buffer = DeviceBuffer.allocate(64);
    before = openDescriptors();
    leavesLeases();
  });
  afterEach(async () => {
    await turns();
    // A connection with leases continues to watch the process: this one, which lives.
    assert.ok(openDescriptors() - before <= 1, `${openDescriptors()} after ${before}`);
    buffer.close();
  });

  const turns = async (): Promise<void> => {
    for (let turn = 0; turn < 20; turn++) await nextLoopIteration();
  };
  const own = { pid: process.pid, startTime: processStartTime('self') ?? 0 };
  const float64 = (...values: number[]): Buffer => Buffer.from(new Float64Array(values).buffer);

  /** A control message that asks as often to keep a lease for a process. */
  const asking = (lease: number, { pid, startTime } = own, count = 1): Buffer =>
    Buffer.concat([
      Buffer.of(6, ...(count < 128 ? [count] : [(count & 127) | 128, count >> 7])),
      ...new Array<Buffer>(count).fill(float64(lease, pid, startTime)),
    ]);

  /** Sends such a message with links, which are closed here. */
  function request(other: RawPeer, body: Uint8Array, links: readonly number[], sequence = 0): void {
    other.send(body, { kind: 2, sequence }, links);
  }

  /** The number of leases besides those of the forwarding process. */
  const forwardedCount = (): number => leases.stats().leases.length - between;
  let between = 0;

  /** A peer that holds a buffer of this process, by lease 0. */
  async function holder(grace?: PeerOptions): Promise<RawPeer> {
    const other = new RawPeer(grace);
    await other.peer.send(buffer);
    between = leases.stats().leases.length;
    return other;
  }

  const noSockets: Readonly<Record<string, () => number>> = {
    'a memfd': () => createMemfd('no socket', 0),
    'a folder': () => openSync('/', 'r'),
    '/dev/null': () => openSync('/dev/null', 'r+'),
  };

  for (const [what, open] of Object.entries(noSockets))
    test(`a link that is ${what} ends the connection, and all links of the message are closed`, async () => {
      using other = await holder();
      const fd = open();
      const [link, far] = socketPair();
      request(other, asking(0, own, 3), [link, fd, link]);
      [fd, link].forEach(closeFd);
      await assert.rejects(other.peer.receive(), { name: 'IpcError', message: /ENOTSOCK/ });
      // The valid request before it is kept until its link ends.
      assert.equal(forwardedCount(), 1);
      closeFd(far);
      await turns();
      assert.equal(forwardedCount(), 0);
    });

  const otherSockets: Readonly<Record<string, () => Promise<readonly [number, () => void]>>> = {
    'a stream socket': async () => {
      const path = `\0cuffi-test-${process.pid}-stream`;
      const server = createServer().listen(path);
      const client = connect(path);
      await once(client, 'connect');
      const { fd } = (client as unknown as { _handle: { fd: number } })._handle;
      client.on('data', () => assert.fail('something was written'));
      return [fd, () => [client.destroy(), server.close()]];
    },
    'a listening socket': async () => {
      const fd = listenSocket(`@cuffi-test-${process.pid}-link`);
      return [fd, () => closeFd(fd)];
    },
  };

  for (const [what, open] of Object.entries(otherSockets))
    test(`a link that is ${what} ends the connection`, async () => {
      const [fd, close] = await open();
      using other = await holder();
      request(other, asking(0), [fd]);
      await assert.rejects(other.peer.receive(), {
        name: 'IpcError',
        message: /is not a connected Unix socket of type SOCK_SEQPACKET/,
      });
      assert.equal(forwardedCount(), 0);
      close();
    });

  test('a link that another process made ends the connection, with nothing written to it', async () => {
    // The connection belongs to that process; the link is of this one, like that of a service.
    const child = startProcess('sleep', ['60'], { stdio: 'ignore' });
    const [first, second] = socketPair();
    const peer = new Peer(first, { pid: child.pid as number, uid: process.getuid?.() ?? 0 });
    await peer.send(buffer);
    between = leases.stats().leases.length;
    const [link, far] = socketPair();
    const packet = Buffer.alloc(HEADER_BYTE_LENGTH);
    const body = asking(0);
    writeHeader(packet, 0, {
      kind: 2,
      sequence: 0,
      offset: 0,
      byteLength: body.byteLength,
      request: 0,
    });
    sendMessage(second, helloFrame());
    sendMessage(second, Buffer.concat([packet, body]), [link]);
    await assert.rejects(peer.receive(), {
      name: 'IpcError',
      message: new RegExp(`leads to process ${process.pid}, but process ${child.pid} sent it`),
    });
    assert.equal(forwardedCount(), 0);
    assert.equal(receiveMessage(far), undefined);
    [link, far, second].forEach(closeFd);
    child.kill('SIGKILL');
    await once(child, 'exit');
  });

  const broken: Readonly<Record<string, readonly [RegExp, (link: number) => [Buffer, number[]]]>> =
    {
      'without a link': [/0 file descriptors with a control message/, () => [asking(0), []]],
      'with a link too many': [
        /2 file descriptors with a control message/,
        (l) => [asking(0), [l, l]],
      ],
      'of what was never lent': [/lease 7 was already released/, (l) => [asking(7), [l]]],
      'of no lease': [/-1 is not an integer/, (l) => [asking(-1), [l]]],
      'for no process': [
        /NaN is not an integer/,
        (l) => [asking(0, { ...own, pid: Number.NaN }), [l]],
      ],
      'without an end': [/are left/, (l) => [asking(0).subarray(0, 20), [l]]],
    };

  for (const [what, [message, make]] of Object.entries(broken))
    test(`a forward request ${what} ends the connection`, async () => {
      using other = await holder();
      const [link, far] = socketPair();
      request(other, ...make(link));
      [link, far].forEach(closeFd);
      await assert.rejects(other.peer.receive(), { name: 'IpcError', message });
      assert.equal(forwardedCount(), 0);
    });

  test('the number of forwarded leases is limited, and all end with their links', async () => {
    using other = await holder();
    const fars: number[] = [];
    let end: unknown;
    void other.peer.ended.then((reason) => {
      end = reason;
    });
    for (let sequence = 0; sequence < 12 && !end; sequence++) {
      const [link, far] = socketPair();
      fars.push(far);
      request(other, asking(0, own, 200), new Array<number>(200).fill(link), sequence);
      closeFd(link);
      await turns();
    }
    assert.match(String(end), /IpcError: .*has forwarded more than 2048 objects of this process/);
    assert.equal(forwardedCount(), 2048);
    fars.forEach(closeFd);
    await turns();
    assert.equal(forwardedCount(), 0);
  });

  test('a request is acknowledged by one byte, once', async () => {
    using other = await holder();
    const [link, far] = socketPair();
    request(other, asking(0), [link]);
    closeFd(link);
    await turns();
    assert.deepEqual(receiveMessage(far), { data: Uint8Array.of(1), fds: [] });
    assert.equal(receiveMessage(far), undefined);
    assert.equal(forwardedCount(), 1);
    closeFd(far);
    await turns();
    assert.equal(forwardedCount(), 0);
  });

  const ends: Readonly<Record<string, (far: number) => void>> = {
    'closed before it came': () => {},
    'full, and never read': (far) => sendMessage(far, Uint8Array.of(1)),
    'written to without end': (far) => {
      while (sendMessage(far, Buffer.alloc(10_000)));
    },
  };

  for (const [what, use] of Object.entries(ends))
    test(`a link that is ${what} ends only its forwarded lease`, async () => {
      using other = await holder();
      const [link, far] = socketPair();
      if (what.startsWith('full')) while (sendMessage(link, Buffer.alloc(10_000)));
      use(far);
      request(other, asking(0), [link]);
      [link, far].forEach(closeFd);
      await turns();
      assert.equal(forwardedCount(), 0);
      // The connection works, and the lease of the forwarding process is unchanged.
      assert.equal(other.peer.closed, false);
      assert.equal(leases.stats().leases.length, between);
    });

  test('a process that cannot be watched gets no lease, and the connection ends', async (t) => {
    using other = await holder();
    const pid = process.ppid;
    const watched = openDescriptors();
    t.mock.method(PeerProcess.prototype, 'onGone', () => {
      throw new SystemError('epoll_ctl', 24);
    });
    const [link, far] = socketPair();
    request(other, asking(0, { pid, startTime: processStartTime(pid) as number }), [link]);
    closeFd(link);
    await assert.rejects(other.peer.receive(), { name: 'IpcError', message: /EMFILE/ });
    assert.equal(forwardedCount(), 0);
    closeFd(far);
    await turns();
    assert.ok(openDescriptors() <= watched);
  });

  test('a process that is exiting keeps its lease until it has exited, not until its link is closed', {
    timeout: 30_000,
  }, async (t) => {
    const child = startProcess('sleep', ['60'], { stdio: 'ignore' });
    t.after(() => child.kill('SIGKILL'));
    const pid = child.pid as number;
    using other = await holder();
    const [link, far] = socketPair();
    request(other, asking(0, { pid, startTime: processStartTime(pid) as number }), [link]);
    closeFd(link);
    await turns();
    assert.equal(forwardedCount(), 1);
    // Descriptors are closed first, while the process's work on the GPU may still run.
    t.mock.getter(PeerProcess.prototype, 'isEnding', () => true);
    closeFd(far);
    await turns();
    assert.equal(forwardedCount(), 1);
    child.kill('SIGKILL');
    await once(child, 'exit');
    while (forwardedCount() > 0) await nextLoopIteration();
  });

  test('a process whose end cannot be observed keeps its lease for a time after the end of its link', async () => {
    using other = await holder({ orphanGraceMs: 100 });
    const [link, far] = socketPair();
    // A process that had the pid before.
    request(other, asking(0, { pid: own.pid, startTime: 1 }), [link]);
    closeFd(link);
    await turns();
    assert.equal(forwardedCount(), 1);
    closeFd(far);
    await nextLoopIteration();
    assert.equal(forwardedCount(), 1);
    await until(() => forwardedCount() === 0);
  });
});

/** Imported objects that are sent to a third process: which owners are asked, and for what. */
describe('forwardObjects', () => {
  let before = 0;
  const buffers: DeviceBuffer[] = [];
  const allocate = (): DeviceBuffer => {
    const buffer = DeviceBuffer.allocate(64);
    buffers.push(buffer);
    return buffer;
  };
  beforeEach(() => {
    emulate();
    // Small memory comes from a block, which has a descriptor.
    allocate();
    before = openDescriptors();
  });
  afterEach(async () => {
    await descriptorsReturnTo(before);
    for (const buffer of buffers.splice(0)) buffer.close();
  });

  const to = (pid: number): PeerProcess => ({ pid }) as PeerProcess;

  /** A simulated owner of a buffer that records requests and refuses after `most` of them. */
  function fakeOwner(pid: number | PeerProcess, buffer: DeviceBuffer, most = 9) {
    const requests: (readonly [pid: number, startTime: number])[] = [];
    let releasedCount = 0;
    const requestForward: OwnerConnection['requestForward'] = (process, startTime, link) => {
      closeFd(link);
      if (requests.length === most) throw new Error('full');
      requests.push([process, startTime]);
      return {
        acknowledged: Promise.resolve(),
        release() {
          releasedCount += 1;
        },
      };
    };
    const owner: OwnerConnection = {
      process: typeof pid === 'number' ? to(pid) : pid,
      requestForward,
    };
    factsOf(buffer).owner = owner;
    return { requests, releasedCount: () => releasedCount };
  }

  test('an object that returns to its owner needs no request', () => {
    const [buffer, own] = [allocate(), allocate()];
    const owner = fakeOwner(7, buffer);
    for (const objects of [[buffer], [own, buffer.subarray(0, 8)], [own], []]) {
      const { indices, links, acknowledged, releases } = forwardObjects(objects, to(7));
      assert.deepEqual([indices, links, acknowledged, releases], [[], [], undefined, []]);
    }
    assert.deepEqual(owner.requests, []);
  });

  test('processes of other pid namespaces are told apart by their connections', () => {
    const [hidden, other] = [PeerProcess.fromIdentity(0, 0), PeerProcess.fromIdentity(0, 0)];
    const buffer = allocate();
    const owner = fakeOwner(hidden, buffer);
    assert.deepEqual(forwardObjects([buffer], hidden).indices, []);
    assert.deepEqual(owner.requests, []);
    const { indices, links } = forwardObjects([buffer], other);
    assert.deepEqual(indices, [0]);
    assert.deepEqual(owner.requests, [[0, 0]]);
    links.forEach(closeFd);
  });

  test('each imported object is requested from its owner, in order and with a link of its own', async () => {
    const [own, first, second] = [allocate(), allocate(), allocate()];
    const owners = [fakeOwner(7, first), fakeOwner(process.pid, second)] as const;
    const { indices, links, acknowledged, releases } = forwardObjects(
      [own, first, second, first],
      to(process.pid),
    );
    assert.deepEqual([indices, links.length, releases.length], [[1, 3], 2, 2]);
    const startTime = processStartTime('self');
    assert.deepEqual(owners[0].requests, new Array(2).fill([process.pid, startTime]));
    assert.deepEqual(owners[1].requests, []);
    await acknowledged;
    for (const end of releases) end();
    assert.equal(owners[0].releasedCount(), 2);
    links.forEach(closeFd);
  });

  test('a failed request releases all others, and leaves no link', () => {
    const [first, second] = [allocate(), allocate()];
    const owners = [fakeOwner(7, first), fakeOwner(8, second, 1)] as const;
    assert.throws(() => forwardObjects([first, second, first, second], to(process.pid)), /full/);
    assert.deepEqual(
      owners.map(({ requests, releasedCount }) => [requests.length, releasedCount()]),
      [
        [2, 2],
        [1, 1],
      ],
    );
  });

  test('a send closes its ends of the links, and releases requests for objects that were not sent', async () => {
    const [buffer, other] = [allocate(), allocate()];
    const owners = [fakeOwner(7, buffer), fakeOwner(7, other, 999)] as const;
    using to = new RawPeer();
    await to.peer.send(buffer);
    // A timeline page may come before it.
    const came: number[] = [];
    for (let next = to.receive(); typeof next === 'object'; next = to.receive()) {
      came.push(next.fds.length);
      next.fds.forEach(closeFd);
    }
    assert.equal(came.at(-1), 1);
    assert.deepEqual([owners[0].requests.length, owners[0].releasedCount()], [1, 0]);
    // More links than a value may have descriptors.
    await assert.rejects(to.peer.send(new Array<DeviceBuffer>(254).fill(other)), {
      name: 'RangeError',
      message: /needs 254 file descriptors \(limit 253\): send fewer/,
    });
    assert.deepEqual([owners[1].requests.length, owners[1].releasedCount()], [254, 254]);
    assert.equal(to.receive(), undefined);
    // Releases lease 0, which ends the request at the owner.
    to.send(Uint8Array.of(3, 1, ...new Uint8Array(8), 1, 0), { kind: 2 });
    for (let turn = 0; turn < 100 && owners[0].releasedCount() === 0; turn++)
      await nextLoopIteration();
    assert.equal(owners[0].releasedCount(), 1);
  });

  test('of a value, the objects of others are forwarded, whatever is before or behind them', async () => {
    for (const order of ['i', 'io', 'oi', 'oio', 'ioi']) {
      const objects = [...order].map((kind) => ({ kind, buffer: allocate() }));
      const imported = objects.filter(({ kind }) => kind === 'i').map(({ buffer }) => buffer);
      const owners = imported.map((buffer) => fakeOwner(7, buffer));
      using other = new RawPeer();
      await other.peer.send(objects.map(({ buffer }) => buffer));
      for (let next = other.receive(); typeof next === 'object'; next = other.receive())
        next.fds.forEach(closeFd);
      assert.deepEqual(
        owners.map(({ requests }) => requests.length),
        imported.map(() => 1),
        order,
      );
      other.send(Uint8Array.of(8), { kind: 2 });
      await nextLoopIteration();
    }
  });

  test('a forwarded object is sent once its owner has acknowledged', async () => {
    const buffer = allocate();
    let agree = (): void => {};
    const acknowledged = new Promise<void>((resolve) => {
      agree = resolve;
    });
    const requestForward: OwnerConnection['requestForward'] = (_process, _startTime, link) => {
      closeFd(link);
      return { acknowledged, release() {} };
    };
    const owner: OwnerConnection = { process: to(7), requestForward };
    factsOf(buffer).owner = owner;
    using other = new RawPeer();
    /** The number of received values. A timeline page may come before. */
    const values = (): number => {
      let count = 0;
      for (let next = other.receive(); typeof next === 'object'; next = other.receive()) {
        next.fds.forEach(closeFd);
        if (next.data[3] === 1) count += 1;
      }
      return count;
    };
    const sending = other.peer.send(buffer);
    for (let turn = 0; turn < 10; turn++) await nextLoopIteration();
    assert.equal(values(), 0);
    agree();
    await sending;
    assert.equal(values(), 1);
    other.send(Uint8Array.of(8), { kind: 2 });
    await nextLoopIteration();
  });
});
