/** `python -m cuffi`, and what the package says where it cannot work. */
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, test } from 'node:test';
import { VERSIONS } from '../../../../src/ipc/protocol.ts';
import { companionPath } from '../../../../src/python/companion.ts';
import { noPython } from '../../../support/python.ts';

const folder = companionPath() as string;
const { version } = JSON.parse(readFileSync(join(folder, '../../package.json'), 'utf8'));

function python(args: readonly string[], env: NodeJS.ProcessEnv = {}) {
  const { stdout, stderr, status } = spawnSync('python3', args, {
    env: { ...process.env, PYTHONPATH: folder, ...env },
    encoding: 'utf8',
    timeout: 60_000,
  });
  return { stdout, stderr, status };
}

const cuffi = (args: readonly string[], env: NodeJS.ProcessEnv = {}) =>
  python(['-m', 'cuffi', ...args], { CUFFI_DRIVER: 'emulated', ...env });

describe('python -m cuffi', { skip: noPython }, () => {
  test('version prints the version, the folder, the protocol and the interpreter', () => {
    const { stdout, status } = cuffi(['version'], { CUFFI_DRIVER: '/nowhere/libcuda.so' });
    const [what, protocol, interpreter] = stdout.split('\n');
    assert.equal(what, `cuffi ${version} for Python in ${join(folder, 'cuffi')}`);
    assert.equal(protocol, `protocol: version ${VERSIONS.max}`);
    assert.match(String(interpreter), /^Python 3\.\d+\S* in \//);
    assert.equal(status, 0);
  });

  test('doctor lists the devices, and says that no GPU is used', () => {
    const { stdout, status } = cuffi(['doctor'], { CUFFI_EMULATED_DEVICES: '2' });
    assert.match(
      stdout,
      /\ndriver: emulated, no GPU is used\ndevice 0: cuffi emulated device, GPU-[-\w]+\ndevice 1: .*\n$/,
    );
    assert.equal(status, 0);
  });

  test('doctor says why there is no device, and fails', () => {
    for (const [env, expected] of [
      [{ CUFFI_EMULATED_DEVICES: '0' }, /\nCUDA_ERROR_\w+: cuInit failed/],
      [
        { CUFFI_DRIVER: '/nowhere/libcuda.so' },
        /\ndriver-not-found: .*\n {2}\/nowhere\/libcuda\.so: .*cannot open/,
      ],
      [{ CUFFI_DRIVER: 'fast' }, /\ndriver-not-found: CUFFI_DRIVER must be cuda, emulated, or/],
      [{ CUFFI_EMULATED_DEVICES: 'x' }, /\ninvalid setting: CUFFI_EMULATED_DEVICES must be/],
    ] as const) {
      const { stdout, stderr, status } = cuffi(['doctor'], env);
      assert.match(stdout, expected);
      assert.equal(stderr, '');
      assert.equal(status, 1);
    }
  });

  test('prints its usage for anything else', () => {
    for (const args of [[], ['devices'], ['version', 'now']]) {
      const { stderr, status } = cuffi(args);
      assert.match(stderr, /^usage: python -m cuffi COMMAND/);
      assert.equal(status, 2);
    }
    const { stdout, status } = cuffi(['--help']);
    assert.match(stdout, /^usage: /);
    assert.equal(status, 0);
  });
});

describe('import cuffi', { skip: noPython }, () => {
  const importing = (change: string): string =>
    python(['-c', `import sys\n${change}\nimport cuffi`])
      .stderr.trim()
      .split('\n')
      .at(-1) ?? '';

  test('says that it needs Linux before it imports what only Linux has', () => {
    for (const platform of ['darwin', 'win32'])
      assert.match(
        importing(
          `sys.platform = '${platform}'; sys.modules['fcntl'] = sys.modules['termios'] = None`,
        ),
        new RegExp(`^ImportError: cuffi needs Linux, and this is ${platform}: `),
      );
  });

  test('says that it needs Python 3.9', () => {
    assert.match(
      importing('sys.version_info = (3, 8, 18)'),
      /^ImportError: cuffi needs Python 3\.9 or later, and this is 3\./,
    );
  });
});
