/** Rules of the linter that must be on: a tree with a file that breaks each is linted. */
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { copyFileSync, mkdirSync, mkdtempSync, realpathSync, rmSync, writeFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { tmpdir } from 'node:os';
import { dirname, join, relative } from 'node:path';
import { after, before, describe, test } from 'node:test';
import { fileURLToPath } from 'node:url';

const root = fileURLToPath(new URL('../..', import.meta.url));

/** For each rule, a file that breaks it. */
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

let biome: string | undefined;
try {
  biome = createRequire(import.meta.url).resolve('@biomejs/biome/bin/biome');
} catch {
  // Only a tree without its linter has none.
}

describe('the linter', { skip: biome === undefined && '@biomejs/biome is not installed' }, () => {
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
    for (const { file, text } of broken) plant(file, text);
    plant('src/errors.ts', 'export const x = 1;\n');
    errors = lint(biome as string, tree);
  });

  after(() => rmSync(tree, { recursive: true, force: true }));

  for (const { rule, file } of broken) {
    test(`${rule} is an error (${file})`, () => assert.ok(errors.has(`${file} ${rule}`)));
  }
});

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
