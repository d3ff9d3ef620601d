/** What is against a release: each obstacle in a repository of its own. */
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, before, beforeEach, describe, test } from 'node:test';
import { noPython } from '../support/python.ts';
import { buildWheel, findObstacles } from '../support/release.ts';

const unavailable = spawnSync('git', ['--version']).status !== 0 && 'git is not installed';

describe('npm run release', { skip: unavailable }, () => {
  let folder: string;
  let tree: string;
  let count = 0;

  const git = (...args: string[]): void => {
    const identity = ['-c', 'user.name=a', '-c', 'user.email=a@example.org'];
    const { status, stderr } = spawnSync('git', [...identity, ...args], {
      cwd: tree,
      encoding: 'utf8',
    });
    assert.equal(status, 0, stderr);
  };
  const write = (name: string, text: string): void => writeFileSync(join(tree, name), text);

  before(() => {
    folder = mkdtempSync(join(tmpdir(), 'cuffi-release-test-'));
  });
  after(() => rmSync(folder, { recursive: true }));

  beforeEach(() => {
    tree = join(folder, `tree-${count}`);
    count += 1;
    mkdirSync(tree);
    const repository = { url: 'git+https://example.org/Some/cuffi.git' };
    write('package.json', JSON.stringify({ version: '1.2.3', repository }));
    write('CHANGELOG.md', '# Changes\n\n## 1.2.3 - 2026-01-01\n\n## 1.2.2\n');
    git('init', '--quiet');
    git('add', '.');
    git('commit', '--quiet', '--message', 'one');
  });

  test('a clean tree whose changes have the heading of the version has no obstacle', () => {
    assert.deepEqual(findObstacles(tree), []);
    git('tag', 'v1.2.2');
    assert.deepEqual(findObstacles(tree), []);
  });

  test('a companion for Python of another version is an obstacle', () => {
    mkdirSync(join(tree, 'src/python/cuffi'), { recursive: true });
    const companion = 'src/python/cuffi/_version.py';
    for (const [its, expected] of [
      ['1.2.4', ['the companion for Python has the version “1.2.4”, not “1.2.3”']],
      ['1.2.3', []],
    ] as const) {
      write(companion, `import os\n\n__version__ = '${its}'\n`);
      git('add', '.');
      git('commit', '--quiet', '--message', its);
      assert.deepEqual(findObstacles(tree), expected);
    }
  });

  test('a changed and a new file are obstacles', () => {
    write('new.txt', '');
    assert.match(findObstacles(tree).join(), /^the tree has changes.*\n\?\? new\.txt$/);
  });

  test('changes of no version, or of another one, are obstacles', () => {
    for (const heading of ['Unreleased', '1.2.30', '1.2.2', '1.2']) {
      write('CHANGELOG.md', `# Changes\n\n## ${heading}\n\n## 1.2.3\n`);
      git('commit', '--quiet', '--all', '--message', heading);
      assert.deepEqual(findObstacles(tree), [
        `the first heading of CHANGELOG.md is “${heading}”, not “1.2.3”`,
      ]);
    }
  });

  test('a tag of the version is an obstacle, here and at the origin', () => {
    const expected = ['the tag v1.2.3 exists: 1.2.3 was released before'];
    const origin = join(folder, 'Some', 'cuffi.git');
    mkdirSync(origin, { recursive: true });
    git('init', '--quiet', '--bare', origin);
    git('remote', 'add', 'origin', origin);
    git('push', '--quiet', 'origin', 'HEAD:refs/heads/main');
    assert.deepEqual(findObstacles(tree), []);
    git('tag', 'v1.2.3');
    assert.deepEqual(findObstacles(tree), expected);
    git('push', '--quiet', 'origin', 'v1.2.3');
    git('tag', '--delete', 'v1.2.3');
    assert.deepEqual(findObstacles(tree), expected);
  });

  test('an origin that package.json does not name is an obstacle', () => {
    const other = join(folder, 'other.git');
    git('init', '--quiet', '--bare', other);
    git('remote', 'add', 'origin', other);
    assert.match(findObstacles(tree).join(), /names the repository some\/cuffi, but origin is/);
  });
});

describe('the wheel of the companion for Python', { skip: noPython }, () => {
  test('has the version of the package in its name, and the same bytes each time', () => {
    const folder = mkdtempSync(join(tmpdir(), 'cuffi-wheel-test-'));
    try {
      const made = ['one', 'two'].map((name) => {
        mkdirSync(join(folder, name));
        return buildWheel(join(folder, name));
      });
      const manifest = readFileSync(new URL('../../package.json', import.meta.url), 'utf8');
      const { version } = JSON.parse(manifest) as { version: string };
      const name = `cuffi-${version}-py3-none-any.whl`;
      assert.deepEqual(made, [join(folder, 'one', name), join(folder, 'two', name)]);
      const [first, second] = made.map((path) => readFileSync(path));
      assert.deepEqual(first, second);
    } finally {
      rmSync(folder, { recursive: true });
    }
  });
});
