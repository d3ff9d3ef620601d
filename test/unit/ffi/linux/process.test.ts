import assert from 'node:assert/strict';
import { once } from 'node:events';
import { readFileSync } from 'node:fs';
import { describe, test } from 'node:test';
import {
  bootId,
  isOtherUsersProcess,
  isProcessAlive,
  isProcessEnding,
  pidNamespace,
  processStartTime,
  processStartTimeOrThrow,
  processUser,
} from '../../../../ffi/linux/process.ts';
import { until } from '../../../support/iterations.ts';
import { startProcess } from '../../../support/program.ts';

describe('processStartTime and isProcessAlive', () => {
  test('a process is identified by its pid and start time, until it has ended', async () => {
    const child = startProcess('sleep', ['60']);
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
    assert.equal(isOtherUsersProcess(pid), false);
  });

  test('a process that has ended counts as such, also where nobody has waited for it', async () => {
    // What it starts in the background ends at once, and the program that it becomes waits for none.
    const parent = startProcess('sh', ['-c', 'sleep 0 & echo $!; exec sleep 60'], {
      stdio: ['ignore', 'pipe', 'ignore'],
    });
    try {
      const [line] = await once(parent.stdout, 'data');
      const pid = Number(line);
      await until(() => readFileSync(`/proc/${pid}/stat`, 'latin1').includes(') Z '));
      assert.equal(processStartTime(pid), undefined);
      assert.equal(processStartTimeOrThrow(pid), undefined);
      assert.equal(isProcessAlive(pid, processStartTime('self') as number), false);
      assert.equal(isProcessEnding(pid), true);
    } finally {
      parent.kill('SIGKILL');
    }
  });

  test('a process that /proc hides and that may not be signalled counts as alive', (t) => {
    // No pid of Linux is this large.
    const pid = 2 ** 30;
    const signal = t.mock.method(process, 'kill', () => {
      throw Object.assign(new Error('kill EPERM'), { code: 'EPERM' });
    });
    assert.equal(processStartTime(pid), undefined);
    assert.equal(isProcessAlive(pid, 1), true);
    assert.equal(isProcessEnding(pid), undefined);
    assert.equal(isOtherUsersProcess(pid), true);
    signal.mock.restore();
    assert.equal(isProcessAlive(pid, 1), false);
    assert.equal(isProcessEnding(pid), true);
  });

  test('this process, its user, its machine and its namespace have names', () => {
    assert.equal(processStartTime('self'), processStartTime(process.pid));
    assert.equal(processUser(process.pid), process.geteuid?.());
    assert.equal(isOtherUsersProcess(process.pid), false);
    if (process.geteuid?.() !== 0) assert.equal(isOtherUsersProcess(1), true);
    assert.match(bootId(), /^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/);
    assert.ok(Number.isSafeInteger(pidNamespace()) && pidNamespace() > 0);
  });
});
