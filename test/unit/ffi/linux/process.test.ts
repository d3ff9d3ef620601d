import assert from 'node:assert/strict';
import { once } from 'node:events';
import fs, { mkdtempSync, readFileSync, rmSync, symlinkSync } from 'node:fs';
import { syncBuiltinESMExports } from 'node:module';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
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

  test('the name of a process may have parentheses and spaces', async () => {
    const folder = mkdtempSync(join(tmpdir(), 'cuffi-name-'));
    const named = join(folder, 'a) S 1 (b');
    symlinkSync('/bin/sleep', named);
    const child = startProcess(named, ['60']);
    try {
      const pid = child.pid as number;
      const stat = (): string => readFileSync(`/proc/${pid}/stat`, 'latin1');
      await until(() => stat().includes('a) S 1 (b'));
      const afterName = stat().slice(stat().lastIndexOf(')') + 2);
      assert.equal(processStartTime(pid), Number(afterName.split(' ')[19]));
      assert.equal(isProcessEnding(pid), false);
    } finally {
      child.kill('SIGKILL');
      rmSync(folder, { recursive: true });
    }
    await once(child, 'exit');
  });

  test('a process that is exiting counts as ending before it is a zombie', (t) => {
    const own = readFileSync('/proc/self/stat', 'latin1');
    const [name, rest] = [
      own.slice(0, own.lastIndexOf(')') + 2),
      own.slice(own.lastIndexOf(')') + 2),
    ];
    const fields = rest.split(' ');
    let flags = Number(fields[6]);
    t.mock.method(fs, 'readFileSync', () => [`${name}R`, ...fields.slice(1, 6), flags].join(' '));
    syncBuiltinESMExports();
    try {
      assert.equal(isProcessEnding(process.pid), false);
      flags |= 4; // PF_EXITING
      assert.equal(isProcessEnding(process.pid), true);
    } finally {
      t.mock.restoreAll();
      syncBuiltinESMExports();
    }
  });

  test('a process that has ended counts as such, also where nobody has waited for it', async () => {
    // What it starts in the background ends when it has become another program, which waits for none.
    const parent = startProcess('sh', ['-c', 'sleep 0.2 & echo $!; exec sleep 60'], {
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
