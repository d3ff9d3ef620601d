import { mkdirSync, mkdtempSync, readdirSync, readFileSync } from 'node:fs';
import { join, relative, resolve } from 'node:path';
import { pathToFileURL } from 'node:url';
import { build, type Plugin } from 'esbuild';

/** Within the project, so that packages are found from there. */
const OUT = '.out';

/** The one module that loads another by its own place: the emulated driver, which dist has built. */
const moved: Readonly<Record<string, string>> = { 'ffi/driver.ts': 'dist/ffi/driver.js' };

/** Modules go on to believe that they lie where their source does. */
const keepPlaces: Plugin = {
  name: 'keep-places',
  setup({ onLoad }) {
    onLoad({ filter: /\.ts$/ }, ({ path }) => {
      const source = readFileSync(path, 'utf8');
      if (!source.includes('import.meta.url')) return undefined;
      const place = resolve(moved[relative('.', path)] ?? path);
      const url = JSON.stringify(pathToFileURL(place).href);
      return { contents: source.replaceAll('import.meta.url', url), loader: 'ts' };
    });
  },
};

/** What tests start in processes of their own. */
const programs = (): string[] => [
  ...readdirSync('test', { recursive: true, encoding: 'utf8' })
    .filter((file) => /(^|\/)fixtures\/[^/]+\.ts$|^support\/peer\.ts$/.test(file))
    .map((file) => join('test', file)),
  ...readdirSync('docs/examples').map((file) => join('docs/examples', file)),
];

/**
 * Compiles test files, and the programs of tests, at once, which is quicker than each of them
 * compiling what it imports.
 *
 * @returns the folder, which the caller removes, and the compiled file of each
 */
export async function compile(
  files: readonly string[],
): Promise<{ readonly folder: string; readonly compiled: readonly string[] }> {
  mkdirSync(OUT, { recursive: true });
  const folder = mkdtempSync(join(OUT, 'test-'));
  await build({
    entryPoints: [...files, ...programs()],
    outdir: folder,
    outbase: '.',
    bundle: true,
    splitting: true,
    format: 'esm',
    platform: 'node',
    target: 'node20.19',
    packages: 'external',
    outExtension: { '.js': '.mjs' },
    sourcemap: true,
    sourcesContent: false,
    logLevel: 'warning',
    plugins: [keepPlaces],
  });
  return { folder, compiled: files.map((file) => join(folder, file.replace(/\.ts$/, '.mjs'))) };
}
