import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { constants, mkdtempSync, openSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { describe, test } from 'node:test';
import { closeFd, createPipe, isOpenFd, libc } from '../../../../../ffi/linux/libc.ts';
import { sendMessage, takeMessage } from '../../../../../ffi/linux/message.ts';
import { acceptSocket, oneWaySockets, socketPair } from '../../../../../ffi/linux/socket.ts';
import { withAddress } from '../../../../../ffi/native.ts';
import { WakeSockets } from '../../../../../src/ipc/channel/wake-sockets.ts';
import { turns, until } from '../../../../support/iterations.ts';
import { openDescriptors } from '../../../../support/process-state.ts';

const F_SETFL = 4;
const SHUT_RDWR = 2;
const nothing = (): void => {};

describe('WakeSockets', () => {
  test('each end wakes up the other, and sees its end', async () => {
    let wokenHere = 0;
    let wokenThere = 0;
    const { sockets, sent } = WakeSockets.create(() => {
      wokenHere += 1;
    });
    const other = WakeSockets.accept(sent, () => {
      wokenThere += 1;
    });
    sockets.wake();
    sockets.wake();
    await until(() => wokenThere > 0);
    other.wake();
    await until(() => wokenHere === 1);
    assert.deepEqual([sockets.hasEnded, other.hasEnded], [false, false]);
    other.close();
    other.close();
    await until(() => sockets.hasEnded);
    sockets.wake();
    // The end is reported once.
    const woken = wokenHere;
    await turns();
    assert.equal(wokenHere, woken);
    sockets.close();
  });

  test('sends nothing any more once either end is closed', async (t) => {
    for (const closing of ['this end', 'the other end']) {
      const { sockets, sent } = WakeSockets.create(nothing);
      const other = WakeSockets.accept(sent, nothing);
      (closing === 'this end' ? sockets : other).close();
      await until(() => closing === 'this end' || sockets.hasEnded);
      // A descriptor of another file may have the number by now.
      const sends = t.mock.method(libc, 'sendmsg', () => 1);
      sockets.wake();
      assert.equal(sends.mock.callCount(), 0, closing);
      sends.mock.restore();
      for (const each of [sockets, other]) each.close();
    }
  });

  test('a sender that makes its copies blocking, reads, fills or shuts them down holds nobody up', async () => {
    let woken = 0;
    const [receiveEnd, theirSendEnd] = oneWaySockets();
    const [theirReceiveEnd, sendEnd] = oneWaySockets();
    const copies = [receiveEnd, sendEnd].map((fd) => libc.fcntl(fd, 0, 0)) as [number, number];
    const sockets = WakeSockets.accept({ receiveEnd, sendEnd }, () => {
      woken += 1;
    });
    const block = (): void => {
      for (const copy of copies) libc.fcntl(copy, F_SETFL, 0);
    };
    block();
    for (let at = 0; at < 66_000; at += 1) sockets.wake();
    assert.ok(typeof takeMessage(theirReceiveEnd) === 'object');
    // What was readable is gone when it is read.
    for (let at = 0; at < 20; at += 1) {
      sendMessage(theirSendEnd, new Uint8Array(3000));
      await new Promise((resolve) => setTimeout(resolve, 0));
      block();
      takeMessage(copies[0]);
    }
    await until(() => woken > 0);
    assert.equal(sockets.hasEnded, false);
    libc.shutdown(copies[1], SHUT_RDWR);
    sockets.wake();
    libc.shutdown(copies[0], SHUT_RDWR);
    await until(() => sockets.hasEnded);
    sockets.close();
    for (const fd of [theirSendEnd, theirReceiveEnd, ...copies]) closeFd(fd);
  });

  test('descriptors that come with a wake-up are closed, and none can come to the end that sends', async () => {
    const before = openDescriptors();
    let woken = 0;
    const [receiveEnd, theirSendEnd] = oneWaySockets();
    const [theirReceiveEnd, sendEnd] = oneWaySockets();
    const sockets = WakeSockets.accept({ receiveEnd, sendEnd }, () => {
      woken += 1;
    });
    const SO_PASSPIDFD = 76;
    withAddress(new Int32Array([1]), (one) => libc.setsockopt(receiveEnd, 1, SO_PASSPIDFD, one, 4));
    for (let at = 0; at < 5; at += 1) {
      const seen = woken;
      sendMessage(theirSendEnd, new Uint8Array(1), [theirSendEnd, theirReceiveEnd]);
      await until(() => woken > seen);
    }
    await until(() => openDescriptors() === before + 4);
    assert.throws(() => sendMessage(theirReceiveEnd, new Uint8Array(1), [theirSendEnd]), {
      code: 'EPIPE',
    });
    sockets.close();
    for (const fd of [theirSendEnd, theirReceiveEnd]) closeFd(fd);
    assert.equal(openDescriptors(), before);
  });

  test('refuses anything but unread ends of one-way sockets without a name, and closes it', async () => {
    const before = openDescriptors();
    const folder = mkdtempSync(join(tmpdir(), 'cuffi-wake-'));
    const fifo = join(folder, 'fifo');
    execFileSync('mkfifo', [fifo]);
    const hold = openSync(fifo, constants.O_RDWR | constants.O_NONBLOCK);
    const O_PATH = 0o1000_0000;
    const name = `cuffi-wake-${process.pid}`;
    const [listener, connected] = streamListener(name);
    const kept = [hold, listener];
    let listeners = 0;
    const listening = (): number => {
      listeners += 1;
      return streamListener(`${name}-${listeners}`)[0];
    };
    /** A stream pair with unread data at the end that is to send. */
    const unread = (): number => {
      const [end, other] = streamPair();
      sendMessage(other, new Uint8Array(1));
      kept.push(other);
      return end;
    };
    const keptOther = ([end, other]: [number, number]): number => {
      kept.push(other);
      return end;
    };
    const wrong: readonly (() => number)[] = [
      () => openSync('/dev/null', 'r+'),
      () => openSync(join(folder, 'file'), 'a+'),
      () => openSync(fifo, constants.O_RDONLY | constants.O_NONBLOCK),
      () => openSync(fifo, constants.O_WRONLY | constants.O_NONBLOCK),
      () => openSync(fifo, O_PATH),
      () => keptOther(createPipe()),
      () => keptOther([...createPipe()].reverse() as [number, number]),
      () => keptOther(socketPair()),
      () => connected(),
      () => acceptSocket(listener) as number,
      () => listening(),
      () => libc.socket(1, 1, 0),
      () => libc.socket(2, 1, 0),
      () => libc.eventfd(0, 0),
    ];
    const refuses = (receiveEnd: number, sendEnd: number): void => {
      assert.throws(() => WakeSockets.accept({ receiveEnd, sendEnd }, nothing), {
        name: 'IpcError',
        message: /sockets/,
      });
    };
    for (const make of wrong) {
      const ends = oneWaySockets();
      kept.push(...ends);
      refuses(make(), libc.fcntl(ends[1], 0, 0));
      refuses(libc.fcntl(ends[0], 0, 0), make());
    }
    const [receiveEnd, otherEnd] = oneWaySockets();
    kept.push(otherEnd);
    refuses(receiveEnd, unread());
    for (const fd of kept) closeFd(fd);
    rmSync(folder, { recursive: true });
    await until(() => openDescriptors() === before);
  });

  test('sees the end of a process that ended before, and sends to nobody', async () => {
    const { sockets, sent } = WakeSockets.create(nothing);
    closeFd(sent.receiveEnd);
    sockets.wake();
    assert.equal(sockets.hasEnded, false);
    closeFd(sent.sendEnd);
    await until(() => sockets.hasEnded);
    sockets.close();
  });

  test('opens what was sent by a process that has ended since, and then sees that', async () => {
    const { sockets, sent } = WakeSockets.create(nothing);
    sockets.close();
    const other = WakeSockets.accept(sent, nothing);
    assert.equal(other.hasEnded, false);
    await until(() => other.hasEnded);
    other.close();
    await until(() => ![sent.receiveEnd, sent.sendEnd].some(isOpenFd));
  });
});

/** A listening stream socket at an abstract name, and how to connect another one to it. */
function streamListener(name: string): [listener: number, connected: () => number] {
  const address = Buffer.from(`\x01\0\0${name}`);
  const call = (what: 'bind' | 'connect', fd: number): number => {
    assert.equal(
      withAddress(address, (at) => libc[what](fd, at, address.length)),
      0,
    );
    return fd;
  };
  const listener = call('bind', libc.socket(1, 1, 0));
  libc.listen(listener, 8);
  return [listener, () => call('connect', libc.socket(1, 1, 0))];
}

function streamPair(): [number, number] {
  const ends = new Int32Array(2);
  withAddress(ends, (at) => libc.socketpair(1, 1, 0, at));
  return [...ends] as [number, number];
}
