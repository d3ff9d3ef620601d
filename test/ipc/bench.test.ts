import assert from 'node:assert/strict';
import { once } from 'node:events';
import { existsSync, mkdtempSync, readdirSync, readFileSync, rmSync } from 'node:fs';
import { constants, tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, describe, test } from 'node:test';
import { setTimeout as delay } from 'node:timers/promises';
import { closeFd, createMemfd } from '../../ffi/linux/libc.ts';
import { wayNames as allWays, type Figures } from '../../src/cli/bench-figures.ts';
import type { Order } from '../../src/cli/bench-messages.ts';
import { spawnPeer } from '../../src/ipc/index.ts';
import { emulated } from '../support/driver.ts';
import { programFile, startProgram } from '../support/program.ts';
import { noPython } from '../support/python.ts';

const main = new URL('../../src/cli/main.ts', import.meta.url);
const options = { timeout: 60_000 };
/** The ways without --python. */
const wayNames = allWays.filter((name) => !name.endsWith('Python'));

const folder = mkdtempSync(join(tmpdir(), 'cuffi-bench-'));
after(() => rmSync(folder, { recursive: true }));

/** Starts the command as from a shell; what it and its child would leave behind lies in `folder`. */
function start(...args: string[]) {
  return startIn({}, ...args);
}

/** The same, with variables. */
function startIn(env: NodeJS.ProcessEnv, ...args: string[]) {
  const child = startProgram(main, ['bench', ...args], {
    stdio: ['ignore', 'pipe', 'pipe'],
    env: { ...process.env, XDG_RUNTIME_DIR: folder, CUFFI_INSPECT: '', ...env },
  });
  const said = { out: '', err: '' };
  child.stdout.on('data', (data) => {
    said.out += data;
  });
  child.stderr.on('data', (data) => {
    said.err += data;
  });
  const ended = once(child, 'close').then(([code, signal]) => ({
    code: code as number | null,
    signal: signal as NodeJS.Signals | null,
    ...said,
  }));
  return { child, ended };
}

/** Each size takes at least 0.2 s: the emulated driver measures each of five ways for 40 ms. */
const MANY_SIZES = Array.from({ length: 200 }, (_, at) => `${4 * (at + 1)}KiB`).join();

/** Starts a measurement of about a minute, and waits until both processes are somewhere in it. */
async function startLong() {
  const { child, ended } = start('--size', MANY_SIZES);
  const pid = child.pid as number;
  while (childrenOf(pid).length === 0) await delay(10);
  const second = Number(childrenOf(pid)[0]);
  // Before its exec, it has the handlers of the first process; Node itself catches SIGINT and SIGTERM.
  while (!programOf(second).includes('bench-child') || !catches(second, 'SIGHUP')) await delay(10);
  await delay(400);
  return { child, ended, second };
}

const programOf = (pid: number): string => readFileSync(`/proc/${pid}/cmdline`, 'latin1');

/** Whether a process has a handler for a signal; or ignores it. */
function catches(pid: number, signal: NodeJS.Signals, field = 'SigCgt'): boolean {
  const status = readFileSync(`/proc/${pid}/status`, 'latin1');
  const [, mask = ''] = new RegExp(`^${field}:\\t(\\w+)$`, 'm').exec(status) ?? [];
  return ((BigInt(`0x${mask}`) >> BigInt(constants.signals[signal] - 1)) & 1n) === 1n;
}

const childrenOf = (pid: number): string[] =>
  readFileSync(`/proc/${pid}/task/${pid}/children`, 'utf8').split(' ').filter(Boolean);

/** The sockets by which `cuffi ls` would ask. */
function sockets(): string[] {
  const directory = join(folder, 'cuffi', 'inspect');
  return existsSync(directory) ? readdirSync(directory) : [];
}

describe('cuffi bench', () => {
  test(
    'every way hands over buffers of every size, which a table and a picture show',
    options,
    async () => {
      const picture = join(folder, 'bench.svg');
      const { code, out, err } = await start('--size', '64KiB,4KiB', '--svg', picture).ended;
      assert.deepEqual([code, err], [0, '']);
      for (const size of [' 4 KiB', '64 KiB'])
        for (const name of wayNames)
          assert.match(out, new RegExp(`^${size}  ${name} +[\\d.]+ (ns|µs|ms|s) `, 'm'));
      const lines = out
        .trimEnd()
        .split('\n')
        .slice(-2 * wayNames.length);
      for (const line of lines) {
        assert.ok(line.length <= 80, line);
        assert.match(line, emulated ? /times mean nothing$/ : / \d+$/);
      }
      const svg = readFileSync(picture, 'utf8');
      assert.equal(svg.match(/<polyline /g)?.length, wayNames.length);
      assert.equal(/mean nothing/.test(svg), emulated);
      assert.deepEqual(sockets(), []);
    },
  );

  test('JSON has the same figures, and no progress', options, async () => {
    const { code, out, err } = await start('--json', '--size=4KiB').ended;
    assert.deepEqual([code, err], [0, '']);
    const { figures, omitted, isEmulated } = JSON.parse(out);
    assert.deepEqual([omitted, isEmulated], [[], emulated]);
    assert.deepEqual(
      figures.map(({ way }: Figures) => way),
      wayNames,
    );
    for (const { way, rounds, medianMs, p95Ms, bytesPerSecond } of figures as Figures[]) {
      assert.ok(rounds >= 3 && medianMs > 0 && p95Ms >= medianMs);
      assert.equal(bytesPerSecond !== null, way.startsWith('copying'), way);
    }
  });

  test('--python hands buffers to a process in Python, too, which ends with the command', {
    ...options,
    skip: noPython,
  }, async () => {
    const { code, out, err } = await start('--json', '--size=4KiB,64KiB', '--python').ended;
    assert.deepEqual([code, err], [0, '']);
    const { figures, omitted } = JSON.parse(out);
    assert.deepEqual(omitted, []);
    assert.deepEqual(
      figures.map(({ way }: Figures) => way),
      [...allWays, ...allWays],
    );
    const long = start('--size', MANY_SIZES, '--python');
    const pid = long.child.pid as number;
    const python = (): number | undefined =>
      childrenOf(pid)
        .map(Number)
        .find(
          (each) => programOf(each).includes('cuffi._bench') && catches(each, 'SIGHUP', 'SigIgn'),
        );
    while (python() === undefined) await delay(10);
    await delay(400);
    const children = childrenOf(pid);
    // A terminal sends it to all of them.
    process.kill(python() as number, 'SIGINT');
    await delay(200);
    long.child.kill('SIGINT');
    assert.deepEqual(await long.ended.then((end) => [end.code, end.err]), [
      130,
      'cuffi: interrupted\n',
    ]);
    assert.deepEqual(
      children.filter((each) => existsSync(`/proc/${each}`)),
      [],
    );
  });

  test('without a Python, --python says why, and measures the rest', options, async () => {
    const env = { CUFFI_PYTHON: '/nowhere/python3' };
    const { code, out } = await startIn(env, '--json', '--size=4KiB', '--python').ended;
    assert.equal(code, 0);
    const { figures, omitted } = JSON.parse(out);
    assert.deepEqual(
      figures.map(({ way }: Figures) => way),
      wayNames,
    );
    assert.equal(omitted.length, 1);
    assert.equal(omitted[0].what, 'Python');
    assert.match(omitted[0].reason, /\/nowhere\/python3 ENOENT: .* CUFFI_PYTHON$/);
  });

  test('a signal ends both processes, which leave nothing', options, async () => {
    for (const [signal, code] of [
      ['SIGINT', 130],
      ['SIGTERM', 143],
      ['SIGHUP', 129],
    ] as const) {
      const { child, ended, second } = await startLong();
      child.kill(signal);
      const { err, ...end } = await ended;
      assert.deepEqual([end.code, err], [code, 'cuffi: interrupted\n']);
      assert.ok(!existsSync(`/proc/${second}`), `process ${second} is left`);
      assert.deepEqual(sockets(), []);
    }
  });

  test('the second process leaves the signals of a terminal to the first', options, async () => {
    const { child, ended, second } = await startLong();
    for (const signal of ['SIGINT', 'SIGHUP'] as const) {
      process.kill(second, signal);
      await delay(100);
    }
    assert.deepEqual(childrenOf(child.pid as number), [String(second)]);
    child.kill('SIGHUP');
    const { code, err } = await ended;
    assert.deepEqual([code, err], [129, 'cuffi: interrupted\n']);
  });

  test('a second signal, also of another name, ends the command at once', options, async () => {
    for (const next of ['SIGTERM', 'SIGINT'] as const) {
      const { child, ended, second } = await startLong();
      // A process that is stopped does not end when it is asked to: the command waits for it.
      process.kill(second, 'SIGSTOP');
      try {
        child.kill('SIGINT');
        while (catches(child.pid as number, 'SIGINT')) await delay(10);
        child.kill(next);
        assert.equal((await ended).signal, next);
      } finally {
        process.kill(second, 'SIGKILL');
      }
      // What was killed removes nothing.
      rmSync(join(folder, 'cuffi'), { recursive: true, force: true });
    }
  });

  test('the death of the second process ends the command with an error', options, async () => {
    const { ended, second } = await startLong();
    process.kill(second, 'SIGKILL');
    const { code, err } = await ended;
    assert.equal(code, 1);
    assert.match(err, /^cuffi: process \d+ .*SIGKILL/);
  });
});

describe('the second process of cuffi bench', () => {
  test('page-locked memory that it lacks is an error, not other memory', options, async () => {
    const fd = createMemfd('cuffi-bench-test', 4096);
    const program = programFile(new URL('../../src/cli/bench-child.ts', import.meta.url)).path;
    await using child = spawnPeer<number | null | string, Order>(program, {
      args: ['0', '4096'],
      stdio: ['ignore', 'ignore', 'inherit', 'pipe', fd],
    });
    closeFd(fd);
    const ask = async (order: Order): Promise<unknown> => {
      await child.send(order);
      return child.receive();
    };
    assert.equal(await child.receive(), null);
    const opened = {
      type: 'open',
      byteLength: 4096,
      buffer: undefined,
      channel: undefined,
    } as const;
    assert.equal(await ask(opened), null);
    assert.equal(await ask({ type: 'copied', isPinned: false }), 0);
    assert.equal(await ask({ type: 'copied', isPinned: true }), 'no page-locked memory is open');
  });
});
