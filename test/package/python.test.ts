/**
 * The companion for Python as its users install it: by pip, from the folder in the packed npm package or from
 * the wheel, into a virtual environment, without a network and without a GPU.
 *
 * CUFFI_TEST_PYTHONS names interpreters, separated by colons; without it, `python3` is the only one.
 */
import assert from 'node:assert/strict';
import { spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import {
  existsSync,
  mkdirSync,
  mkdtempSync,
  readFileSync,
  realpathSync,
  rmSync,
  symlinkSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, before, describe, test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { packPackage } from '../support/package-folder.ts';
import { writeCompiled } from '../support/page-programs.ts';
import { type PageProgram, programsOf } from '../support/pages.ts';
import { buildWheel } from '../support/release.ts';

const root = fileURLToPath(new URL('../..', import.meta.url));
const { version } = JSON.parse(readFileSync(join(root, 'package.json'), 'utf8'));
const pythons = (process.env['CUFFI_TEST_PYTHONS'] || 'python3').split(':');

const unavailable =
  (spawnSync('sh', ['-c', 'command -v npm']).status !== 0 && 'npm is not installed') ||
  (spawnSync('tar', ['--version']).status !== 0 && 'tar is not installed');

/** Why nothing can be installed into a virtual environment of an interpreter; false if it can. */
function findLack(python: string): string | false {
  const asks = 'import pip, venv; assert [*map(int, pip.__version__.split(".")[:2])] >= [22, 3]';
  const { status, error } = spawnSync(python, ['-c', asks]);
  if (error) return `${python} cannot be started`;
  return status !== 0 && `${python} has no venv, or no pip of version 22.3 or later`;
}

describe('the companion for Python, installed by pip', { skip: unavailable }, () => {
  let folder: string;
  let app: string;
  let wheel: string;

  before(() => {
    assert.ok(existsSync(join(root, 'dist')), 'no dist: npm run build');
    folder = realpathSync(mkdtempSync(join(tmpdir(), 'cuffi-python-package-')));
    app = join(folder, 'app');
    const installed = join(app, 'node_modules/cuffi');
    mkdirSync(installed, { recursive: true });
    const { path } = packPackage(folder);
    run('tar', ['-xzf', path, '--strip-components=1', '-C', installed]);
    symlinkSync(join(root, 'node_modules/koffi'), join(app, 'node_modules/koffi'));
  });
  after(() => rmSync(folder, { recursive: true, force: true }));

  const environment = (more: NodeJS.ProcessEnv = {}): NodeJS.ProcessEnv => {
    const env: NodeJS.ProcessEnv = { ...process.env };
    // Neither settings of pip nor the companion of this checkout.
    for (const name of Object.keys(env))
      if (/^(PIP_|PYTHONPATH$|NODE_OPTIONS$|NODE_TEST_CONTEXT$|VIRTUAL_ENV$)/.test(name))
        delete env[name];
    return {
      ...env,
      PIP_NO_INDEX: '1',
      PIP_CONFIG_FILE: '/dev/null',
      PIP_DISABLE_PIP_VERSION_CHECK: '1',
      CUFFI_DRIVER: 'emulated',
      // Some versions of pip leave a file there.
      TMPDIR: folder,
      ...more,
    };
  };

  /** Runs a program to its end and returns what it printed; fails with all of it. */
  function run(file: string, args: readonly string[], cwd = folder): string {
    const { stdout, stderr, status, error } = spawnSync(file, args, {
      cwd,
      env: environment(),
      encoding: 'utf8',
      timeout: 120_000,
    });
    assert.ifError(error);
    assert.equal(status, 0, `${file} ${args.join(' ')}\n${stdout}${stderr}`);
    return stdout.trimEnd();
  }

  /** Where the npm package says that the companion is. */
  const companion = (): string =>
    run(process.execPath, [join(app, 'node_modules/cuffi/dist/src/cli/main.js'), 'python']);

  /** Runs a program of a page in an empty folder: Node from the npm package, and Python from `venv`. */
  async function runProgram({ name, blocks }: PageProgram, venv: string): Promise<void> {
    const directory = mkdtempSync(join(app, 'program-'));
    for (const { file, code } of blocks) writeCompiled(join(directory, String(file)), code);
    const files = blocks.map(({ file }) => String(file));
    const started = files.filter(
      (file) => !blocks.some((block) => block.file !== file && block.code.includes(`./${file}`)),
    );
    const env = environment({
      PATH: `${join(venv, 'bin')}:${process.env['PATH']}`,
      XDG_RUNTIME_DIR: directory,
    });
    const outputs = await Promise.all(
      started.map(async (file) => {
        const command = file.endsWith('.py') ? join(venv, 'bin/python') : process.execPath;
        const child = spawn(command, [file.replace(/\.ts$/, '.mjs')], {
          cwd: directory,
          env,
          stdio: ['ignore', 'pipe', 'pipe'],
          timeout: 60_000,
        });
        let text = '';
        for (const stream of [child.stdout, child.stderr])
          stream.on('data', (data) => {
            text += data;
          });
        const [code] = await once(child, 'close');
        assert.equal(code, 0, `${name}: ${file}\n${text}`);
        return text;
      }),
    );
    const shown = blocks.flatMap((block) => block.shown.map(({ text }) => text));
    const printed = outputs.flatMap((text) => text.split('\n').slice(0, -1));
    assert.deepEqual(printed.sort(), shown.sort(), name);
  }

  for (const python of pythons)
    describe(`with ${python}`, { skip: findLack(python) }, () => {
      let venv: string;
      const pip = (...args: readonly string[]): string =>
        run(python, ['-m', 'pip', '--python', join(venv, 'bin/python'), ...args]);
      const evaluate = (program: string): unknown =>
        JSON.parse(run(join(venv, 'bin/python'), ['-c', `import json\n${program}`]));
      const where = 'import cuffi\nprint(json.dumps([cuffi.__version__, cuffi.__file__]))';

      before(() => {
        venv = join(folder, `venv-${pythons.indexOf(python)}`);
        // To install pip in it would take seconds.
        run(python, ['-m', 'venv', '--without-pip', venv]);
        wheel ??= buildWheel(folder, python);
      });

      test('is imported from site-packages, with its types, and leaves the folder as it was', () => {
        pip('install', companion());
        const [installed, file] = evaluate(where) as [string, string];
        assert.equal(installed, version);
        assert.match(file, new RegExp(`^${venv}/lib/.*/site-packages/cuffi/__init__\\.py$`));
        assert.ok(existsSync(file.replace('__init__.py', 'py.typed')));
        assert.ok(!existsSync(join(companion(), 'build')));
        const requires =
          'from importlib import metadata\nprint(json.dumps(metadata.requires("cuffi")))';
        assert.equal(evaluate(requires), null);
        assert.match(run(join(venv, 'bin/python'), ['-m', 'cuffi', 'doctor']), /\ndevice 0: /);
        pip('uninstall', '--yes', 'cuffi');
        assert.ok(!existsSync(file));
      });

      test('is used where it lies if it is installed as editable', () => {
        pip('install', '--editable', companion());
        assert.deepEqual(evaluate(where), [version, join(companion(), 'cuffi/__init__.py')]);
      });

      test('has the same files in the wheel, which runs the first programs of the pages', async () => {
        pip('install', wheel);
        const [installed, file] = evaluate(where) as [string, string];
        assert.equal(installed, version);
        for (const name of ['__init__.py', '_emulated.py', '_protocol.py', 'py.typed'])
          assert.deepEqual(
            readFileSync(file.replace('__init__.py', name)),
            readFileSync(join(companion(), 'cuffi', name)),
          );
        const pages = ['docs/python.md', 'docs/python-api.md'];
        const programs = pages.flatMap((page) => programsOf(page, 'own')).slice(0, 4);
        assert.deepEqual(
          programs.map(({ blocks }) => blocks.map((block) => block.file).sort()),
          [
            ['first.py'],
            ['main.ts', 'model.py'],
            ['camera.py', 'viewer.ts'],
            ['sensor.py', 'watch.ts'],
          ],
        );
        for (const program of programs) await runProgram(program, venv);
      });

      test('refuses wrong uses with errors that have a class, a code and a reason', () => {
        const uses = Object.entries(wrongUses);
        const program = `
import array, os, cuffi
found = {}
def wrong(name, use):
    try:
        found[name] = ['returned', repr(use())]
    except Exception as error:
        found[name] = [type(error).__name__, str(getattr(error, 'code', '')), str(error)]
def closed():
    an_array = cuffi.empty(4)
    an_array.close()
    an_array.copy_to_host()
${uses.map(([use], at) => `wrong('${at}', lambda: ${use})`).join('\n')}
print(json.dumps(found))`;
        const found = evaluate(program) as Record<string, string[]>;
        for (const [at, [use, [name, code, message]]] of uses.entries()) {
          const [itsName, itsCode, itsMessage] = found[at] as string[];
          assert.deepEqual([itsName, itsCode], [name, code], `${use}: ${itsMessage}`);
          assert.match(String(itsMessage), message, use);
        }
      });
    });
});

/** What is wrong, as Python, and the class, the code and the message of its error. */
const wrongUses: Readonly<Record<string, readonly [string, string, RegExp]>> = {
  'cuffi.parent()': ['IpcError', 'no-parent', /not started by spawnPython/],
  "cuffi.connect('nobody-listens', timeout=0.05)": ['TimeoutError', '', /nobody-listens/],
  "cuffi.listen('/nowhere/socket')": ['IpcError', 'ipc-failed', /\/nowhere/],
  'cuffi.empty(-1)': ['ValueError', '', /-1/],
  "cuffi.empty(4, 'float33')": ['TypeError', '', /float33/],
  'cuffi.empty(1 << 40)': ['CudaError', 'CUDA_ERROR_OUT_OF_MEMORY', /out of memory/],
  'cuffi.pinned(-1)': ['ValueError', '', /-1/],
  "cuffi.empty(4).copy_from_host(b'abc')": ['ValueError', '', /3 bytes/],
  'closed()': ['ClosedError', 'closed', /DeviceArray is closed/],
  "cuffi.Channel(4, (2,), deliver='x')": ['TypeError', '', /deliver must be/],
  "cuffi.Channel(0, (2,), deliver='all')": ['ValueError', '', /slots must be/],
  'cuffi.Timeline().reached(1, timeout=0.01)': ['TimeoutError', '', /value 1/],
};
