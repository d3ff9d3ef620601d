/** The kernels of the tests: PTX for the GPU, and what the emulated driver runs in their place. */
import { mkdirSync, mkdtempSync, readdirSync, readFileSync } from 'node:fs';
import { join, relative, resolve } from 'node:path';
import { pathToFileURL } from 'node:url';
import type { BuildOptions, Plugin } from 'esbuild';
import { registerKernel } from '../../ffi/emulated-kernels.ts';
import { Module, type ModuleOptions } from '../../src/index.ts';
import { listTables } from './module-tables.ts';

/** The PTX of kernels.cu. */
export const ptx: string = readFileSync(new URL('./ptx/kernels.ptx', import.meta.url), 'utf8');

/** Loads the kernels of the tests. */
export const loadKernels = (options?: ModuleOptions): Module => Module.load(ptx, options);

registerKernel('nothing', { params: [], run() {} });

registerKernel('saxpy', {
  params: ['float32', 'pointer', 'pointer', 'uint32'],
  run({ grid, block, view }, [a, xAt, yAt, n]) {
    const count = Math.min(n, grid[0] * block[0]);
    const x = view(xAt, Float32Array, count);
    const y = view(yAt, Float32Array, count);
    for (const [i, value] of x.entries()) y[i] = a * value + (y[i] as number);
  },
});

/** What `collect` takes besides the memory that it writes them to: a parameter of every type. */
export const COLLECTED = [
  'bool',
  'int8',
  'int16',
  'int32',
  'int64',
  'uint8',
  'uint16',
  'uint32',
  'uint64',
  'float16',
  'float32',
  'float64',
  { bytes: 8 },
  'pointer',
] as const;

registerKernel('collect', {
  params: ['pointer', ...COLLECTED],
  run({ view }, [at, a, b, c, d, e, f, g, h, i, j, k, l, m, n]) {
    const to = view(at, BigInt64Array, 16);
    const bits = new DataView(new ArrayBuffer(8));
    const triple = new DataView(m.buffer, m.byteOffset);
    [a ? 1 : 0, b, c, d, e, f, g, h, i, j].forEach((value, place) => {
      to[place] = BigInt(value);
    });
    bits.setFloat32(0, k);
    to[10] = BigInt(bits.getInt32(0));
    bits.setFloat64(0, l);
    to[11] = bits.getBigInt64(0);
    to[12] = BigInt(triple.getInt32(0, true));
    to[13] = BigInt(triple.getInt16(4, true));
    to[14] = BigInt(triple.getUint8(6));
    to[15] = BigInt(n);
  },
});

registerKernel('touch_shared', {
  params: ['pointer', 'uint32'],
  run({ sharedBytes, view }, [to, byteLength]) {
    if (byteLength > sharedBytes) throw new Error('beyond the shared memory');
    view(to, Uint32Array, 1)[0] = 7;
  },
});

registerKernel('narrow', {
  params: ['pointer'],
  run({ block, view }, [to]) {
    view(to, Uint32Array, 1)[0] = block[0];
  },
});

registerKernel('trap', {
  params: [],
  run() {
    throw new Error('trap');
  },
});

registerKernel('stray', {
  params: ['pointer'],
  run({ view }, [to]) {
    view(to, Uint32Array, 1)[0] = 1;
  },
});

/** Within the project, so that packages are found from there. */
const OUT = '.out';

/** The module that loads others by its own place: the emulated driver and zod, which dist has built. */
const moved: Readonly<Record<string, string>> = { 'ffi/package.ts': 'dist/ffi/package.js' };

/** Not in one piece: this file is compiled by itself, too. */
const OWN_URL = ['import', 'meta', 'url'].join('.');

/** Modules go on to believe that they lie where their source does. */
const keepPlaces = (change: (file: string, source: string) => string): Plugin => ({
  name: 'keep-places',
  setup({ onLoad }) {
    onLoad({ filter: /\.ts$/ }, ({ path }) => {
      const file = relative('.', path);
      const source = change(file, readFileSync(path, 'utf8'));
      if (!source.includes(OWN_URL)) return { contents: source, loader: 'ts' };
      const url = JSON.stringify(pathToFileURL(resolve(moved[file] ?? path)).href);
      return { contents: source.replaceAll(OWN_URL, url), loader: 'ts' };
    });
  },
});

const COMPARED = /^test\/(unit|driver|ipc)\/.*\.test\.ts$/;

/** Has test files compare what is open before and after each test: see left-open.ts. */
function withLeftOpen(file: string, source: string): string {
  if (/^(src|ffi)\/(?!emulator)/.test(file)) return listTables(file, source);
  return COMPARED.test(file)
    ? `import { compareEachTest } from ${JSON.stringify(resolve('test/support/left-open.ts'))}; compareEachTest(); ${source}`
    : source;
}

/** Loads its drawing libraries, which take half a second, only where it draws. */
const BENCH = 'bench/main.ts';

/** What else tests start in processes of their own. */
const programs = (): string[] => [
  ...readdirSync('test', { recursive: true, encoding: 'utf8' })
    .filter((file) => /(^|\/)fixtures\/[^/]+\.ts$|^support\/(driver-process|run)\.ts$/.test(file))
    .map((file) => join('test', file)),
  ...readdirSync('docs/examples')
    .filter((file) => file.endsWith('.ts'))
    .map((file) => join('docs/examples', file)),
  ...readdirSync('bench/programs')
    .filter((file) => file.endsWith('.ts'))
    .map((file) => join('bench/programs', file)),
];

/**
 * Compiles test files, and the programs of tests unless they are compiled already, at once, which is
 * quicker than each of them compiling what it imports.
 *
 * @param within the folder where the programs are compiled already: that of the runner which runs the
 *   test that has started this one. It is removed even if this one is killed.
 * @returns the folder, which the caller removes, and the compiled file of each
 */
export async function compile(
  files: readonly string[],
  within: string | undefined,
): Promise<{ readonly folder: string; readonly compiled: readonly string[] }> {
  mkdirSync(within ?? OUT, { recursive: true });
  const folder = mkdtempSync(join(within ?? OUT, 'test-'));
  // Every program with kernels loads this file, and none of them the compiler.
  const { build } = await import('esbuild');
  const options: BuildOptions = {
    outdir: folder,
    outbase: '.',
    bundle: true,
    format: 'esm',
    platform: 'node',
    target: 'node20.19',
    packages: 'external',
    outExtension: { '.js': '.mjs' },
    sourcemap: true,
    sourcesContent: false,
    logLevel: 'warning',
    plugins: [keepPlaces((_, source) => source)],
  };
  await Promise.all([
    build({
      ...options,
      entryPoints: [...files],
      splitting: true,
      plugins: [keepPlaces(withLeftOpen)],
    }),
    ...(within === undefined
      ? [
          // One file each, and a short one: a program is started so often that reading would take much of the time.
          build({ ...options, entryPoints: programs(), minifyWhitespace: true }),
          build({ ...options, entryPoints: [BENCH], splitting: true }),
        ]
      : []),
  ]);
  return { folder, compiled: files.map((file) => join(folder, file.replace(/\.ts$/, '.mjs'))) };
}
