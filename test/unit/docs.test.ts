/** What the documents say of the source, compared with the source. */
import assert from 'node:assert/strict';
import { existsSync, readdirSync, readFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { describe, test } from 'node:test';
import { fileURLToPath } from 'node:url';

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
