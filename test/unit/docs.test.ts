/**
 * What the documents say of the source, compared with the source; and their code, run. How a block says
 * what it is and what it prints: ../support/pages.ts.
 */
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { existsSync, readdirSync, readFileSync } from 'node:fs';
import { delimiter, dirname, join } from 'node:path';
import { after, before, describe, test } from 'node:test';
import { fileURLToPath } from 'node:url';
import * as ffi from '../../ffi/index.ts';
import * as cuffi from '../../src/index.ts';
import * as ipc from '../../src/ipc/index.ts';
import * as tensors from '../../src/tensors/index.ts';
import { InTurn } from '../support/in-turn.ts';
import { PackageFolder, runPageProgram } from '../support/page-programs.ts';
import { blocksOf, consoleBlocksOf, pages, pagesWithCode, programsOf } from '../support/pages.ts';
import { noPython } from '../support/python.ts';

const root = fileURLToPath(new URL('../..', import.meta.url));
const read = (path: string): string => readFileSync(root + path, 'utf8');

describe('docs/architecture.md', () => {
  test('every path that the document names exists', () => {
    const names = [...read('docs/architecture.md').matchAll(/`([^`\s]+)`/g)].map(([, name]) =>
      String(name),
    );
    const paths = names.filter((name) => name.includes('/') || name.endsWith('.ts'));
    const entries = ['cuffi/ffi', 'cuffi/ipc', 'cuffi/tensors'];
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
    '.github/CONTRIBUTING.md',
    '.github/SECURITY.md',
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

describe('the pictures of docs', () => {
  const pictures = readdirSync(`${root}docs`).filter((name) => name.endsWith('.svg'));

  test('each is shown by a page, has a title and a text, is readable in the dark, and is small', () => {
    assert.ok(pictures.length >= 5, pictures.join());
    const shown = ['README.md', ...readdirSync(`${root}docs`).map((name) => `docs/${name}`)]
      .filter((name) => name.endsWith('.md'))
      .flatMap((page) =>
        [...read(page).matchAll(/!\[[^\]]+\]\(([\w./-]+\.svg)\)/g)].map(([, link = '']) =>
          join(dirname(page), link),
        ),
      );
    for (const name of pictures) {
      const text = read(`docs/${name}`);
      assert.ok(shown.includes(`docs/${name}`), `no page shows ${name}`);
      assert.match(text, /<title id="title">.+<\/title>\n {2}<desc id="text">.+<\/desc>/, name);
      assert.match(text, /@media \(prefers-color-scheme: dark\)/, name);
      // They are in the package.
      assert.ok(text.length < 6000, `${name} has ${text.length} characters`);
    }
  });

  test('each names the classes of its style, and no other', () => {
    for (const name of pictures) {
      const text = read(`docs/${name}`);
      const [style = ''] = /<style>.*<\/style>/s.exec(text) ?? [];
      const styled = new Set([...style.matchAll(/\.([a-z]+)\b/g)].map(([, found]) => found));
      const used = new Set([...text.matchAll(/class="([a-z]+)"/g)].map(([, found]) => found));
      assert.deepEqual([...styled].sort(), [...used].sort(), name);
    }
  });
});

describe('docs/errors.md', () => {
  test('the table lists the code of every error class and every cause of an IpcError', () => {
    const source = read('src/errors.ts') + read('ffi/library.ts') + read('ffi/package.ts');
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

describe('docs/troubleshooting.md', () => {
  const source = readdirSync(`${root}src`, { recursive: true })
    .map((name) => `src/${name}`)
    .concat(readdirSync(`${root}ffi`, { recursive: true }).map((name) => `ffi/${name}`))
    .filter((name) => name.endsWith('.ts'))
    .map((name) => read(name))
    .join('\n')
    // A text that is written in parts is one text.
    .replace(/'\s*\+\s*'/g, '')
    .replace(/\\'/g, "'");

  test('every message and every code that it explains is one of the source', () => {
    const rows = [...read('docs/troubleshooting.md').matchAll(/^\| `([^`]+)`/gm)];
    const texts = rows.map(([, text]) => String(text));
    assert.ok(texts.length > 40, `only ${texts.length} messages were found`);
    // TypeScript's own words, about the name of a file here.
    const others = ['is not a module'];
    assert.deepEqual(
      texts.filter((text) => !others.includes(text) && !source.includes(text)),
      [],
    );
  });

  test('every warning of the source is explained', () => {
    const emitted = [...source.matchAll(/code: '(CUFFI_[A-Z_]+)'/g)].map(([, code]) => code);
    assert.ok(emitted.length >= 6);
    const page = read('docs/troubleshooting.md');
    assert.deepEqual(
      emitted.filter((code) => !page.includes(`| \`${code}\` |`)),
      [],
    );
  });
});

describe('the figures of README.md', () => {
  test('each is in the report of the committed results, and so are the machine and the date', () => {
    const report = read('bench/results/nvidia-h100/report.md');
    const rowsOf = (title: string): string[] =>
      (report.split(`\n### ${title}\n`)[1] ?? '').split('\n### ')[0]?.match(/^\|.*\|$/gm) ?? [];
    const hasRow = (title: string, size: string, figure: string): boolean =>
      rowsOf(title).some((row) => row.startsWith(`| ${size} `) && row.includes(` ${figure} `));
    const rows = [...read('README.md').matchAll(/^\| (.+) \| ([\d.]+ us) \| ([\d.]+ [um]s) \|$/gm)];
    assert.ok(rows.length >= 9, `only ${rows.length} rows were found`);
    const wrong = rows.flatMap(([, way = '', small = '', large = '']) => {
      const title = way.includes('channel') ? 'channel.roundTrip' : 'hand-over.mapped';
      return hasRow(title, '1 MiB', small) && hasRow(title, '1 GiB', large) ? [] : [way];
    });
    assert.deepEqual(wrong, []);
    const [, first = ''] = /takes longer: ([\d.]+ us)/.exec(read('README.md')) ?? [];
    assert.ok(hasRow('hand-over.first.legacy', '1 GiB', first), first);
    const { machine } = JSON.parse(read('bench/results/nvidia-h100.json'));
    const { gpu, driverVersion, node, date } = machine;
    const of = `One ${gpu}, driver ${driverVersion}, Node ${node.slice(1)}, ${date.slice(0, 10)}`;
    assert.ok(read('README.md').includes(of), of);
  });
});

describe('the table of environment variables in README.md', () => {
  test('it has every variable of the source, and no other', () => {
    const names = new Set<string>();
    for (const folder of ['src', 'ffi'])
      for (const name of readdirSync(root + folder, { recursive: true }) as string[]) {
        if (!/\.(ts|py)$/.test(name)) continue;
        const text = read(`${folder}/${name}`);
        for (const [found] of text.matchAll(/\bCUFFI_[A-Z_]*[A-Z]\b/g)) names.add(found);
        for (const [, code] of text.matchAll(/code: '(CUFFI_[A-Z_]+)'/g))
          warnings.add(String(code));
      }
    const listed = [...read('README.md').matchAll(/^\| `(CUFFI_[A-Z_]+)` \|/gm)];
    assert.deepEqual(
      listed.map(([, name]) => String(name)).sort(),
      [...names].filter((name) => !warnings.has(name) && name !== OF_CHILDREN).sort(),
    );
  });

  /** Codes of warnings look like variables. */
  const warnings = new Set<string>();
  /** Set by cuffi for the processes that it starts. */
  const OF_CHILDREN = 'CUFFI_PARENT';
});

describe('the code of README.md and docs/*.md', () => {
  const exported = Object.fromEntries(
    Object.entries({ cuffi, 'cuffi/ipc': ipc, 'cuffi/tensors': tensors, 'cuffi/ffi': ffi }).map(
      ([entry, names]) => [entry, Object.keys(names)],
    ),
  );
  const inTurn = new InTurn();
  let folder: PackageFolder;

  before(() => {
    folder = new PackageFolder();
  });
  after(async () => {
    await inTurn[Symbol.asyncDispose]();
    folder[Symbol.dispose]();
  });

  test('the pages that have code are found', () => {
    assert.ok(pagesWithCode.length >= 7, pagesWithCode.join());
  });

  for (const page of pagesWithCode)
    test(`${page}: every block runs and prints what it shows`, { timeout: 60_000 }, async (t) => {
      for (const program of programsOf(page, 'own')) {
        const hasPython = program.blocks.some(({ isPython }) => isPython);
        if (hasPython && noPython) t.diagnostic(`${program.name}: ${noPython}`);
        else await runPageProgram(program, folder, { exported, inTurn });
      }
    });

  for (const { place, commands } of pages.flatMap(consoleBlocksOf))
    test(`${place}: the commands print what is shown`, () => {
      // One shell for the block: what a command exports, the next ones see.
      const mark = '-- next --';
      const script = commands.map(({ command }) => `${command}\necho '${mark}'`).join('\n');
      const { CUFFI_DRIVER: _, ...env } = process.env;
      const { stdout, stderr, status } = spawnSync('sh', ['-e', '-c', script], {
        cwd: folder.path,
        env: { ...env, PATH: `${dirname(process.execPath)}${delimiter}${env['PATH']}` },
        encoding: 'utf8',
        timeout: 60_000,
      });
      assert.equal(status, 0, stderr);
      const printed = stdout.split(`${mark}\n`).slice(0, -1);
      assert.deepEqual(
        printed,
        commands.map(({ shown }) => shown),
      );
    });

  test('every block of Python compiles', { skip: noPython }, () => {
    const blocks = pagesWithCode.flatMap(blocksOf).filter(({ isPython }) => isPython);
    assert.ok(blocks.length >= 5);
    const program =
      'import json, sys\nfor b in json.load(sys.stdin): compile(b["code"], b["place"], "exec")';
    const { status, stderr } = spawnSync('python3', ['-W', 'error', '-c', program], {
      input: JSON.stringify(blocks),
      encoding: 'utf8',
    });
    assert.equal(status, 0, stderr);
  });
});
