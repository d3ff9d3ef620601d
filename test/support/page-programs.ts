/** Runs the programs of the pages: see pages.ts. */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { mkdirSync, mkdtempSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { delimiter, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { transformSync } from 'esbuild';
import { companionPath } from '../../src/python/companion.ts';
import { canShareProcess, type InTurn, type Order, type Printed } from './in-turn.ts';
import {
  type Block,
  type Exported,
  PAGE_VALUES,
  type PageProgram,
  pageValues,
  programOf,
} from './pages.ts';
import { startProcess } from './program.ts';

const root = fileURLToPath(new URL('../..', import.meta.url));

const compiledName = (path: string): string => path.replace(/\.m?ts$/, '.mjs');

const isTest = (path: string): boolean => /\.test\.m?[tj]s$/.test(path);

/** Writes a file; TypeScript as JavaScript, and what it names accordingly. */
export function writeCompiled(path: string, code: string): void {
  if (!/\.m?ts$/.test(path)) {
    writeFileSync(path, code);
    return;
  }
  const { code: script } = transformSync(code, {
    loader: 'ts',
    target: 'node20.19',
    format: 'esm',
    sourcefile: path,
  });
  writeFileSync(compiledName(path), script.replace(/(["']\.\/[\w-]+)\.m?ts(?=["'])/g, '$1.mjs'));
}

/** An empty folder in which programs find the package. */
export class PackageFolder implements Disposable {
  readonly path: string;

  constructor() {
    this.path = mkdtempSync(join(tmpdir(), 'cuffi-pages-'));
    mkdirSync(join(this.path, 'node_modules'));
    symlinkSync(root, join(this.path, 'node_modules/cuffi'));
  }

  /** Makes a folder in it. Returns its path. */
  make(name: string): string {
    const made = join(this.path, name.replace(/[^a-z0-9]+/gi, '-'));
    mkdirSync(made, { mode: 0o700 });
    return made;
  }

  [Symbol.dispose](): void {
    rmSync(this.path, { recursive: true });
  }
}

export interface RunOptions {
  /** What blocks may use without importing it. */
  readonly exported?: Exported;
  readonly timeout?: number;
  /** Whether it may write to stderr, as some libraries do. */
  readonly mayComplain?: boolean;
  /** Where one of its files runs, if it can; the others have processes of their own. */
  readonly inTurn?: InTurn;
}

/** Runs a program in a folder of its own, and compares what it prints with what the page shows. */
export async function runPageProgram(
  { name, blocks }: PageProgram,
  folder: PackageFolder,
  { exported = {}, timeout = 20_000, mayComplain = false, inTurn }: RunOptions = {},
): Promise<void> {
  const directory = folder.make(name);
  writeCompiled(join(directory, PAGE_VALUES), pageValues);
  const files = blocks.map(({ file = 'block.ts' }) => file);
  for (const [at, block] of blocks.entries())
    writeCompiled(
      join(directory, String(files[at])),
      block.isPython ? block.code : programOf(block, exported),
    );
  const isNamed = (file: string): boolean =>
    blocks.some((block) => block.file !== file && names(block.code, file));
  const started = files.filter((file) => !isNamed(file));
  const place = String(blocks[0]?.place);
  const canShare = inTurn && blocks.every(({ code }) => canShareProcess(code));
  const shared = canShare
    ? started.find((file) => !file.endsWith('.py') && !isTest(file))
    : undefined;
  const printed = await Promise.all(
    started.map(async (file) => {
      const path = compiledName(join(directory, file));
      const env = { XDG_RUNTIME_DIR: directory, CUFFI_CACHE: 'off' };
      const { text, complaints, ending } =
        inTurn && file === shared
          ? await inTurn.run({ path, directory, env }, timeout)
          : await run({ path, directory, env }, timeout);
      const said = `${place}: ${file} ended with ${ending}:\n${text}${complaints}`;
      assert.ok(ending === 0 && (mayComplain || complaints === ''), said);
      return { lines: text.split('\n').slice(0, -1), complaints };
    }),
  );
  compare(
    blocks,
    printed.flatMap(({ lines }) => lines),
    printed.map(({ complaints }) => complaints).join(''),
  );
}

const names = (code: string, file: string): boolean =>
  code.includes(`./${file}`) || code.includes(`'${file}'`);

async function run({ path, directory, env }: Order, timeout: number): Promise<Printed> {
  const python = [process.env['PYTHONPATH'], companionPath()].filter(Boolean);
  const isPython = path.endsWith('.py');
  // The exit code says whether they pass.
  const ofTests = ['--test-reporter=dot', `--test-reporter-destination=${path}.report`];
  const args = isTest(path) ? [...ofTests, path] : [path];
  const child = startProcess(isPython ? 'python3' : process.execPath, args, {
    stdio: ['ignore', 'pipe', 'pipe'],
    cwd: directory,
    env: {
      ...process.env,
      ...env,
      ...(isPython && { PYTHONPATH: python.join(delimiter) }),
      // Otherwise it would report to the runner of the test that runs it.
      ...(isTest(path) && { NODE_TEST_CONTEXT: undefined }),
    },
    timeout,
  });
  let [text, complaints] = ['', ''];
  child.stdout.on('data', (data) => (text += data));
  child.stderr.on('data', (data) => (complaints += data));
  const [code, signal] = await once(child, 'close');
  return { text, complaints, ending: signal ?? code };
}

/** Compares what was printed with what the page shows, in any order: several processes print. */
function compare(blocks: readonly Block[], printed: readonly string[], complaints: string): void {
  const left = [...printed];
  for (const { place, text } of blocks.flatMap(({ shown }) => shown)) {
    const at = left.indexOf(text);
    const all = `${left.join(' | ') || 'nothing'}\n${complaints}`;
    assert.ok(at >= 0, `${place} shows “${text}”. Printed is: ${all}`);
    left.splice(at, 1);
  }
  assert.ok(
    left.length === 0,
    `${blocks[0]?.place} prints, but does not show: ${left.join(' | ')}`,
  );
}
