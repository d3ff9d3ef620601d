import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { test } from 'node:test';
import { closeFd } from '../../../ffi/libc.ts';
import { isStillAlive, peerPidfd, pidfdOf } from '../../../ffi/pidfd.ts';
import { readable } from '../../../ffi/poll.ts';
import { isProcessEnding, processStartTime } from '../../../ffi/process.ts';
import { socketPair } from '../../../ffi/socket.ts';
import { withRoomFor } from './fixtures/descriptors.ts';

test('a process has a descriptor while it lives, which tells of its end', async () => {
  const child = spawn('sleep', ['60'], { stdio: 'ignore' });
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
  const child = spawn('sleep', ['60'], { stdio: 'ignore' });
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

test('a process that is asked for again and again is alive until it has ended', async () => {
  const child = spawn('sleep', ['60'], { stdio: 'ignore' });
  const pid = child.pid as number;
  const started = processStartTime(pid) as number;
  for (let time = 0; time < 3; time++) {
    assert.equal(isStillAlive(pid, started), true);
    assert.equal(isStillAlive(pid, started), true);
    assert.equal(isStillAlive(pid, started - 1), false, 'an earlier one of its number');
    assert.equal(isStillAlive(process.pid, processStartTime('self') as number), true);
  }
  for (let time = 0; time < 3; time++) assert.equal(isStillAlive(pid, started), true);
  child.kill('SIGKILL');
  await once(child, 'exit');
  assert.equal(isStillAlive(pid, started), false);
  assert.equal(isStillAlive(pid, started), false);
});

test('the process at the other end of a socket has one', () => {
  const sockets = socketPair();
  const pidfd = peerPidfd(sockets[0]) as number;
  assert.equal(Number.isInteger(pidfd), true);
  for (const fd of [pidfd, ...sockets]) closeFd(fd);
});
