/** What is asked to be kept for others by one who does as it likes, and the links that it sends. */
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { openSync } from 'node:fs';
import { connect, createServer } from 'node:net';
import { afterEach, beforeEach, test } from 'node:test';
import { closeFd, createMemfd, SystemError } from '../../../../../ffi/libc.ts';
import { receiveMessage, sendMessage } from '../../../../../ffi/message.ts';
import { processStartTime } from '../../../../../ffi/process.ts';
import { listenSocket, socketPair } from '../../../../../ffi/socket.ts';
import { DeviceBuffer } from '../../../../../src/index.ts';
import { leases } from '../../../../../src/ipc/index.ts';
import { PeerProcess } from '../../../../../src/ipc/lease/peer-process.ts';
import { HEADER_BYTE_LENGTH } from '../../../../../src/ipc/peer/limits.ts';
import { writeHeader } from '../../../../../src/ipc/peer/packet.ts';
import { Peer } from '../../../../../src/ipc/peer/peer.ts';
import type { PeerOptions } from '../../../../../src/ipc/peer/peer-options.ts';
import { nextTurn } from '../../../../../src/wait.ts';
import { openDescriptors } from '../../../../support/descriptors.ts';
import { until } from '../../../../support/until.ts';
import { emulate } from '../../emulate.ts';
import { Stranger } from '../peer/support.ts';

let buffer: DeviceBuffer;
let before = 0;
beforeEach(() => {
  emulate();
  buffer = DeviceBuffer.allocate(64);
  before = openDescriptors();
});
afterEach(async () => {
  await turns();
  // A connection that has lent something goes on to watch the process: this one, which lives.
  assert.ok(openDescriptors() - before <= 1, `${openDescriptors()} after ${before}`);
  buffer.close();
});

const turns = async (): Promise<void> => {
  for (let turn = 0; turn < 20; turn++) await nextTurn();
};
const own = { pid: process.pid, startTime: processStartTime('self') ?? 0 };
const float64 = (...values: number[]): Buffer => Buffer.from(new Float64Array(values).buffer);

/** News that ask to keep a lease so many times for a process. */
const asking = (lease: number, { pid, startTime } = own, count = 1): Buffer =>
  Buffer.concat([
    Buffer.of(6, ...(count < 128 ? [count] : [(count & 127) | 128, count >> 7])),
    ...new Array<Buffer>(count).fill(float64(lease, pid, startTime)),
  ]);

/** Sends such news with links, which are closed here. */
function ask(other: Stranger, body: Uint8Array, links: readonly number[], sequence = 0): void {
  other.send(body, { kind: 2, sequence }, links);
}

/** How many are out beside those of the one between. */
const adopted = (): number => leases.stats().leases.length - between;
let between = 0;

/** One that has a buffer of this process, by lease 0. */
async function holder(grace?: PeerOptions): Promise<Stranger> {
  const other = new Stranger(grace);
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
  test(`a link that is ${what} ends the connection, and what came with it is closed`, async () => {
    using other = await holder();
    const fd = open();
    const [link, far] = socketPair();
    ask(other, asking(0, own, 3), [link, fd, link]);
    [fd, link].forEach(closeFd);
    await assert.rejects(other.peer.receive(), { name: 'IpcError', message: /ENOTSOCK/ });
    // What was sound before it is kept until its link ends.
    assert.equal(adopted(), 1);
    closeFd(far);
    await turns();
    assert.equal(adopted(), 0);
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
    ask(other, asking(0), [fd]);
    await assert.rejects(other.peer.receive(), {
      name: 'IpcError',
      message: /is not a connected Unix socket of type SOCK_SEQPACKET/,
    });
    assert.equal(adopted(), 0);
    close();
  });

test('a link that another process has made ends the connection, with nothing written to it', async () => {
  // The connection is one of that process; the link is of this one, as of a service.
  const child = spawn('sleep', ['60'], { stdio: 'ignore' });
  const [first, second] = socketPair();
  const peer = new Peer(first, { pid: child.pid as number, uid: process.getuid?.() ?? 0 });
  await peer.send(buffer);
  between = leases.stats().leases.length;
  const [link, far] = socketPair();
  const packet = Buffer.alloc(HEADER_BYTE_LENGTH);
  const body = asking(0);
  writeHeader(packet, 0, { kind: 2, sequence: 0, offset: 0, byteLength: body.byteLength });
  sendMessage(second, Buffer.concat([packet, body]), [link]);
  await assert.rejects(peer.receive(), {
    name: 'IpcError',
    message: new RegExp(`leads to process ${process.pid}, and process ${child.pid} has sent it`),
  });
  assert.equal(adopted(), 0);
  assert.equal(receiveMessage(far), undefined);
  [link, far, second].forEach(closeFd);
  child.kill('SIGKILL');
  await once(child, 'exit');
});

const broken: Readonly<Record<string, readonly [RegExp, (link: number) => [Buffer, number[]]]>> = {
  'without a link': [/0 file descriptors came with news/, () => [asking(0), []]],
  'with a link too many': [/2 file descriptors came with news/, (l) => [asking(0), [l, l]]],
  'of what was never lent': [/lease 7 was already released/, (l) => [asking(7), [l]]],
  'of no lease': [/-1 is no count/, (l) => [asking(-1), [l]]],
  'for no process': [/NaN is no count/, (l) => [asking(0, { ...own, pid: Number.NaN }), [l]]],
  'without an end': [/are left/, (l) => [asking(0).subarray(0, 20), [l]]],
};

for (const [what, [message, make]] of Object.entries(broken))
  test(`to keep something ${what} ends the connection`, async () => {
    using other = await holder();
    const [link, far] = socketPair();
    ask(other, ...make(link));
    [link, far].forEach(closeFd);
    await assert.rejects(other.peer.receive(), { name: 'IpcError', message });
    assert.equal(adopted(), 0);
  });

test('no more is kept for others than has a bound, and all of it goes with the links', async () => {
  using other = await holder();
  const fars: number[] = [];
  let end: unknown;
  void other.peer.ended.then((reason) => {
    end = reason;
  });
  for (let sequence = 0; sequence < 12 && !end; sequence++) {
    const [link, far] = socketPair();
    fars.push(far);
    ask(other, asking(0, own, 200), new Array<number>(200).fill(link), sequence);
    closeFd(link);
    await turns();
  }
  assert.match(String(end), /IpcError: .*more than 2048 things of this process were passed on/);
  assert.equal(adopted(), 2048);
  fars.forEach(closeFd);
  await turns();
  assert.equal(adopted(), 0);
});

test('one who asks is answered by a byte, once, and by that alone', async () => {
  using other = await holder();
  const [link, far] = socketPair();
  ask(other, asking(0), [link]);
  closeFd(link);
  await turns();
  assert.deepEqual(receiveMessage(far), { data: Uint8Array.of(1), fds: [] });
  assert.equal(receiveMessage(far), undefined);
  assert.equal(adopted(), 1);
  closeFd(far);
  await turns();
  assert.equal(adopted(), 0);
});

const ends: Readonly<Record<string, (far: number) => void>> = {
  'closed before it came': () => {},
  'full, and never read': (far) => sendMessage(far, Uint8Array.of(1)),
  'written to without end': (far) => {
    while (sendMessage(far, Buffer.alloc(10_000)));
  },
};

for (const [what, use] of Object.entries(ends))
  test(`a link that is ${what} is the end of what it was for, and costs nothing`, async () => {
    using other = await holder();
    const [link, far] = socketPair();
    if (what.startsWith('full')) while (sendMessage(link, Buffer.alloc(10_000)));
    use(far);
    ask(other, asking(0), [link]);
    [link, far].forEach(closeFd);
    await turns();
    assert.equal(adopted(), 0);
    // The connection is sound, and the lease of the one between is what it was.
    assert.equal(other.peer.closed, false);
    assert.equal(leases.stats().leases.length, between);
  });

test('where a process cannot be watched, nothing is kept for it, and the connection ends', async (t) => {
  using other = await holder();
  const pid = process.ppid;
  const watched = openDescriptors();
  t.mock.method(PeerProcess.prototype, 'onGone', () => {
    throw new SystemError('epoll_ctl', 24);
  });
  const [link, far] = socketPair();
  ask(other, asking(0, { pid, startTime: processStartTime(pid) as number }), [link]);
  closeFd(link);
  await assert.rejects(other.peer.receive(), { name: 'IpcError', message: /EMFILE/ });
  assert.equal(adopted(), 0);
  closeFd(far);
  await turns();
  assert.ok(openDescriptors() <= watched);
});

test('a process that is ending has it until it has ended, and not until its link is closed', {
  timeout: 30_000,
}, async (t) => {
  const child = spawn('sleep', ['60'], { stdio: 'ignore' });
  t.after(() => child.kill('SIGKILL'));
  const pid = child.pid as number;
  using other = await holder();
  const [link, far] = socketPair();
  ask(other, asking(0, { pid, startTime: processStartTime(pid) as number }), [link]);
  closeFd(link);
  await turns();
  assert.equal(adopted(), 1);
  // Its descriptors are closed first, while its work on the GPU may still run.
  t.mock.getter(PeerProcess.prototype, 'isEnding', () => true);
  closeFd(far);
  await turns();
  assert.equal(adopted(), 1);
  child.kill('SIGKILL');
  await once(child, 'exit');
  while (adopted() > 0) await nextTurn();
});

test('for a process that nobody sees, it is kept some time after the end of its link', async () => {
  using other = await holder({ orphanGraceMs: 100 });
  const [link, far] = socketPair();
  // One that had the number before.
  ask(other, asking(0, { pid: own.pid, startTime: 1 }), [link]);
  closeFd(link);
  await turns();
  assert.equal(adopted(), 1);
  closeFd(far);
  await nextTurn();
  assert.equal(adopted(), 1);
  await until(() => adopted() === 0);
});
