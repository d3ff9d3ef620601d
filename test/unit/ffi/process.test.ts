import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { test } from 'node:test';
import {
  bootId,
  isProcessAlive,
  isProcessForeign,
  pidNamespace,
  processStartTime,
  processUser,
} from '../../../ffi/process.ts';

test('a process is known by its pid and its start, and not any more when it has ended', async () => {
  const child = spawn('sleep', ['60'], { stdio: 'ignore' });
  const pid = child.pid as number;
  const started = processStartTime(pid);
  assert.ok(started !== undefined && started >= (processStartTime('self') as number));
  assert.equal(isProcessAlive(pid, started), true);
  assert.equal(isProcessAlive(pid, started - 1), false);
  const own = processStartTime('self') as number;
  assert.equal(isProcessAlive(process.pid, own), true);
  assert.equal(isProcessAlive(pid, started), true);
  child.kill('SIGKILL');
  await once(child, 'exit');
  assert.equal(processStartTime(pid), undefined);
  assert.equal(isProcessAlive(pid, started), false);
  assert.equal(processUser(pid), undefined);
  assert.equal(isProcessForeign(pid), false);
});

test('this process, its user, its machine and its namespace have names', () => {
  assert.equal(processStartTime('self'), processStartTime(process.pid));
  assert.equal(processUser(process.pid), process.geteuid?.());
  assert.equal(isProcessForeign(process.pid), false);
  if (process.geteuid?.() !== 0) assert.equal(isProcessForeign(1), true);
  assert.match(bootId(), /^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/);
  assert.ok(Number.isSafeInteger(pidNamespace()) && pidNamespace() > 0);
});
