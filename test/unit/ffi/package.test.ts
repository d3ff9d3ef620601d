import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { describe, test } from 'node:test';
import { fileURLToPath } from 'node:url';
import {
  BundledError,
  isBundled,
  loadDependency,
  loadModule,
  packageFolder,
  packageName,
  packageVersion,
} from '../../../ffi/package.ts';

const root = fileURLToPath(new URL('../../..', import.meta.url)).replace(/\/$/, '');
const manifest = JSON.parse(readFileSync(`${root}/package.json`, 'utf8')) as {
  version: string;
  dependencies: Record<string, string>;
};

// In a bundle: test/package/bundles.test.ts.
describe('the package', () => {
  test('knows its folder and version', () => {
    assert.equal(isBundled(), false);
    assert.equal(packageFolder(), root);
    assert.equal(packageVersion(), manifest.version);
    assert.equal(packageName(), `cuffi ${manifest.version} in ${root}`);
  });

  test('loads its modules and its dependency', () => {
    assert.ok('createEmulatedDriver' in (loadModule('./emulator/index', 'the driver') as object));
    assert.throws(() => loadModule('./emulator/nothing', 'nothing'), { code: 'MODULE_NOT_FOUND' });
    const { version } = loadDependency('koffi', '0') as { version: string };
    assert.equal(version, manifest.dependencies['koffi']);
  });

  test('names the version of koffi that package.json has', () => {
    const source = readFileSync(`${root}/ffi/koffi.ts`, 'utf8');
    assert.equal(/VERSION = '(.*)'/.exec(source)?.[1], manifest.dependencies['koffi']);
    assert.ok(
      readFileSync(`${root}/docs/bundlers.md`, 'utf8').includes(
        `koffi@${manifest.dependencies['koffi']}`,
      ),
    );
  });
});

describe('BundledError', () => {
  test('says what is missing, where, and what to do', () => {
    const error = new BundledError('a part is loaded late', 'Do this.');
    assert.equal(error.name, 'BundledError');
    assert.equal(error.code, 'bundled');
    assert.match(error.message, /^a part is loaded late, and this is a bundle: \/\S+\. Do this\.$/);
  });
});
