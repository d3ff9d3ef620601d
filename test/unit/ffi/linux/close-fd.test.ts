import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { openSync, readdirSync } from 'node:fs';
import { describe, test } from 'node:test';
import { setTimeout as delay } from 'node:timers/promises';
import { promisify } from 'node:util';
import { countPendingCloses, discardFd, discardFds } from '../../../../ffi/linux/close-fd.ts';
import { closeFd, createMemfd, isOpenFd } from '../../../../ffi/linux/libc.ts';
import { receiveMessage, sendMessage } from '../../../../ffi/linux/message.ts';
import {
  acceptSocket,
  closeListener,
  closeSocket,
  connectSocket,
  listenSocket,
  socketPair,
} from '../../../../ffi/linux/socket.ts';
import { discardsDone, openDescriptors } from '../../../support/process-state.ts';
import { programFile } from '../../../support/program.ts';
import { openPipe, rawSend } from '../fixtures/descriptors.ts';
import { openLingering } from '../fixtures/lingering.ts';

/** Longer than the tests take; a close that waited here would be seen by what is asserted after it. */
const LINGER_S = 20;

async function until(what: () => boolean): Promise<void> {
  for (let tries = 0; tries < 1000 && !what(); tries++) await delay(10);
  assert.ok(what());
}

/** Sends the only descriptor of a socket whose close waits. */
async function sendLingering(
  through: number,
  data = Uint8Array.of(1),
): Promise<() => Promise<void>> {
  const { fd, release } = await openLingering(LINGER_S);
  assert.equal(sendMessage(through, data, [fd]), true);
  closeFd(fd);
  return release;
}

describe('discardFd', () => {
  test('what the kernel alone has a part in is closed at once', () => {
    discardsDone();
    const fds = [createMemfd('plain', 4096), openSync('/dev/null', 'r')];
    discardFds(fds);
    assert.deepEqual(fds.map(isOpenFd), [false, false]);
    assert.equal(countPendingCloses(), 0);
  });

  test('all else is closed too, each once, and what is not open is an error', () => {
    const before = openDescriptors();
    discardFds([
      ...socketPair(),
      ...openPipe(),
      openSync('/', 'r'),
      openSync('/proc/self/stat', 'r'),
    ]);
    assert.equal(openDescriptors(), before);
    for (const fd of [-1, 2 ** 20, Number.NaN, 2 ** 32])
      assert.throws(() => discardFd(fd), { name: 'SystemError', code: 'EBADF' });
  });

  test('a close that waits holds up neither its caller nor others', async () => {
    const before = openDescriptors();
    const waiting = await Promise.all([openLingering(LINGER_S), openLingering(LINGER_S)]);
    discardFds(waiting.map(({ fd }) => fd));
    const others = openPipe();
    discardFds(others);
    // Their numbers are free, and both closes wait still.
    await until(() => [...waiting.map(({ fd }) => fd), ...others].every((fd) => !isOpenFd(fd)));
    await until(() => countPendingCloses() === 2);
    for (const { release } of waiting) await release();
    await until(() => countPendingCloses() === 0);
    assert.equal(openDescriptors(), before);
  });

  test('at most 32 closes wait at a time, each on a thread of its own, and the others follow', async () => {
    const threads = (): number => readdirSync('/proc/self/task').length;
    const lingering = await Promise.all(Array.from({ length: 40 }, () => openLingering(LINGER_S)));
    const before = threads();
    discardFds(lingering.map(({ fd }) => fd));
    await until(() => lingering.filter(({ fd }) => !isOpenFd(fd)).length >= 32);
    assert.equal(countPendingCloses(), 40);
    assert.ok(threads() - before <= 32, `${threads() - before} threads`);
    assert.equal(lingering.filter(({ fd }) => isOpenFd(fd)).length, 8);
    for (const { release } of lingering) await release();
    await until(() => countPendingCloses() === 0);
  });

  for (const how of ['exit', 'end'])
    test(`a process that ${how === 'exit' ? 'exits' : 'has nothing left to do'} does not wait for a close`, async () => {
      const { path, execArgv } = programFile(
        new URL('../fixtures/discard-at-exit.ts', import.meta.url),
      );
      const { stdout } = await promisify(execFile)(process.execPath, [...execArgv, path, how], {
        timeout: 30_000,
      });
      assert.equal(stdout, 'discarded\n');
    });

  test('a connection ends without waiting for the close of what it was sent and left unread', async () => {
    const before = openDescriptors();
    const [near, far] = socketPair();
    // An empty message looks like the end, and is not.
    assert.equal(rawSend(far, 0), 0);
    const release = await sendLingering(far);
    closeSocket(near);
    assert.equal(isOpenFd(near), false);
    assert.throws(() => sendMessage(far, Uint8Array.of(1)), { code: 'EPIPE' });
    await until(() => countPendingCloses() === 1);
    await release();
    closeFd(far);
    assert.equal(openDescriptors(), before);
  });

  test('the other end still reads what was sent before the end', () => {
    for (const unread of [0, 1]) {
      const [near, far] = socketPair();
      sendMessage(near, Buffer.from('last'));
      if (unread > 0) sendMessage(far, Buffer.from('unread'));
      closeSocket(near);
      const message = receiveMessage(far);
      assert.equal(typeof message === 'object' && Buffer.from(message.data).toString(), 'last');
      assert.equal(receiveMessage(far), 'end');
      closeSocket(far);
      assert.equal(isOpenFd(far), false);
    }
  });

  test('what is no socket is closed as well, and what is closed already is an error', () => {
    const before = openDescriptors();
    const [near, far] = socketPair();
    closeFd(far);
    closeSocket(near);
    for (const close of [closeSocket, closeListener])
      assert.throws(() => close(near), { name: 'SystemError', code: 'EBADF' });
    openPipe().forEach(closeSocket);
    assert.equal(openDescriptors(), before);
  });

  test('a listener ends without waiting for what those sent whom nobody accepted', async () => {
    const before = openDescriptors();
    const name = `@cuffi-test-discard-${process.pid}`;
    const listener = listenSocket(name);
    const client = connectSocket(name);
    const release = await sendLingering(client);
    closeListener(listener);
    assert.equal(isOpenFd(listener), false);
    // Its name is free at once.
    const next = listenSocket(name);
    assert.equal(acceptSocket(next), undefined);
    closeListener(next);
    assert.throws(() => sendMessage(client, Uint8Array.of(1)), { code: 'EPIPE' });
    await until(() => countPendingCloses() === 1);
    await release();
    closeSocket(client);
    assert.equal(openDescriptors(), before);
  });
});
