/** What is against a release: each obstacle in a repository of its own. */
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { createHash } from 'node:crypto';
import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, before, beforeEach, describe, test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { noPython } from '../support/python.ts';
import {
  buildWheel,
  findObstacles,
  findPublishingObstacles,
  PLACEHOLDER_REPOSITORY,
  writeSbom,
} from '../support/release.ts';

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

const root = fileURLToPath(new URL('../..', import.meta.url));
const noRepository =
  unavailable ||
  (spawnSync('git', ['ls-files', '--error-unmatch', 'package.json'], { cwd: root }).status !== 0 &&
    'this is no checkout');
const read = (path: string): string => readFileSync(join(root, path), 'utf8');

describe('npm run release -- --publish', () => {
  const own = 'git+https://github.com/someone/cuffi.git';
  const workflow = { ACTIONS_ID_TOKEN_REQUEST_URL: 'https://example.org' };

  test('publishes in a workflow with an identity, by an npm that needs no token', () => {
    for (const version of ['11.5.1', '11.6.0', '12.0.0'])
      assert.deepEqual(findPublishingObstacles(own, version, workflow), []);
    for (const version of ['11.5.0', '11.4.9', '10.9.9'])
      assert.deepEqual(findPublishingObstacles(own, version, workflow), [
        `npm ${version} needs a token to publish: use 11.5.1 or later`,
      ]);
    assert.match(
      findPublishingObstacles(own, '11.5.1', {}).join(),
      /^npm publishes without a token/,
    );
  });

  test('the placeholder of a repository is an obstacle, until somebody has made one', () => {
    const { repository } = JSON.parse(read('package.json')) as { repository: { url: string } };
    const found = findPublishingObstacles(repository.url, '12.0.0', workflow);
    assert.equal(found.length, PLACEHOLDER_REPOSITORY === undefined ? 0 : 1);
    assert.doesNotMatch(found.join(), /permission|token/);
  });

  test('all files name the repository of package.json', { skip: noRepository }, () => {
    const { repository } = JSON.parse(read('package.json')) as { repository: { url: string } };
    const [own = ''] = /github\.com\/[^/]+\/cuffi/.exec(repository.url) ?? [];
    const { stdout } = spawnSync('git', ['grep', '-hoE', 'github\\.com/[^/ ]+/cuffi\\b'], {
      cwd: root,
      encoding: 'utf8',
    });
    const named = stdout.trim().split('\n');
    assert.ok(named.length >= 9, stdout);
    const others = named.filter((each) => each !== own && !each.includes('someone'));
    assert.deepEqual(others, []);
  });

  test('the workflow names each action by its commit, and has no token of npm', () => {
    const text = read('.github/workflows/release.yml');
    const uses = [...text.matchAll(/uses: (.*)/g)].map(([, action = '']) => action);
    assert.ok(uses.length >= 4);
    for (const action of uses)
      assert.match(action, /^[\w-]+\/[\w-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+$/);
    assert.doesNotMatch(text, /secrets\.|NODE_AUTH_TOKEN/);
    assert.match(text, /^ {2}id-token: write/m);
    assert.match(text, /gh release create .* release\/\*/);
  });
});

describe('the SBOM', () => {
  test('has the package by its hash, what it depends on, and the zod that is in it', () => {
    const folder = mkdtempSync(join(tmpdir(), 'cuffi-sbom-test-'));
    try {
      const packed = join(folder, 'package.tgz');
      writeFileSync(packed, 'bytes');
      const { version, dependencies, devDependencies } = JSON.parse(read('package.json'));
      const path = writeSbom(folder, packed);
      assert.equal(path, join(folder, `cuffi-${version}.cdx.json`));
      const sbom = JSON.parse(readFileSync(path, 'utf8'));
      assert.equal(sbom.bomFormat, 'CycloneDX');
      const { component } = sbom.metadata;
      assert.deepEqual(
        [component.name, component.version, component.purl, component.hashes],
        [
          'cuffi',
          version,
          `pkg:npm/cuffi@${version}`,
          [{ alg: 'SHA-512', content: createHash('sha512').update('bytes').digest('hex') }],
        ],
      );
      const found = (name: string) => sbom.components.find((each: Part) => each.name === name);
      assert.equal(found('koffi').version, dependencies.koffi);
      const zod = found('zod');
      assert.deepEqual([zod.version, zod.scope], [devDependencies.zod, 'required']);
      assert.match(zod.pedigree.notes, /dist\/ffi\/zod\.js/);
      assert.match(zod.hashes[0].content, /^[0-9a-f]{128}$/);
      // Nothing of what only development needs, and each part once, with its place in the tree.
      const names = sbom.components.map(({ name }: Part) => name);
      assert.deepEqual(
        names.filter((name: string) => !/^(koffi|zod|@koromix\/koffi-.+)$/.test(name)),
        [],
      );
      const refs = [component, ...sbom.components].map((each) => each['bom-ref']).sort();
      assert.deepEqual(sbom.dependencies.map(({ ref }: { ref: string }) => ref).sort(), refs);
      assert.deepEqual(
        sbom.dependencies.find(({ ref }: { ref: string }) => ref === component['bom-ref'])
          .dependsOn,
        [found('koffi')['bom-ref'], zod['bom-ref']],
      );
    } finally {
      rmSync(folder, { recursive: true });
    }
  });

  test('the build says which zod it has', () => {
    const { devDependencies } = JSON.parse(read('package.json'));
    assert.ok(read('dist/ffi/zod.js').includes(`Parts of zod ${devDependencies.zod} (`));
  });
});

interface Part {
  readonly name: string;
}
