/**
 * What the documents say of the source, compared with the source; and their code, run. How a block says
 * what it is and what it prints: ../support/pages.ts.
 */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import {
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { after, before, describe, test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { transformSync } from 'esbuild';
import * as ffi from '../../ffi/index.ts';
import * as cuffi from '../../src/index.ts';
import * as ipc from '../../src/ipc/index.ts';
import {
  type Block,
  blocksOf,
  PAGE_VALUES,
  pagesWithCode,
  pageValues,
  programOf,
} from '../support/pages.ts';
import { startProcess } from '../support/program.ts';

const root = fileURLToPath(new URL('../..', import.meta.url));
const read = (path: string): string => readFileSync(root + path, 'utf8');

describe('docs/architecture.md', () => {
  test('every path that the document names exists', () => {
    const names = [...read('docs/architecture.md').matchAll(/`([^`\s]+)`/g)].map(([, name]) =>
      String(name),
    );
    const paths = names.filter((name) => name.includes('/') || name.endsWith('.ts'));
    const entries = ['cuffi/ffi', 'cuffi/ipc'];
    assert.ok(paths.length > 20, `only ${paths.length} paths were found`);
    const missing = paths.filter(
      (path) => !entries.includes(path) && !existsSync(root + path.replace(/\*\.ts$/, '')),
    );
    assert.deepEqual(missing, []);
  });
});

describe('the documents', () => {
  const files = [
    'README.md',
    'CHANGELOG.md',
    'bench/benchmark.template.md',
    ...readdirSync(`${root}docs`)
      .filter((name) => name.endsWith('.md'))
      .map((name) => `docs/${name}`),
  ];
  /** As GitHub makes them of headings. */
  const anchorsOf = (path: string): string[] =>
    [...read(path).matchAll(/^#+ (.*)$/gm)].map(([, heading = '']) =>
      heading
        .toLowerCase()
        .replace(/\[(.*?)\]\(.*?\)/g, '$1')
        .replace(/[^\p{L}\p{N}_\- ]/gu, '')
        .replaceAll(' ', '-'),
    );

  test('every link leads to a file and a heading that exist', () => {
    const broken = files.flatMap((file) => {
      // The template is filled in as a page of docs.
      const folder = file.startsWith('bench/') ? 'docs' : dirname(file);
      const links = [...read(file).matchAll(/\]\((?!https?:)([^)\s]*)\)/g)];
      return links
        .filter(([, link = '']) => {
          const [path = '', anchor] = link.split('#');
          const target = path === '' ? file : join(folder, path);
          if (!existsSync(root + target)) return true;
          return anchor !== undefined && !anchorsOf(target).includes(anchor);
        })
        .map(([, link]) => `${file}: ${link}`);
    });
    assert.deepEqual(broken, []);
  });
});

describe('docs/errors.md', () => {
  test('the table lists the code of every error class and every cause of an IpcError', () => {
    const source = read('src/errors.ts') + read('ffi/library.ts');
    const ofClasses = source.matchAll(/readonly code(?:: string)? = '([a-z-]+)'/g);
    const types = source.matchAll(/export type Ipc(?:Cause|ErrorCode) =([^;]+);/g);
    const ofCauses = [...types]
      .join()
      .replace(/\/\*\*.*?\*\//g, '')
      .matchAll(/'([a-z-]+)'/g);
    const codes = new Set([...ofClasses, ...ofCauses].map(([, code]) => String(code)));
    const rows = read('docs/errors.md').matchAll(/^\| `([a-z]+(?:-[a-z]+)*)` \|/gm);
    const listed = [...rows].map(([, code]) => String(code));
    assert.deepEqual(listed.sort(), [...codes].sort());
  });
});

describe('the code of README.md and docs/*.md', () => {
  const exported = Object.fromEntries(
    Object.entries({ cuffi, 'cuffi/ipc': ipc, 'cuffi/ffi': ffi }).map(([entry, names]) => [
      entry,
      Object.keys(names),
    ]),
  );
  let folder: string;

  before(() => {
    folder = mkdtempSync(join(tmpdir(), 'cuffi-pages-'));
    mkdirSync(join(folder, 'node_modules'));
    symlinkSync(root, join(folder, 'node_modules/cuffi'));
  });
  after(() => rmSync(folder, { recursive: true }));

  /** Writes a file of TypeScript as JavaScript, and what it names accordingly. */
  function write(path: string, code: string): void {
    const { code: script } = transformSync(code, {
      loader: 'ts',
      target: 'node20.19',
      format: 'esm',
      sourcefile: path,
    });
    writeFileSync(compiledName(path), script.replace(/(["']\.\/[\w-]+)\.m?ts(?=["'])/g, '$1.mjs'));
  }

  /** Runs programs at the same time, and returns the lines that they print. */
  async function run(
    place: string,
    directory: string,
    files: readonly string[],
  ): Promise<string[]> {
    const env = { ...process.env, XDG_RUNTIME_DIR: directory, CUFFI_CACHE: 'off' };
    const printed = await Promise.all(
      files.map(async (file) => {
        const child = startProcess(process.execPath, [compiledName(join(directory, file))], {
          stdio: ['ignore', 'pipe', 'pipe'],
          cwd: directory,
          env,
          timeout: 20_000,
        });
        let [text, complaints] = ['', ''];
        child.stdout.on('data', (data) => (text += data));
        child.stderr.on('data', (data) => (complaints += data));
        const [code, signal] = await once(child, 'close');
        const ending = `${place}: ${file} ended with ${signal ?? code}:\n${text}${complaints}`;
        assert.ok(code === 0 && complaints === '', ending);
        return text.split('\n').slice(0, -1);
      }),
    );
    return printed.flat();
  }

  /** Compares what was printed with what the page shows, in any order: several processes print. */
  function compare(blocks: readonly Block[], printed: readonly string[]): void {
    const left = [...printed];
    for (const { place, text } of blocks.flatMap(({ shown }) => shown)) {
      const at = left.indexOf(text);
      assert.ok(at >= 0, `${place} shows “${text}”. Printed is: ${left.join(' | ') || 'nothing'}`);
      left.splice(at, 1);
    }
    assert.ok(
      left.length === 0,
      `${blocks[0]?.place} prints, but does not show: ${left.join(' | ')}`,
    );
  }

  const compiledName = (path: string): string => path.replace(/\.m?ts$/, '.mjs');

  test('the pages that have code are found', () => {
    assert.ok(pagesWithCode.length >= 7, pagesWithCode.join());
  });

  for (const page of pagesWithCode)
    test(`${page}: every block runs and prints what it shows`, { timeout: 60_000 }, async () => {
      const programs = new Map<string, Block[]>();
      for (const block of blocksOf(page).filter(({ isFragment }) => !isFragment)) {
        const name = block.file === undefined ? block.place : `${page}, ${block.heading}`;
        programs.set(name, [...(programs.get(name) ?? []), block]);
      }
      for (const [name, blocks] of programs) {
        const directory = join(folder, name.replace(/[^a-z0-9]+/gi, '-'));
        mkdirSync(directory, { mode: 0o700 });
        write(join(directory, PAGE_VALUES), pageValues);
        const files = blocks.map(({ file = 'block.ts' }) => file);
        for (const [at, block] of blocks.entries())
          write(join(directory, String(files[at])), programOf(block, exported));
        const isNamed = (file: string): boolean =>
          blocks.some((block) => block.file !== file && block.code.includes(`./${file}`));
        const started = files.filter((file) => !isNamed(file));
        compare(blocks, await run(String(blocks[0]?.place), directory, started));
      }
    });
});
