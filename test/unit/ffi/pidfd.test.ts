import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { test } from 'node:test';
import { closeFd } from '../../../ffi/libc.ts';
import { peerPidfd, pidfdOf } from '../../../ffi/pidfd.ts';
import { readable } from '../../../ffi/poll.ts';
import { isProcessEnding } from '../../../ffi/process.ts';
import { socketPair } from '../../../ffi/socket.ts';

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

test('the process at the other end of a socket has one', () => {
  const sockets = socketPair();
  const pidfd = peerPidfd(sockets[0]) as number;
  assert.equal(Number.isInteger(pidfd), true);
  for (const fd of [pidfd, ...sockets]) closeFd(fd);
});
