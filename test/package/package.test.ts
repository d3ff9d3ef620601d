/**
 * The package as its users get it: packed, unpacked into a folder without development
 * dependencies, and used from there. Nothing here asks the registry.
 */
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import {
  cpSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs';
import { createRequire } from 'node:module';
import { tmpdir } from 'node:os';
import { basename, dirname, join } from 'node:path';
import { after, before, describe, test } from 'node:test';
import { fileURLToPath, pathToFileURL } from 'node:url';
import { packPackage } from '../support/package-folder.ts';
import { blocksOf, PAGE_VALUES, pagesWithCode, pageValues, programOf } from '../support/pages.ts';
import { MAX_PACKED_BYTES } from '../support/release.ts';
import {
  bindings,
  cjs,
  esm,
  exportedNames,
  inAnotherRealm,
  loadedScripts,
  stacks,
  types,
  withoutConnections,
  wrongNames,
} from './consumers.ts';

const root = fileURLToPath(new URL('../..', import.meta.url));
const installed = (path: string): string => join(root, 'node_modules', path);

const env: NodeJS.ProcessEnv = {
  ...process.env,
  npm_config_offline: 'true',
  npm_config_update_notifier: 'false',
};
// What the test runner and its loader tell their children is not for a user's program.
delete env['NODE_TEST_CONTEXT'];
delete env['NODE_OPTIONS'];

/** Runs a program to its end and returns what it wrote; fails with all of it. */
function run(cwd: string, file: string, args: string[], more: NodeJS.ProcessEnv = {}): string {
  const child = spawnSync(file, args, {
    cwd,
    encoding: 'utf8',
    env: { ...env, ...more },
    maxBuffer: 64 << 20,
  });
  assert.ifError(child.error);
  assert.equal(child.status, 0, `${file} ${args.join(' ')}\n${child.stdout}${child.stderr}`);
  return child.stdout;
}

// The bundle for machines without Node carries neither npm nor the checkers.
const unavailable =
  (spawnSync('sh', ['-c', 'command -v npm']).status !== 0 && 'npm is not installed') ||
  (!existsSync(installed('publint')) && 'publint is not installed');

interface Compiler {
  readonly folder: string;
  readonly version: string;
}

/** Those that .ci/run has fetched. With them every way of resolving modules is tried, else one of each. */
const fetched = process.env['CUFFI_TEST_COMPILERS']?.split(':') ?? [];

/** The installed one, one that is too old, and those that were fetched. */
const compilers: readonly Compiler[] = [
  installed('typescript'),
  installed('@arethetypeswrong/core/node_modules/typescript'),
  ...fetched,
]
  .filter((folder) => existsSync(folder))
  .map((folder) => {
    const text = readFileSync(join(folder, 'package.json'), 'utf8');
    return { folder, version: (JSON.parse(text) as { version: string }).version };
  });

const atLeast = (version: string, major: number, minor: number): boolean => {
  const [itsMajor = 0, itsMinor = 0] = version.split('.').map(Number);
  return itsMajor > major || (itsMajor === major && itsMinor >= minor);
};
const isTooOld = ({ version }: Compiler): boolean => !atLeast(version, 5, 7);

/** Other runtimes than Node, as executables: .ci/run fetches them. */
const runtimes = process.env['CUFFI_TEST_RUNTIMES']?.split(':') ?? [];
const examples = join(root, 'docs/examples');

describe('the packed package', { skip: unavailable }, () => {
  let folder: string;
  let app: string;
  let tarball: string;
  let packed: readonly string[];
  let byteLength: number;

  const node = (name: string, text: string, args: string[] = [], more?: NodeJS.ProcessEnv) => {
    writeFileSync(join(app, name), text);
    return run(app, process.execPath, [...args, name], more);
  };

  before(() => {
    assert.ok(existsSync(join(root, 'dist')), 'no dist: npm run build');
    folder = mkdtempSync(join(tmpdir(), 'cuffi-package-'));
    // What lies there would be found in place of what the package lacks.
    for (let above = folder; above !== dirname(above); above = dirname(above))
      assert.ok(!existsSync(join(above, 'node_modules')), `${above} has node_modules: remove it`);
    const made = packPackage(folder);
    tarball = made.path;
    packed = made.files;
    byteLength = made.byteLength;

    app = join(folder, 'app');
    mkdirSync(join(app, 'node_modules/cuffi'), { recursive: true });
    run(app, 'tar', ['-xzf', tarball, '--strip-components=1', '-C', 'node_modules/cuffi']);
    mkdirSync(join(app, 'node_modules/@types'));
    for (const name of ['koffi', '@types/node'])
      symlinkSync(installed(name), join(app, 'node_modules', name));
    writeFileSync(join(app, 'package.json'), '{ "private": true }\n');
  });

  after(() => rmSync(folder, { recursive: true, force: true }));

  test('holds the build, the sources that its maps point to, the pages and the examples', (t) => {
    const expected = [
      /^dist\/.+\.(js|d\.ts|d\.ts\.map)$/,
      /^(ffi|src)\/.+\.ts$/,
      /^src\/python\/(cuffi\/(\w+\.py|py\.typed)|cuffi_build\.py|pyproject\.toml)$/,
      /^src\/protocol\/protocol\.json$/,
      /^docs\/[\w-]+\.(md|svg)$/,
      /^bench\/results\/nvidia-h100\/[\w.-]+\.svg$/,
      /^docs\/examples\/[\w-]+\.(ts|py)$/,
      /^(package\.json|LICENSE|README\.md|CHANGELOG\.md|\.github\/SECURITY\.md)$/,
    ];
    assert.deepEqual(
      packed.filter((path) => !expected.some((pattern) => pattern.test(path))),
      [],
    );
    for (const path of [
      'LICENSE',
      'package.json',
      'ffi/index.ts',
      'src/index.ts',
      'src/python/cuffi/__init__.py',
      'src/python/cuffi/_protocol.py',
      'src/python/cuffi/_emulated.py',
      'src/python/cuffi/py.typed',
      'src/python/pyproject.toml',
      'src/python/cuffi_build.py',
      'src/protocol/protocol.json',
      'docs/guide.md',
      'docs/examples/01-devices.ts',
      '.github/SECURITY.md',
    ])
      assert.ok(packed.includes(path), path);
    const maps = packed.filter((path) => path.endsWith('.d.ts.map'));
    assert.equal(maps.length, packed.filter((path) => /^dist\/.+\.d\.ts$/.test(path)).length);
    for (const path of maps) {
      const map = JSON.parse(readFileSync(join(root, path), 'utf8')) as { sources: string[] };
      for (const source of map.sources)
        assert.ok(packed.includes(join(dirname(path), source)), `${source}, of ${path}`);
    }
    t.diagnostic(`${byteLength} bytes, ${packed.length} files`);
    assert.ok(byteLength <= MAX_PACKED_BYTES, `${byteLength} bytes are packed`);
  });

  test('has a package.json of what users need, and code that names no missing map', () => {
    const at = join(app, 'node_modules/cuffi');
    const manifest = JSON.parse(readFileSync(join(at, 'package.json'), 'utf8'));
    for (const field of ['scripts', 'devDependencies', 'knip'])
      assert.equal(manifest[field], undefined, field);
    for (const field of ['repository', 'homepage', 'bugs', 'engines', 'os', 'dependencies'])
      assert.ok(manifest[field], field);
    for (const path of packed.filter((name) => name.endsWith('.js')))
      assert.doesNotMatch(readFileSync(join(at, path), 'utf8'), /sourceMappingURL/, path);
  });

  test('has pages whose links lead to files of the package, but for what is only in the repository', () => {
    const inRepository =
      /^((bench|test|\.github\/workflows)\/|docs\/testing\.md|\.github\/CONTRIBUTING\.md)/;
    const broken = packed
      .filter((path) => path.endsWith('.md'))
      .flatMap((path) =>
        [
          ...readFileSync(join(root, path), 'utf8').matchAll(
            /\]\((?![a-z]+:)([^)\s#]+)(?:#[^)\s]*)?\)/g,
          ),
        ]
          .map(([, link]) => join(dirname(path), String(link)))
          .filter((to) => !inRepository.test(to) && !packed.some((file) => file.startsWith(to)))
          .map((to) => `${path}: ${to}`),
      );
    assert.deepEqual(broken, []);
  });

  test('has every picture that its pages show, and no other', () => {
    const shown = packed
      .filter((path) => path.endsWith('.md'))
      .flatMap((path) =>
        [...readFileSync(join(root, path), 'utf8').matchAll(/!\[[^\]]*\]\(([^)\s]+)\)/g)].map(
          ([, link]) => join(dirname(path), String(link)),
        ),
      );
    assert.ok(shown.length >= 10, shown.join());
    assert.deepEqual(packed.filter((path) => path.endsWith('.svg')).sort(), shown.sort());
  });

  test('is imported as ES modules', () => {
    assert.equal(node('esm.mjs', esm), 'ok\n');
  });

  test('exports classes and functions that have the names of the source', () => {
    assert.equal(node('names.mjs', wrongNames), '\n');
  });

  test('is loaded by require()', () => {
    assert.equal(node('cjs.cjs', cjs), 'ok\n');
  });

  test('is imported from TypeScript run by tsx', () => {
    const tsx = pathToFileURL(createRequire(import.meta.url).resolve('tsx')).href;
    assert.equal(node('esm.mts', esm, ['--import', tsx]), 'ok\n');
  });

  const typeCheck = (compiler: string, extension: string, options: string): string[] => {
    const file = `types.${extension}`;
    writeFileSync(join(app, file), types);
    return [
      join(compiler, 'bin/tsc'),
      ...`--noEmit --strict --target es2022 ${options} ${file}`.split(' '),
    ];
  };

  for (const compiler of compilers.filter((one) => !isTooOld(one))) {
    const { version, folder: tsc } = compiler;
    test(`type-checks with TypeScript ${version}, the package's own declarations with it`, () => {
      const checked = (extension: string, options: string): void => {
        run(app, process.execPath, typeCheck(tsc, extension, `${options} --types node`));
      };
      // The declarations of TypeScript itself are not checked: they take most of the time.
      checked('mts', '--module nodenext --skipDefaultLibCheck');
      if (fetched.length === 0) return;
      checked('mts', '--module esnext --moduleResolution bundler');
      // Older ones refuse every require() of an ES module.
      if (atLeast(version, 5, 8)) checked('cts', '--module nodenext');
    });
  }

  for (const { version, folder: tsc } of compilers.filter(isTooOld)) {
    test(`tells TypeScript ${version} at each import that it is too old`, () => {
      const others = fetched.length > 0 ? ['esnext --moduleResolution bundler'] : [];
      for (const module of ['nodenext', ...others]) {
        // Without the declarations of browsers, which no import needs and which take a third of the time.
        const options = `--module ${module} --skipLibCheck --types node --lib es2022`;
        const args = typeCheck(tsc, 'mts', options);
        const { stdout, status } = spawnSync(process.execPath, args, {
          cwd: app,
          encoding: 'utf8',
        });
        assert.notEqual(status, 0);
        const named = /TS2306: .*needs-typescript-5\.7-or-newer\.d\.ts' is not a module/g;
        assert.equal(stdout.match(named)?.length, 4, `--module ${module}\n${stdout}`);
      }
    });
  }

  test('the code in the documents compiles under the options of tsc --init', () => {
    const entries = JSON.parse(node('exports.mjs', exportedNames)) as Record<string, string[]>;
    const folderOfSnippets = join(app, 'snippets');
    mkdirSync(folderOfSnippets);
    writeFileSync(join(folderOfSnippets, PAGE_VALUES), pageValues);
    writeFileSync(join(folderOfSnippets, 'package.json'), JSON.stringify({ type: 'module' }));
    const blocks = pagesWithCode.flatMap(blocksOf).filter(({ isTypeScript }) => isTypeScript);
    for (const block of blocks) {
      const name = block.place.replace(/[^\w]/g, '-');
      writeFileSync(join(folderOfSnippets, `${name}.mts`), programOf(block, entries));
    }
    assert.ok(blocks.length >= 25, `only ${blocks.length} blocks were found`);
    // As TypeScript 7 writes them, with the types that every program of Node's needs.
    const compilerOptions = {
      module: 'nodenext',
      target: 'esnext',
      types: ['node'],
      noUncheckedIndexedAccess: true,
      exactOptionalPropertyTypes: true,
      strict: true,
      verbatimModuleSyntax: true,
      isolatedModules: true,
      noUncheckedSideEffectImports: true,
      moduleDetection: 'force',
      skipLibCheck: true,
      allowImportingTsExtensions: true,
      noEmit: true,
    };
    writeFileSync(join(folderOfSnippets, 'tsconfig.json'), JSON.stringify({ compilerOptions }));
    run(folderOfSnippets, process.execPath, [join(installed('typescript'), 'bin/tsc')]);
  });

  // Without @types/node, the declarations of AbortSignal and Disposable are the user's to bring.
  test('type-checks in a project without @types/node', () => {
    run(
      app,
      process.execPath,
      typeCheck(installed('typescript'), 'mts', '--module nodenext --skipLibCheck'),
    );
  });

  test('asks for no driver when it is imported, and says what is missing when it is used', () => {
    const more = { CUFFI_DRIVER: '/nonexistent/libcuda.so.1' };
    assert.equal(node('nodriver.mjs', bindings, [], more), 'LibraryNotFoundError\n');
  });

  let loaded: Readonly<Record<'builtins' | 'atImport' | 'afterUse', string[]>> | undefined;
  /** What the same program finds, run once for the tests of it. */
  const findLoaded = (): NonNullable<typeof loaded> => {
    loaded ??= JSON.parse(node('scripts.mjs', loadedScripts, [], { CUFFI_DRIVER: 'emulated' }));
    return loaded as NonNullable<typeof loaded>;
  };

  test('loads neither koffi, zod, the emulated driver nor slow modules of Node before they are used', () => {
    const { builtins, atImport, afterUse } = findLoaded();
    const seen = (scripts: string[], part: string): boolean =>
      scripts.some((url) => url.includes(part));

    assert.ok(seen(atImport, '/cuffi/dist/src/index.js'));
    assert.ok(!seen(atImport, '/zod'), 'zod');
    assert.ok(!seen(atImport, '/emulator/'), 'the emulated driver');
    assert.ok(!seen(atImport, '/koffi/'), 'koffi');
    assert.ok(builtins.includes('fs'));
    for (const name of ['crypto', 'dgram', 'child_process', 'worker_threads', 'stream'])
      assert.ok(!builtins.includes(name), `node:${name}`);
    // That they are seen once they are used shows that the list is complete.
    assert.ok(seen(afterUse, '/koffi/index.cjs'));
    assert.ok(!seen(afterUse, '/koffi/index.js'), 'koffi as several ES modules');
    assert.ok(!seen(afterUse, '/zod'), 'zod, which descriptors do not need');
    assert.ok(seen(afterUse, '/cuffi/dist/ffi/emulator/'));
  });

  test('reads few files for an import of cuffi', () => {
    const files = findLoaded().atImport.filter((url) => url.includes('/cuffi/dist/'));
    assert.ok(files.length <= 3, files.join('\n'));
  });

  test('writes values for the driver before any call of it', () => {
    const text = `import { readInt32, writeInt32 } from 'cuffi/ffi';
console.log(readInt32(writeInt32(7)));`;
    assert.equal(node('arena.mjs', text), '7\n');
  });

  test('has errors whose stacks reach the line of the program', () => {
    const printed = node('stacks.mjs', stacks, [], { CUFFI_DRIVER: 'emulated' });
    assert.deepEqual(JSON.parse(printed), []);
  });

  test('runs in Node what runs in other runtimes', () => {
    const printed = node('runtime.mjs', withoutConnections, [], { CUFFI_DRIVER: 'emulated' });
    assert.match(printed, /^ok \{(?!.*(not-supported|ENOSYS))/);
  });

  test('runs in a realm of its own, as Jest gives one to each file of tests', () => {
    const flags = ['--experimental-vm-modules', '--no-warnings'];
    const emulated = { CUFFI_DRIVER: 'emulated' };
    assert.equal(node('realm.mjs', inAnotherRealm, flags, emulated), 'ok\n');
  });

  for (const runtime of runtimes) {
    const name = basename(runtime);
    const args = name === 'deno' ? ['run', '-A'] : [];
    const options = { env: { ...env, CUFFI_DRIVER: 'emulated' }, timeout: 60_000 };

    test(`runs in ${name}, but for connections, which are refused`, () => {
      writeFileSync(join(app, 'runtime.mjs'), withoutConnections);
      const refused = ['spawnPeer', 'parentPeer', 'listen', 'connect'];
      assert.equal(
        run(app, runtime, [...args, 'runtime.mjs'], options.env),
        `ok ${JSON.stringify({
          ...Object.fromEntries(refused.map((way) => [way, 'not-supported'])),
          watchFd: 'ENOSYS',
        })}\n`,
      );
    });

    test(`runs the examples in ${name}, but for those with connections`, () => {
      cpSync(examples, join(app, 'examples'), { recursive: true });
      for (const file of readdirSync(examples)) {
        // Two programs that a user starts together, and a socket that the example itself watches.
        // Nor the Python programs that some examples start.
        if (/^(29-|20-)|\.py$/.test(file)) continue;
        const text = readFileSync(join(examples, file), 'utf8');
        const hasConnections = /\b(spawnPeer|spawnPython|parentPeer|listen|connect)[<(]/.test(text);
        const program = join('examples', file);
        const child = spawnSync(runtime, [...args, program], { ...options, cwd: app });
        const said = `${file}\n${child.stdout}${child.stderr}`;
        if (!hasConnections) assert.equal(child.status, 0, said);
        else {
          assert.notEqual(child.status, 0, said);
          assert.match(said, /NotSupportedError.*needs Node/);
          assert.equal(child.signal, null, said);
        }
      }
    });
  }

  test('passes publint', () => {
    run(root, process.execPath, [installed('publint/src/cli.js'), tarball, '--strict']);
  });

  test('has types that resolve as its code does', () => {
    run(root, process.execPath, [
      installed('@arethetypeswrong/cli/dist/index.js'),
      tarball,
      '--profile=esm-only',
    ]);
  });
});
