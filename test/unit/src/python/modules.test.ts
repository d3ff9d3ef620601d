/** How the companion for Python is built: one subject a module, and no circles. */
import assert from 'node:assert/strict';
import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, test } from 'node:test';
import { fileURLToPath } from 'node:url';

const folder = fileURLToPath(new URL('../../../../src/python/cuffi/', import.meta.url));
const modules = readdirSync(folder).filter((name) => name.endsWith('.py'));
const lines = (name: string): readonly string[] =>
  readFileSync(join(folder, name), 'utf8').split('\n');

/** What a module imports when it is loaded: not what only its types need, which is indented. */
function imports(name: string): readonly string[] {
  return lines(name).flatMap((line) => {
    const [, from = '', names = ''] = /^from \.(\w*) import (.*)$/.exec(line) ?? [];
    if (from !== '') return [`${from}.py`];
    return names === '' ? [] : names.split(/, | as \w+/).flatMap((one) => `${one.trim()}.py`);
  });
}

describe('the modules of the companion for Python', () => {
  test('import each other in no circle', () => {
    const done = new Set<string>();
    const visit = (name: string, path: readonly string[]): void => {
      assert.ok(!path.includes(name), [...path, name].join(' imports '));
      if (done.has(name) || !modules.includes(name)) return;
      for (const other of imports(name)) visit(other, [...path, name]);
      done.add(name);
    };
    for (const name of modules) visit(name, []);
    assert.ok(done.has('_connection.py') && imports('_connection.py').length > 10);
  });

  test('have at most 500 lines each, but for the emulated driver', () => {
    const long = modules.filter((name) => lines(name).length > 500);
    assert.deepEqual(long, ['_emulated.py']);
  });

  test('are in docs/architecture.md by the rooms that they make', () => {
    const page = readFileSync(join(folder, '../../../docs/architecture.md'), 'utf8');
    for (const [, name = ''] of page.matchAll(/`(_\w+\.py)`/g))
      assert.ok(modules.includes(name), name);
  });
});
