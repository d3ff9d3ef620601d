/**
 * Programs that esbuild has bundled with cuffi, as an ES module and as CommonJS, run where only koffi is
 * installed: what cuffi loads late is in the bundle, or an error says what to do.
 */
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { cpSync, mkdirSync, mkdtempSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, before, describe, test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { type BuildOptions, build } from 'esbuild';
import { noPython } from '../support/python.ts';

const root = fileURLToPath(new URL('../..', import.meta.url));

/** What a bundled program does, by the word that it is started with. */
const program = `
import { readdirSync } from 'node:fs';
import * as cuda from 'cuffi';
import { compile } from 'cuffi';
import { explain, listen, parentPeer, spawnPeer, spawnPython } from 'cuffi/ipc';
import { cu } from 'cuffi/ffi';

const actions = {
  available: () => cuda.isAvailable(),
  devices: () => cuda.devices().length,
  ffi: () => cu.cuInit(0),
  explain: () => explain({ kind: 'nonsense' }),
  compile: () => compile('__global__ void k() {}', { arch: 'sm_90', cache: false }),
  async peer(file) {
    using child = spawnPeer(file, { args: ['child'], stdio: ['ignore', 'ignore', 'inherit'] });
    await child.send({ big: new Uint8Array(100_000).fill(7), map: new Map([[1, 'one']]) });
    return await child.receive({ timeoutMs: 20_000 });
  },
  async child() {
    const { big, map } = await parentPeer().receive({ timeoutMs: 20_000 });
    await parentPeer().send([big.length, big[99_999], map.get(1)]);
  },
  async python(script) {
    using child = spawnPython(script);
    return await child.receive({ timeoutMs: 20_000 });
  },
  // cuffi ls finds a process by its socket.
  async inspected(folder) {
    using listener = listen(folder + '/here');
    for (let tries = 0; tries < 500; tries += 1) {
      try {
        if (readdirSync(folder + '/cuffi/inspect').length > 0) return 'a socket';
      } catch {}
      await new Promise((done) => setTimeout(done, 10));
    }
    return 'none';
  },
};

const [what, argument] = process.argv.slice(2);
void (async () => {
  try {
    console.log(JSON.stringify({ result: await actions[what](argument) }));
  } catch (error) {
    const { name, code, message } = error;
    console.log(JSON.stringify({ error: { name, code, message } }));
  }
})();
`;

const PYTHON = 'import cuffi\ncuffi.parent().send("from Python")\n';

interface Outcome {
  readonly result?: unknown;
  readonly error?: { readonly name: string; readonly code?: string; readonly message: string };
}

const formats = { esm: 'program.mjs', cjs: 'program.cjs' } as const;

describe('a bundle of esbuild', () => {
  let folder: string;
  /** What users have: the package where they bundle, and koffi where the bundle runs. */
  let bundled: string;
  let external: string;
  let bare: string;

  /** Installs a package in a folder. */
  const install = (name: string, into: string, from = join(root, 'node_modules', name)): void => {
    mkdirSync(join(into, 'node_modules'), { recursive: true });
    symlinkSync(from, join(into, 'node_modules', name));
  };

  before(async () => {
    folder = mkdtempSync(join(tmpdir(), 'cuffi-bundles-'));
    const source = join(folder, 'source');
    const installed = join(source, 'node_modules/cuffi');
    mkdirSync(installed, { recursive: true });
    for (const name of ['dist', 'package.json', 'src/python'])
      cpSync(join(root, name), join(installed, name), { recursive: true });
    writeFileSync(join(source, 'program.ts'), program);
    bundled = join(folder, 'bundled');
    bare = join(folder, 'bare');
    external = join(folder, 'external');
    const options: BuildOptions = {
      entryPoints: [join(source, 'program.ts')],
      bundle: true,
      platform: 'node',
      target: 'node20.19',
      logLevel: 'silent',
    };
    for (const [format, name] of Object.entries(formats) as [keyof typeof formats, string][]) {
      const outfile = join(bundled, name);
      const { warnings } = await build({ ...options, format, outfile });
      assert.deepEqual(warnings, [], format);
      cpSync(outfile, join(bare, name));
      await build({
        ...options,
        format,
        outfile: join(external, name),
        external: ['cuffi', 'cuffi/*'],
      });
    }
    install('koffi', bundled);
    install('koffi', external);
    cpSync(installed, join(external, 'node_modules/cuffi'), { recursive: true });
    // A file of the program's own, where the emulated driver lies in the package.
    mkdirSync(join(bundled, 'emulator'));
    for (const extension of ['js', 'cjs', 'mjs'])
      writeFileSync(join(bundled, `emulator/index.${extension}`), "console.log('not cuffi');\n");
    writeFileSync(join(folder, 'program.py'), PYTHON);
  });

  after(() => rmSync(folder, { recursive: true, force: true }));

  function run(file: string, args: readonly string[], more: NodeJS.ProcessEnv = {}): Outcome {
    const env: NodeJS.ProcessEnv = { ...process.env, CUFFI_DRIVER: '/nowhere/libcuda.so', ...more };
    delete env['NODE_OPTIONS'];
    const { stdout, stderr, status } = spawnSync(process.execPath, [file, ...args], {
      cwd: folder,
      env,
      encoding: 'utf8',
      timeout: 60_000,
    });
    assert.equal(status, 0, `${file}\n${stdout}${stderr}`);
    return JSON.parse(stdout) as Outcome;
  }

  for (const [format, name] of Object.entries(formats)) {
    describe(format, () => {
      const runHere = (...args: readonly string[]): Outcome => run(join(bundled, name), args);

      test('finds a real driver, or says what it has tried', () => {
        assert.deepEqual(runHere('available'), { result: false });
        const { error } = runHere('devices');
        assert.deepEqual([error?.name, error?.code], ['DriverNotFoundError', 'driver-not-found']);
        assert.match(error?.message ?? '', /\/nowhere\/libcuda\.so: /);
        assert.equal(runHere('ffi').error?.code, 'library-not-found');
      });

      test('checks descriptors', () => {
        const { result } = runHere('explain');
        const { code, reason } = result as { code: string; reason: string };
        assert.equal(code, 'invalid-descriptor');
        assert.match(reason, /kind must be legacy or pool or virtual or event, not "nonsense"/);
      });

      test('looks for the compiler', () => {
        const { error } = run(join(bundled, name), ['compile'], {
          CUFFI_NVRTC: '/nowhere/libnvrtc.so',
        });
        assert.equal(error?.name, 'CompilerNotFoundError');
        assert.match(error?.message ?? '', /\/nowhere\/libnvrtc\.so/);
      });

      test('has connections to bundled children', () => {
        assert.deepEqual(runHere('peer', join(bundled, name)), { result: [100_000, 7, 'one'] });
      });

      test('has a socket for cuffi ls', () => {
        const directory = mkdtempSync(join(folder, 'run-'));
        const env = { XDG_RUNTIME_DIR: directory, CUFFI_INSPECT: '1' };
        assert.deepEqual(run(join(bundled, name), ['inspected', directory], env), {
          result: 'a socket',
        });
      });

      test('says "mark cuffi as external" for the emulated driver', () => {
        for (const action of ['available', 'devices']) {
          const { error } = run(join(bundled, name), [action], { CUFFI_DRIVER: 'emulated' });
          assert.deepEqual([error?.name, error?.code], ['NotSupportedError', 'not-supported']);
          assert.match(
            error?.message ?? '',
            /^the emulated driver .* a bundle: \S+\. To use it, mark cuffi as external \(esbuild: --external:cuffi/,
          );
        }
        const { error } = run(join(bundled, name), ['ffi'], { CUFFI_DRIVER: 'emulated' });
        assert.deepEqual([error?.name, error?.code], ['BundledError', 'bundled']);
      });

      test('says so for koffi where it is not installed', () => {
        for (const [action, code] of [
          ['available', 'not-supported'],
          ['devices', 'not-supported'],
          ['ffi', 'bundled'],
        ] as const) {
          const { error } = run(join(bare, name), [action]);
          assert.equal(error?.code, code, action);
          assert.match(
            error?.message ?? '',
            /^koffi is not found: .* Install koffi@[\d.]+ where the bundle runs, or mark cuffi as external/,
          );
        }
      });

      test('says so for the companion for Python, unless the script finds one', {
        skip: noPython,
      }, () => {
        const script = join(folder, 'program.py');
        const { PYTHONPATH: _, ...env } = process.env;
        const missing = run(join(bundled, name), ['python', script], { PYTHONPATH: '' }).error;
        assert.equal(missing?.name, 'PeerGoneError');
        assert.match(
          missing?.message ?? '',
          /the companion for Python is not in this bundle\. Mark cuffi as external/,
        );
        const PYTHONPATH = join(external, 'node_modules/cuffi/src/python');
        assert.deepEqual(run(join(bundled, name), ['python', script], { ...env, PYTHONPATH }), {
          result: 'from Python',
        });
      });

      test('with cuffi as external works as a program that was not bundled', () => {
        const file = join(external, name);
        assert.deepEqual(run(file, ['devices'], { CUFFI_DRIVER: 'emulated' }), { result: 1 });
        assert.equal(run(file, ['ffi']).error?.code, 'library-not-found');
        // koffi is a symbolic link, as package managers make them.
        assert.deepEqual(run(file, ['peer', file]), { result: [100_000, 7, 'one'] });
        if (noPython) return;
        assert.deepEqual(run(file, ['python', join(folder, 'program.py')], { PYTHONPATH: '' }), {
          result: 'from Python',
        });
      });

      test('beside an installed cuffi finds koffi and the companion there', {
        skip: noPython,
      }, () => {
        const file = join(external, `bundled-${name}`);
        cpSync(join(bundled, name), file);
        rmSync(join(external, 'node_modules/koffi'), { force: true });
        const inside = join(external, 'node_modules/cuffi');
        rmSync(join(inside, 'node_modules'), { recursive: true, force: true });
        try {
          install('koffi', inside);
          assert.equal(run(file, ['devices']).error?.name, 'DriverNotFoundError');
          assert.deepEqual(run(file, ['python', join(folder, 'program.py')], { PYTHONPATH: '' }), {
            result: 'from Python',
          });
        } finally {
          rmSync(join(inside, 'node_modules'), { recursive: true });
          install('koffi', external);
        }
      });
    });
  }
});
