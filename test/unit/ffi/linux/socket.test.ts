import assert from 'node:assert/strict';
import { fork } from 'node:child_process';
import { once } from 'node:events';
import {
  existsSync,
  fstatSync,
  mkdtempSync,
  readFileSync,
  readlinkSync,
  rmSync,
  statSync,
  writeSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { describe, test } from 'node:test';
import { closeFd, createMemfd, isOpenFd, libc } from '../../../../ffi/linux/libc.ts';
import {
  MAX_MESSAGE_BYTE_LENGTH,
  MAX_MESSAGE_FDS,
  receiveMessage,
  type SocketMessage,
  sendMessage,
  takeMessage,
} from '../../../../ffi/linux/message.ts';
import { readable } from '../../../../ffi/linux/poll.ts';
import {
  acceptSocket,
  connectSocket,
  isMessageSocket,
  isSocketInUse,
  listenSocket,
  peerCredentials,
  socketPair,
} from '../../../../ffi/linux/socket.ts';
import { addressOf } from '../../../../ffi/native.ts';
import type { Address } from '../../../../ffi/types.ts';
import { turns } from '../../../support/iterations.ts';
import { openDescriptors, replaceLibc } from '../../../support/process-state.ts';
import { programFile } from '../../../support/program.ts';
import { rawSend, withRoomFor } from '../fixtures/descriptors.ts';

const program = programFile(new URL('../fixtures/socket-peer.ts', import.meta.url));

const hello = Buffer.from('hello');
const F_GETFD = 1;
const F_GETFL = 3;
const O_NONBLOCK = 0x800;

const isCloseOnExec = (fd: number): boolean => libc.fcntl(fd, F_GETFD, 0) === 1;
const isNonBlocking = (fd: number): boolean => (libc.fcntl(fd, F_GETFL, 0) & O_NONBLOCK) !== 0;

/** Takes a message that must be there. */
function take(socket: number): SocketMessage {
  const message = receiveMessage(socket);
  if (message === undefined || message === 'end') assert.fail(`no message but ${message}`);
  return message;
}

async function wait(socket: number): Promise<SocketMessage> {
  await readable(socket);
  return take(socket);
}

/** A pair for one test, which must leave no descriptor behind. */
async function withPair(use: (a: number, b: number) => void | Promise<void>): Promise<void> {
  const before = openDescriptors();
  const [a, b] = socketPair();
  try {
    await use(a, b);
  } finally {
    for (const fd of [a, b]) if (isOpenFd(fd)) closeFd(fd);
  }
  assert.equal(openDescriptors(), before);
}

const code = (expected: string) => (error: unknown) =>
  (error as NodeJS.ErrnoException).code === expected;

describe('message sockets', () => {
  test('keeps messages whole and in order', () =>
    withPair((a, b) => {
      assert.equal(receiveMessage(b), undefined);
      const large = Buffer.alloc(MAX_MESSAGE_BYTE_LENGTH, 'ab');
      assert.ok(sendMessage(a, hello));
      assert.ok(sendMessage(a, large));
      assert.ok(sendMessage(b, Buffer.from('back')));
      assert.deepEqual(take(b), { data: new Uint8Array(hello), fds: [] });
      assert.deepEqual(Buffer.from(take(b).data), large);
      assert.equal(receiveMessage(b), undefined);
      assert.equal(Buffer.from(take(a).data).toString(), 'back');
    }));

  test('gives a copy of the data, which the next message does not change', () =>
    withPair((a, b) => {
      sendMessage(a, hello);
      sendMessage(a, Buffer.from('other'));
      const first = take(b).data;
      take(b);
      assert.equal(Buffer.from(first).toString(), 'hello');
    }));

  test('what is taken without a copy is there until the next message', () =>
    withPair((a, b) => {
      assert.equal(takeMessage(b), undefined);
      sendMessage(a, hello);
      sendMessage(a, Buffer.from('other'));
      const { data, fds } = takeMessage(b) as SocketMessage;
      assert.deepEqual([Buffer.from(data).toString(), fds], ['hello', []]);
      takeMessage(b);
      assert.equal(Buffer.from(data).toString(), 'other');
      closeFd(a);
      assert.equal(takeMessage(b), 'end');
    }));

  test('carries a descriptor: both ends then share what it refers to', () =>
    withPair((a, b) => {
      const memfd = createMemfd('carried', 0);
      assert.ok(sendMessage(a, hello, [memfd]));
      const { fds } = take(b);
      const received = fds[0] as number;
      assert.equal(fds.length, 1);
      assert.notEqual(received, memfd);
      assert.equal(fstatSync(received).ino, fstatSync(memfd).ino);
      assert.ok(isCloseOnExec(received));
      closeFd(memfd);
      writeSync(received, 'still there');
      assert.equal(readFileSync(`/proc/self/fd/${received}`, 'utf8'), 'still there');
      closeFd(received);
    }));

  test('carries as many descriptors as the kernel allows, in their order', () =>
    withPair((a, b) => {
      const pair = [createMemfd('even', 0), createMemfd('odd', 0)];
      const sent = Array.from({ length: MAX_MESSAGE_FDS }, (_, i) => pair[i % 2] as number);
      assert.ok(sendMessage(a, hello, sent));
      const { fds } = take(b);
      assert.equal(fds.length, MAX_MESSAGE_FDS);
      for (const [i, fd] of fds.entries())
        assert.match(readlinkSync(`/proc/self/fd/${fd}`), i % 2 ? /memfd:odd/ : /memfd:even/);
      [...fds, ...pair].forEach(closeFd);
    }));

  test('refuses what no message can hold, before the kernel is asked', () =>
    withPair((a, b) => {
      assert.throws(() => sendMessage(a, new Uint8Array(0)), RangeError);
      assert.throws(() => sendMessage(a, new Uint8Array(MAX_MESSAGE_BYTE_LENGTH + 1)), RangeError);
      const many = new Array<number>(MAX_MESSAGE_FDS + 1).fill(0);
      assert.throws(() => sendMessage(a, hello, many), RangeError);
      for (const fd of [-1, Number.NaN, 0.5, 2 ** 32]) {
        assert.throws(() => sendMessage(a, hello, [fd]), code('EBADF'));
        assert.throws(() => sendMessage(fd, hello), code('EBADF'));
        assert.throws(() => receiveMessage(fd), code('EBADF'));
        assert.throws(() => acceptSocket(fd), code('EBADF'));
        assert.throws(() => peerCredentials(fd), code('EBADF'));
      }
      assert.equal(receiveMessage(b), undefined);
    }));

  test('answers false, having sent nothing, when the queue of the receiver is full', () =>
    withPair((a, b) => {
      const data = Buffer.alloc(MAX_MESSAGE_BYTE_LENGTH);
      let sent = 0;
      while (sendMessage(a, data)) sent++;
      assert.ok(sent > 0);
      for (let i = 0; i < sent; i++) take(b);
      assert.equal(receiveMessage(b), undefined);
      assert.ok(sendMessage(a, data));
    }));

  test('tells the end once all that was sent has been received', () =>
    withPair((a, b) => {
      sendMessage(a, hello);
      closeFd(a);
      assert.equal(take(b).data.byteLength, hello.byteLength);
      assert.equal(receiveMessage(b), 'end');
      assert.equal(receiveMessage(b), 'end');
      assert.throws(() => sendMessage(b, hello), code('EPIPE'));
    }));

  test('sending to a closed end is an error, and sends this process no SIGPIPE', async () => {
    const [near, far] = socketPair();
    closeFd(far);
    let signals = 0;
    const count = (): void => {
      signals += 1;
    };
    process.on('SIGPIPE', count);
    try {
      assert.throws(() => sendMessage(near, hello), code('EPIPE'));
      // Signals are handled in the next turns.
      await turns();
      assert.equal(signals, 0);
    } finally {
      process.off('SIGPIPE', count);
      closeFd(near);
    }
  });

  test('loses nothing of a sender that closed with messages unread', () =>
    withPair((a, b) => {
      sendMessage(b, Buffer.from('never read'));
      const memfd = createMemfd('last', 0);
      sendMessage(a, hello, [memfd]);
      closeFd(memfd);
      closeFd(a);
      const last = take(b);
      assert.equal(Buffer.from(last.data).toString(), 'hello');
      last.fds.forEach(closeFd);
      assert.equal(receiveMessage(b), 'end');
    }));

  test('refuses a message that was cut off', () =>
    withPair((a, b) => {
      // The receiver must not rely on the sender's own limits.
      rawSend(a, MAX_MESSAGE_BYTE_LENGTH + 1);
      assert.throws(() => receiveMessage(b), code('EMSGSIZE'));
      sendMessage(a, hello);
      assert.equal(take(b).data.byteLength, hello.byteLength);
    }));

  test('takes an empty message for the end', () =>
    withPair((a, b) => {
      assert.equal(rawSend(a, 0), 0);
      assert.equal(receiveMessage(b), 'end');
    }));

  for (const receive of [receiveMessage, takeMessage])
    test(`${receive.name} closes the descriptors beside an empty message`, () =>
      withPair((a, b) => {
        const memfd = createMemfd('beside the end', 0);
        const before = openDescriptors();
        assert.equal(rawSend(a, 0, [memfd, memfd]), 0);
        assert.equal(receive(b), 'end');
        assert.equal(openDescriptors(), before);
        closeFd(memfd);
      }));

  test('closes what arrived when descriptors were cut off', () =>
    withPair((a, b) => {
      const memfd = createMemfd('cut', 0);
      sendMessage(a, hello, [memfd, memfd, memfd, memfd]);
      withRoomFor(2, () => {
        const before = openDescriptors();
        assert.throws(() => receiveMessage(b), {
          code: 'EMFILE',
          message: /too few file descriptors are left, so those of a message are lost/,
        });
        assert.equal(openDescriptors(), before);
        sendMessage(a, hello, [memfd, memfd, memfd, memfd]);
        const message = takeMessage(b);
        assert.ok(typeof message === 'object');
        assert.deepEqual([Buffer.from(message.data), message.fds], [Buffer.from(hello), []]);
        assert.equal(message.shortage?.code, 'EMFILE');
        assert.equal(openDescriptors(), before);
      });
      closeFd(memfd);
    }));

  test('everything it makes is non-blocking and close-on-exec', () =>
    withPair((a, b) => {
      const listener = listenSocket(`@cuffi-test-${process.pid}-flags`);
      const client = connectSocket(`@cuffi-test-${process.pid}-flags`);
      const accepted = acceptSocket(listener) as number;
      for (const fd of [a, b, listener, client, accepted]) {
        assert.ok(isCloseOnExec(fd), `${fd}`);
        assert.ok(isNonBlocking(fd), `${fd}`);
      }
      [listener, client, accepted].forEach(closeFd);
    }));

  for (const kind of ['a path', 'an abstract name'] as const) {
    test(`listens, connects and accepts at ${kind}`, async () => {
      const before = openDescriptors();
      const folder = mkdtempSync(join(tmpdir(), 'cuffi-socket-'));
      try {
        const name =
          kind === 'a path' ? join(folder, 'socket') : `@cuffi-test-${process.pid}-${kind}`;
        const listener = listenSocket(name);
        assert.equal(existsSync(join(folder, 'socket')), kind === 'a path');
        if (kind === 'a path') {
          assert.equal(statSync(name).mode & 0o777, 0o600);
          assert.equal(isSocketInUse(name), true);
        }
        // Asking did not connect.
        assert.equal(acceptSocket(listener), undefined);
        const client = connectSocket(name);
        await readable(listener);
        const accepted = acceptSocket(listener) as number;
        assert.equal(acceptSocket(listener), undefined);
        sendMessage(client, hello);
        assert.equal(Buffer.from((await wait(accepted)).data).toString(), 'hello');
        const mine = { pid: process.pid, uid: process.getuid?.(), gid: process.getgid?.() };
        assert.deepEqual(peerCredentials(accepted), mine);
        assert.deepEqual(peerCredentials(client), mine);
        assert.throws(() => listenSocket(name), code('EADDRINUSE'));
        [listener, client, accepted].forEach(closeFd);
        assert.throws(() => connectSocket(name), code('ECONNREFUSED'));
        if (kind === 'a path') assert.equal(isSocketInUse(name), false);
      } finally {
        rmSync(folder, { recursive: true });
      }
      assert.equal(openDescriptors(), before);
    });
  }

  test('the other end is of the user and the group that the kernel says', () =>
    withPair((a) => {
      const { getsockopt } = libc;
      // What a sandbox maps others to, too: ids have no sign.
      const ids = Uint32Array.of(7, 0xffff_fffe, 0x8000_0000);
      replaceLibc('getsockopt', (_socket, _level, _name, at) => {
        libc.memmove(at as Address, addressOf(ids), ids.byteLength);
        return 0;
      });
      try {
        const [pid, uid, gid] = ids;
        assert.deepEqual(peerCredentials(a), { pid, uid, gid });
      } finally {
        replaceLibc('getsockopt', getsockopt);
      }
    }));

  test('refuses names that no socket can have, and leaves no descriptor of a failure', () => {
    const before = openDescriptors();
    for (const name of [
      '',
      '@',
      'a\0b',
      '@a\0b',
      `/tmp/${'x'.repeat(103)}`,
      `@${'x'.repeat(108)}`,
    ]) {
      assert.throws(() => listenSocket(name), RangeError);
      assert.throws(() => connectSocket(name), RangeError);
    }
    assert.throws(() => connectSocket('/nonexistent/socket'), code('ENOENT'));
    assert.throws(() => isSocketInUse('/nonexistent/socket'), code('ENOENT'));
    assert.throws(() => connectSocket(`@cuffi-test-${process.pid}-nobody`), code('ECONNREFUSED'));
    const closed = createMemfd('closed', 0);
    closeFd(closed);
    assert.throws(() => peerCredentials(closed), code('EBADF'));
    assert.equal(openDescriptors(), before);
  });

  test('the longest abstract name differs from one that is a byte shorter', () => {
    const name = `@${process.pid}`.padEnd(108, 'x');
    const listener = listenSocket(name);
    assert.throws(() => connectSocket(name.slice(0, -1)), code('ECONNREFUSED'));
    closeFd(connectSocket(name));
    closeFd(listener);
  });

  test('passes descriptors between two processes, both ways', async () => {
    const before = openDescriptors();
    const [mine, theirs] = socketPair();
    const child = fork(program.path, {
      execArgv: program.execArgv,
      stdio: ['ignore', 'inherit', 'inherit', theirs, 'ipc'],
    });
    const exit = once(child, 'exit');
    const deadline = setTimeout(() => child.kill('SIGKILL'), 30_000);
    try {
      closeFd(theirs);
      const memfd = createMemfd('question', 0);
      writeSync(memfd, 'from the test');
      for (let i = 0; i < 3; i++) {
        assert.ok(sendMessage(mine, Buffer.from(`message ${i}`), [memfd]));
        const { data, fds } = await wait(mine);
        assert.deepEqual(JSON.parse(Buffer.from(data).toString()), {
          pid: child.pid,
          said: `message ${i}`,
          contents: ['from the test'],
        });
        assert.equal(readFileSync(`/proc/self/fd/${fds[0]}`, 'utf8'), 'from the peer');
        fds.forEach(closeFd);
      }
      closeFd(memfd);
      // The maker of the pair, not the process that has the other end now.
      assert.equal(peerCredentials(mine).pid, process.pid);
    } finally {
      // The end of this side is the end of the child.
      closeFd(mine);
      child.disconnect();
      const [status] = await exit;
      clearTimeout(deadline);
      assert.equal(status, 0);
    }
    assert.equal(openDescriptors(), before);
  });

  test('the end of a killed process is reported', async () => {
    const [mine, theirs] = socketPair();
    const child = fork(program.path, {
      execArgv: program.execArgv,
      stdio: ['ignore', 'inherit', 'inherit', theirs, 'ipc'],
    });
    const exit = once(child, 'exit');
    closeFd(theirs);
    sendMessage(mine, hello);
    (await wait(mine)).fds.forEach(closeFd);
    child.kill('SIGKILL');
    await readable(mine);
    assert.equal(receiveMessage(mine), 'end');
    await exit;
    closeFd(mine);
  });

  test('a byte is sent through connected sockets of messages alone', () =>
    withPair((a, b) => {
      assert.deepEqual([isMessageSocket(a), isMessageSocket(b)], [true, true]);
      const listener = listenSocket(`@cuffi-kind-${process.pid}`);
      const [AF_UNIX, AF_INET, SOCK_STREAM, SOCK_DGRAM] = [1, 2, 1, 2];
      const others = [
        libc.socket(AF_UNIX, SOCK_STREAM, 0),
        libc.socket(AF_UNIX, SOCK_DGRAM, 0),
        libc.socket(AF_INET, SOCK_DGRAM, 0),
      ].filter((fd) => fd >= 0);
      for (const fd of [listener, ...others]) {
        assert.equal(isMessageSocket(fd), false);
        closeFd(fd);
      }
      const file = createMemfd('file', 0);
      assert.throws(() => isMessageSocket(file), code('ENOTSOCK'));
      closeFd(file);
      assert.throws(() => isMessageSocket(file), code('EBADF'));
    }));
});
