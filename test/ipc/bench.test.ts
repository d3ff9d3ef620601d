import assert from 'node:assert/strict';
import { once } from 'node:events';
import { existsSync, mkdtempSync, readdirSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, describe, test } from 'node:test';
import { setTimeout as delay } from 'node:timers/promises';
import { type Figures, wayNames } from '../../src/cli/bench.ts';
import { emulated } from '../support/driver.ts';
import { startProgram } from '../support/program.ts';

const main = new URL('../../src/cli/main.ts', import.meta.url);
const options = { timeout: 60_000 };

const folder = mkdtempSync(join(tmpdir(), 'cuffi-bench-'));
after(() => rmSync(folder, { recursive: true }));

/** Starts the command as from a shell; what it and its child would leave behind lies in `folder`. */
function start(...args: string[]) {
  const child = startProgram(main, ['bench', ...args], {
    stdio: ['ignore', 'pipe', 'pipe'],
    env: { ...process.env, XDG_RUNTIME_DIR: folder, CUFFI_INSPECT: '' },
  });
  const said = { out: '', err: '' };
  child.stdout.on('data', (data) => {
    said.out += data;
  });
  child.stderr.on('data', (data) => {
    said.err += data;
  });
  const ended = once(child, 'close').then(([code]) => ({ code: code as number, ...said }));
  return { child, ended };
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

  test('a signal ends both processes, which leave nothing', options, async () => {
    for (const [signal, code] of [
      ['SIGINT', 130],
      ['SIGTERM', 143],
    ] as const) {
      const { child, ended } = start('--size=64MiB');
      const pid = child.pid as number;
      while (childrenOf(pid).length === 0) await delay(10);
      const [second = ''] = childrenOf(pid);
      // Somewhere in the measurement.
      await delay(400);
      child.kill(signal);
      const { err, ...end } = await ended;
      assert.deepEqual([end.code, err], [code, 'cuffi: interrupted\n']);
      assert.ok(!existsSync(`/proc/${second}`), `process ${second} is left`);
      assert.deepEqual(sockets(), []);
    }
  });

  test('the death of the second process ends the command with an error', options, async () => {
    const { child, ended } = start('--size=64MiB');
    while (childrenOf(child.pid as number).length === 0) await delay(10);
    await delay(400);
    process.kill(Number(childrenOf(child.pid as number)[0]), 'SIGKILL');
    const { code, err } = await ended;
    assert.equal(code, 1);
    assert.match(err, /^cuffi: process \d+ .*SIGKILL/);
  });
});
