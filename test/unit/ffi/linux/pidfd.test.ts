import assert from 'node:assert/strict';
import { once } from 'node:events';
import fs from 'node:fs';
import { syncBuiltinESMExports } from 'node:module';
import { describe, test } from 'node:test';
import { closeFd } from '../../../../ffi/linux/libc.ts';
import { isProcessAliveCached, peerPidfd, pidfdOf } from '../../../../ffi/linux/pidfd.ts';
import { readable } from '../../../../ffi/linux/poll.ts';
import { isProcessEnding, processStartTime } from '../../../../ffi/linux/process.ts';
import { socketPair } from '../../../../ffi/linux/socket.ts';
import { openDescriptors } from '../../../support/process-state.ts';
import { startProcess } from '../../../support/program.ts';
import { withRoomFor } from '../fixtures/descriptors.ts';

describe('pidfdOf and peerPidfd', () => {
  test('a process has a descriptor while it lives, which tells of its end', async () => {
    const child = startProcess('sleep', ['60']);
    const pid = child.pid as number;
    const pidfd = pidfdOf(pid) as number;
    assert.equal(isProcessEnding(pid), false);
    const told = readable(pidfd);
    child.kill('SIGKILL');
    await told;
    assert.equal(isProcessEnding(pid), true);
    closeFd(pidfd);
    if (child.exitCode === null && child.signalCode === null) await once(child, 'exit');
    assert.equal(pidfdOf(pid), undefined);
    assert.equal(pidfdOf(0), undefined);
  });

  test('a process that cannot be asked for is not taken for ended', () => {
    const child = startProcess('sleep', ['60']);
    const pid = child.pid as number;
    try {
      for (const room of [0, 1])
        withRoomFor(room, () => {
          // Without room for the entry in /proc, and with room for the descriptor alone.
          assert.throws(() => pidfdOf(pid), { name: 'SystemError', code: 'EMFILE' });
          assert.equal(isProcessEnding(pid), room === 0 ? undefined : false);
        });
      withRoomFor(2, () => closeFd(pidfdOf(pid) as number));
    } finally {
      child.kill('SIGKILL');
    }
  });

  /** Calls `use` while the entries of a process say in turn that it started then; the last one stays. */
  function withStartTimes(pid: number, times: readonly number[], use: () => void): void {
    const read = fs.readFileSync;
    let turn = 0;
    fs.readFileSync = ((path: string, ...options: [never]) => {
      if (path !== `/proc/${pid}/stat`) return read(path, ...options);
      const time = times[Math.min(turn, times.length - 1)];
      turn += 1;
      return `${pid} (sleep) S ${'0 '.repeat(18)}${time} 0`;
    }) as typeof read;
    syncBuiltinESMExports();
    try {
      use();
      assert.ok(turn >= times.length, `asked ${turn} times`);
    } finally {
      fs.readFileSync = read;
      syncBuiltinESMExports();
    }
  }

  test('a process that got the number of another while that was asked for is not taken for it', () => {
    // This one stands in for whichever has the number: its descriptor can be had at any time.
    const { pid } = process;
    const before = openDescriptors();
    withStartTimes(pid, [100, 100], () => closeFd(pidfdOf(pid) as number));
    withStartTimes(pid, [100, 101], () => assert.equal(pidfdOf(pid), undefined));
    assert.equal(openDescriptors(), before);
    // One that is asked for often is kept by its descriptor: only by its own.
    withStartTimes(pid, [100, 100, 100, 100, 101], () => {
      assert.equal(isProcessAliveCached(pid, 100), true);
      assert.equal(isProcessAliveCached(pid, 100), true);
    });
    assert.equal(openDescriptors(), before);
    withStartTimes(pid, [101], () => assert.equal(isProcessAliveCached(pid, 100), false));
  });

  test('a process that is asked for again and again is alive until it has ended', async () => {
    const child = startProcess('sleep', ['60']);
    const pid = child.pid as number;
    const started = processStartTime(pid) as number;
    for (let time = 0; time < 3; time++) {
      assert.equal(isProcessAliveCached(pid, started), true);
      assert.equal(isProcessAliveCached(pid, started), true);
      assert.equal(isProcessAliveCached(pid, started - 1), false, 'an earlier one of its number');
      assert.equal(isProcessAliveCached(process.pid, processStartTime('self') as number), true);
    }
    for (let time = 0; time < 3; time++) assert.equal(isProcessAliveCached(pid, started), true);
    child.kill('SIGKILL');
    await once(child, 'exit');
    assert.equal(isProcessAliveCached(pid, started), false);
    assert.equal(isProcessAliveCached(pid, started), false);
  });

  test('the process at the other end of a socket has one', () => {
    const sockets = socketPair();
    const pidfd = peerPidfd(sockets[0]) as number;
    assert.equal(Number.isInteger(pidfd), true);
    for (const fd of [pidfd, ...sockets]) closeFd(fd);
  });
});
