/**
 * The layers, as .biome.json holds them: a tree of planted imports is linted with a copy of the
 * configuration, and each must be refused or taken as the plan of the house says.
 */
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import {
  copyFileSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  realpathSync,
  rmSync,
  writeFileSync,
} from 'node:fs';
import { createRequire } from 'node:module';
import { tmpdir } from 'node:os';
import { dirname, join, relative } from 'node:path';
import { after, before, describe, test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { plantedImports } from '../support/planted-imports.ts';

const root = fileURLToPath(new URL('../..', import.meta.url));

/** Other rules that must be on: a file that breaks each. */
const broken: readonly { readonly rule: string; readonly file: string; readonly text: string }[] = [
  {
    rule: 'nursery/noFloatingPromises',
    file: 'src/floating.ts',
    text: `const later = async (): Promise<void> => {};\nlater();\n`,
  },
  {
    rule: 'correctness/useImportExtensions',
    file: 'src/extensionless.ts',
    text: `import { x } from './errors';\nconsole.log(x);\n`,
  },
  {
    rule: 'correctness/noUnusedImports',
    file: 'src/unused-import.ts',
    text: `import { x } from './errors.ts';\n`,
  },
  {
    rule: 'correctness/noUnusedVariables',
    file: 'src/unused-variable.ts',
    text: `const x = 1;\nexport {};\n`,
  },
  {
    rule: 'suspicious/noExplicitAny',
    file: 'src/any.ts',
    text: `export const x: any = 1;\n`,
  },
  {
    rule: 'correctness/noUndeclaredDependencies',
    file: 'src/development-only.ts',
    text: `import * as x from 'fast-check';\nconsole.log(x);\n`,
  },
  {
    rule: 'correctness/noUndeclaredDependencies',
    file: 'src/undeclared.ts',
    text: `import * as x from 'picocolors';\nconsole.log(x);\n`,
  },
];

/** The ways to import: the rule must see each. */
const forms: readonly ((specifier: string) => string)[] = [
  (specifier) => `export * from '${specifier}';`,
  (specifier) => `import '${specifier}';`,
  (specifier) => `export type { T } from '${specifier}';`,
  (specifier) => `import type {} from '${specifier}';`,
  (specifier) => `await import('${specifier}');`,
];

let biome: string | undefined;
try {
  biome = createRequire(import.meta.url).resolve('@biomejs/biome/bin/biome');
} catch {
  // Only a tree without its linter has none.
}

describe('the layers', { skip: biome === undefined && '@biomejs/biome is not installed' }, () => {
  let tree: string;
  /** The lines on which a rule found an error, by `file rule`. */
  let errors: Map<string, Set<number>>;

  const plant = (file: string, text: string): void => {
    mkdirSync(join(tree, dirname(file)), { recursive: true });
    writeFileSync(join(tree, file), text);
  };

  before(() => {
    tree = realpathSync(mkdtempSync(join(tmpdir(), 'cuffi-layers-')));
    copyFileSync(join(root, '.biome.json'), join(tree, '.biome.json'));
    copyFileSync(join(root, 'package.json'), join(tree, 'package.json'));
    for (const { file, refused, allowed } of plantedImports) {
      const lines = [...refused, ...allowed].flatMap((s) => forms.map((form) => form(s)));
      plant(file, `${lines.join('\n')}\n`);
    }
    for (const { file, text } of broken) plant(file, text);
    plant('src/errors.ts', 'export const x = 1;\n');
    errors = lint(biome as string, tree);
  });

  after(() => rmSync(tree, { recursive: true, force: true }));

  for (const { file, refused, allowed } of plantedImports) {
    // Which of the forms were refused for the n-th specifier of a file.
    const found = (n: number): boolean[] => {
      const lines = errors.get(`${file} style/noRestrictedImports`) ?? new Set();
      return forms.map((_, form) => lines.has(n * forms.length + form + 1));
    };

    test(`${file} may not import ${refused.join(', ')}`, () => {
      for (const [n, specifier] of refused.entries())
        assert.deepEqual(
          found(n),
          forms.map(() => true),
          specifier,
        );
    });
    test(`${file} may import ${allowed.join(', ')}`, () => {
      for (const [n, specifier] of allowed.entries())
        assert.deepEqual(
          found(refused.length + n),
          forms.map(() => false),
          specifier,
        );
    });
  }

  for (const { rule, file } of broken) {
    test(`${rule} is an error (${file})`, () => assert.ok(errors.has(`${file} ${rule}`)));
  }
});

describe('an index.ts', () => {
  const isEntry = (text: string): boolean =>
    /^(export (type )?(\*( as \w+)?|\{[^{}]*\}) from '[^']+';\s*)*$/.test(
      text.replaceAll(/\/\*[\s\S]*?\*\/|\/\/.*$/gm, '').trimStart(),
    );

  for (const file of ['ffi', 'src', ...rooms()].map((room) => `${room}/index.ts`)) {
    if (!existsSync(join(root, file))) continue;
    test(`${file} only re-exports`, () => {
      assert.ok(isEntry(readFileSync(join(root, file), 'utf8')));
    });
  }

  test('is told from a file with code in it', () => {
    assert.ok(
      isEntry(`// C\n/** D */\nexport * from './a.ts';\nexport { type A, b } from './b.ts';\n`),
    );
    assert.ok(!isEntry(`import './a.ts';\n`));
    assert.ok(!isEntry(`export * from './a.ts';\nexport const b = 1;\n`));
    assert.ok(!isEntry(`export { a };\n`));
  });
});

/** The folders in ffi/ and src/, whatever their depth. */
function rooms(): string[] {
  return ['ffi', 'src'].flatMap((top) =>
    readdirSync(join(root, top), { recursive: true, withFileTypes: true })
      .filter((entry) => entry.isDirectory())
      .map((entry) => relative(root, join(entry.parentPath, entry.name))),
  );
}

/** The lines on which Biome reports an error, by `file rule`. */
function lint(biomePath: string, tree: string): Map<string, Set<number>> {
  const run = spawnSync(
    process.execPath,
    [biomePath, 'lint', '--reporter=github', '--max-diagnostics=none', '.'],
    { cwd: tree, encoding: 'utf8', maxBuffer: 64 << 20 },
  );
  const errors = new Map<string, Set<number>>();
  for (const line of run.stdout.split('\n')) {
    const match = /^::error title=lint\/([\w/]+),file=(.+?),line=(\d+),/.exec(line);
    if (!match) continue;
    const key = `${relative(tree, match[2] as string)} ${match[1]}`;
    errors.set(key, (errors.get(key) ?? new Set()).add(Number(match[3])));
  }
  assert.ok(errors.size > 0, run.stdout + run.stderr);
  return errors;
}
