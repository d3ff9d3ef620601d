import assert from 'node:assert/strict';
import { mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { describe, type Mock, mock, test } from 'node:test';
import { runCommandLine } from '../../../../src/cli/commands.ts';
import type { Outcome } from '../emulate.ts';

/** Runs a command line in this process. */
async function cuffi(args: string): Promise<Outcome> {
  const out = mock.method(console, 'log', (..._: unknown[]) => {});
  const error = mock.method(console, 'error', (..._: unknown[]) => {});
  try {
    const code = await runCommandLine(args.split(' ').filter(Boolean));
    return { code, stdout: printed(out), stderr: printed(error) };
  } finally {
    mock.restoreAll();
  }
}

const printed = ({ mock: { calls } }: Mock<(...said: unknown[]) => void>): string =>
  calls.map(({ arguments: said }) => `${said.join(' ')}\n`).join('');

describe('runCommandLine', () => {
  test('help prints the commands, or the usage of one, and does nothing else', async () => {
    for (const args of ['--help', 'help']) {
      const { code, stdout, stderr } = await cuffi(args);
      assert.deepEqual({ code, stderr }, { code: 0, stderr: '' });
      assert.match(
        stdout,
        /^usage: cuffi COMMAND \[options\]\n\n {2}roundtrip +shares .+\n( {2}\w+ +\w.+\n)* {2}help +prints/,
      );
    }
    for (const args of ['help roundtrip', 'roundtrip --elements=0 --help', 'roundtrip -h']) {
      const { code, stdout, stderr } = await cuffi(args);
      assert.deepEqual({ code, stderr }, { code: 0, stderr: '' });
      assert.match(stdout, /^usage: cuffi roundtrip \[options\]\n/);
    }
  });

  test('every command with --driver refuses a text that names no driver', async () => {
    const { stdout } = await cuffi('help');
    const names = [...stdout.matchAll(/^ {2}(\w+) /gm)].map(([, name = '']) => name);
    let count = 0;
    for (const name of names) {
      if (!(await cuffi(`help ${name}`)).stdout.includes('\n  --driver ')) continue;
      count += 1;
      for (const text of ['', 'cudaa']) {
        const { code, stdout: out, stderr } = await cuffi(`${name} --driver=${text}`);
        assert.deepEqual({ code, out }, { code: 2, out: '' }, name);
        const said = `cuffi: --driver must be cuda, emulated, or the path of a libcuda, not "${text}"\n`;
        assert.equal(stderr, `${said}See cuffi help ${name}.\n`);
      }
    }
    assert.equal(count, 5);
  });

  test('an unknown command is refused with the nearest one, and where the list is', async () => {
    const wrong: readonly (readonly [args: string, said: RegExp])[] = [
      ['', /^cuffi: no command given\nSee cuffi help\.\n$/],
      [
        'roundtip',
        /^cuffi: there is no command 'roundtip' \(did you mean 'roundtrip'\?\)\nSee cuffi help\.\n$/,
      ],
      [
        'help verson',
        /^cuffi: there is no command 'verson' \(did you mean 'version'\?\)\nSee cuffi help\.\n$/,
      ],
      ['constructor', /^cuffi: there is no command 'constructor'\n/],
      ['help roundtrip 2', /^cuffi: help takes no '2'\n/],
      ['--help roundtrip 2', /^cuffi: help takes no '2'\n/],
      ['version 2', /^cuffi: version takes no '2'\nSee cuffi help version\.\n$/],
    ];
    for (const [args, said] of wrong) {
      const { code, stdout, stderr } = await cuffi(args);
      assert.deepEqual({ code, stdout }, { code: 2, stdout: '' }, args);
      assert.match(stderr, said);
    }
  });

  test('python prints the path of the companion, or copies it', async () => {
    const printed = await cuffi('python');
    assert.deepEqual({ code: printed.code, stderr: printed.stderr }, { code: 0, stderr: '' });
    const companion = readFileSync(join(printed.stdout.trim(), 'cuffi', '__init__.py'), 'utf8');
    assert.match(companion, /^"""cuffi for Python/);
    const folder = mkdtempSync(join(tmpdir(), 'cuffi-python-'));
    try {
      const target = join(folder, 'cuffi');
      for (const turn of ['first', 'again']) {
        const copied = await cuffi(`python --copy ${folder}`);
        assert.deepEqual(copied, { code: 0, stdout: `${target}\n`, stderr: '' });
        assert.equal(readFileSync(join(target, '__init__.py'), 'utf8'), companion);
        const names = readdirSync(join(printed.stdout.trim(), 'cuffi'));
        assert.deepEqual(
          readdirSync(target),
          names.filter((name) => name !== '__pycache__'),
          turn,
        );
        writeFileSync(join(target, 'of_an_earlier_version.py'), '');
      }
    } finally {
      rmSync(folder, { recursive: true });
    }
    const failed = await cuffi('python --copy /proc');
    assert.deepEqual({ code: failed.code, stdout: failed.stdout }, { code: 1, stdout: '' });
    assert.match(failed.stderr, /^cuffi: \/proc\/cuffi cannot be written: /);
    const { code, stderr } = await cuffi('python --cpoy x');
    assert.equal(code, 2);
    assert.match(stderr, /^cuffi: unknown option '--cpoy'.*\nSee cuffi help python\.\n$/);
  });

  test('an unknown option is refused with the nearest one', async () => {
    for (const [args, said] of [
      [
        'ls --jsson',
        /^cuffi: unknown option '--jsson' \(did you mean '--json'\?\)\nSee cuffi help ls\.\n$/,
      ],
      ['doctor --device 1024', /^cuffi: --device must be an integer from 0 to 1023, not "1024"\n/],
      ['doctor --with 4194305', /^cuffi: --with takes a pid, or - for .*, not "4194305"\n/],
      ['doctor --device x', /^cuffi: --device must be an integer from 0 to 1023, not "x"\n/],
      ['devices 1', /^cuffi: devices takes no '1'\nSee cuffi help devices\.\n$/],
      ['explain', /^cuffi: explain needs a descriptor\nSee cuffi help explain\.\n$/],
      ['ls -x', /^cuffi: unknown option '-x'\nSee cuffi help ls\.\n$/],
      ['explain {', /^cuffi: the argument is not a descriptor: /],
    ] as const) {
      const { code, stdout, stderr } = await cuffi(args);
      assert.deepEqual({ code, stdout }, { code: 2, stdout: '' }, args);
      assert.match(stderr, said);
    }
  });
});
