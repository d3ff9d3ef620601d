/** The cache of compiled code: a result is found only if nothing that matters has changed. */
import assert from 'node:assert/strict';
import fs, {
  chmodSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  renameSync,
  rmSync,
  statSync,
  symlinkSync,
  truncateSync,
  utimesSync,
  writeFileSync,
} from 'node:fs';
import { syncBuiltinESMExports } from 'node:module';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, describe, test } from 'node:test';
import { CompileCache } from '../../../../src/kernel/compile-cache.ts';
import type { CompileRequest } from '../../../../src/kernel/compile-options.ts';
import type { Compiler } from '../../../../src/kernel/nvrtc.ts';

const folder = mkdtempSync(join(tmpdir(), 'cuffi-cache-'));
after(() => rmSync(folder, { recursive: true }));
const kept = join(folder, 'compiled');

const compiler = { identity: '13.0 /a 1 2', headerFolders: [] } as unknown as Compiler;
const request = (changes: Partial<CompileRequest> = {}): CompileRequest => ({
  compiler,
  source: '__global__ void k() {}',
  kind: 'ptx',
  options: ['--gpu-architecture=compute_90'],
  headers: {},
  names: [],
  cache: folder,
  ...changes,
});
const compiled = {
  kind: 'ptx' as const,
  code: Uint8Array.from({ length: 300 }, (_, i) => i),
  log: 'a warning: “n” is unused',
  names: new Map([['k<int>', '_Z1k']]),
};

const cacheOf = (changes?: Partial<CompileRequest>): CompileCache<'ptx' | 'cubin'> => {
  const cache = CompileCache.forRequest(request(changes));
  assert.ok(cache);
  return cache;
};

describe('CompileCache', () => {
  test('a result is read as it was written, and only its owner can read the file', () => {
    assert.equal(cacheOf().read(), undefined);
    cacheOf().write(compiled);
    assert.deepEqual(cacheOf().read(), compiled);
    const [name = '', ...others] = readdirSync(kept);
    assert.deepEqual(others, []);
    assert.equal(statSync(kept).mode & 0o777, 0o700);
    assert.equal(statSync(join(kept, name)).mode & 0o777, 0o600);
  });

  test('everything that matters is part of the key', () => {
    cacheOf().write(compiled);
    const header = join(folder, 'mine.h');
    writeFileSync(header, '#define N 1');
    const including = { source: '#include "mine.h"', options: [`-I${folder}`] };
    cacheOf(including).write(compiled);
    assert.ok(cacheOf(including).read());
    for (const changes of [
      { source: '__global__ void k() { }' },
      { kind: 'cubin' as const },
      { options: ['--gpu-architecture=compute_80'] },
      { headers: { 'a.h': '' } },
      { names: ['k'] },
      { compiler: { ...compiler, identity: '13.1 /a 1 2' } },
      { source: '__has_include("mine.h")', options: [`-I${folder}`] },
    ])
      assert.equal(cacheOf(changes).read(), undefined, JSON.stringify(Object.keys(changes)));
    writeFileSync(header, '#include "its.h"');
    assert.equal(cacheOf(including).read(), undefined);
    cacheOf(including).write(compiled);
    // A new file beside the header.
    writeFileSync(join(folder, 'its.h'), '');
    assert.equal(cacheOf(including).read(), undefined);
  });

  test('a source with includes that its text does not name is never cached', () => {
    for (const changes of [
      { source: '#define A <a.h>\n#include A' },
      { source: '# /* here */ include \\\n A' },
      { headers: { 'a.h': '#include_next <a.h>\n#include B' } },
      { source: '#if __has_include_next(<a.h>)\n# include_next <a.h>\n#endif' },
      { options: ['--use-pch=a.pch'] },
    ])
      assert.equal(CompileCache.forRequest(request(changes)), undefined, JSON.stringify(changes));
  });

  test('a damaged file is ignored and written again', () => {
    cacheOf().write(compiled);
    for (const damage of [
      (bytes: Buffer) => bytes.subarray(0, 100),
      (bytes: Buffer) => bytes.fill(1, 50, 52),
      () => Buffer.alloc(0),
    ]) {
      for (const name of readdirSync(kept)) {
        const path = join(kept, name);
        writeFileSync(path, damage(readFileSync(path)));
      }
      assert.equal(cacheOf().read(), undefined);
      cacheOf().write(compiled);
      assert.deepEqual(cacheOf().read(), compiled);
    }
  });

  test('a file that others may have written is ignored', () => {
    const elsewhere = join(folder, 'moved');
    for (const expose of [
      (path: string) => chmodSync(path, 0o622),
      (path: string) => {
        renameSync(path, elsewhere);
        symlinkSync(elsewhere, path);
      },
    ]) {
      cacheOf().write(compiled);
      assert.deepEqual(cacheOf().read(), compiled);
      for (const name of readdirSync(kept)) expose(join(kept, name));
      assert.equal(cacheOf().read(), undefined, String(expose));
      for (const name of readdirSync(kept)) rmSync(join(kept, name));
    }
  });

  test('a read-only folder is read', (t) => {
    cacheOf().write(compiled);
    t.mock.method(fs, 'utimesSync', () => {
      throw new Error('EROFS: read-only file system');
    });
    syncBuiltinESMExports();
    assert.deepEqual(cacheOf().read(), compiled);
    t.mock.restoreAll();
    syncBuiltinESMExports();
  });

  test('the least recently used files are evicted', () => {
    cacheOf().write(compiled);
    const huge = join(kept, 'huge');
    writeFileSync(huge, '');
    utimesSync(huge, 1, 1);
    cacheOf({ names: ['a'] }).write(compiled);
    assert.ok(readdirSync(kept).includes('huge'));
    // A sparse file: longer than the limit, without bytes on the disk.
    truncateSync(huge, 300 << 20);
    utimesSync(huge, 1, 1);
    cacheOf({ names: ['b'] }).write(compiled);
    assert.ok(!readdirSync(kept).includes('huge'));
    assert.deepEqual(cacheOf().read(), compiled);
  });

  test('a folder that others can write to is not used, nor one that cannot be made', () => {
    chmodSync(kept, 0o777);
    assert.equal(CompileCache.forRequest(request()), undefined);
    chmodSync(kept, 0o700);
    assert.equal(CompileCache.forRequest(request({ cache: join(folder, 'mine.h') })), undefined);
  });

  test('CUFFI_CACHE and the cache option set the folder, or disable the cache', () => {
    const before = process.env['CUFFI_CACHE'];
    try {
      process.env['CUFFI_CACHE'] = join(folder, 'elsewhere');
      cacheOf({ cache: true }).write(compiled);
      assert.equal(readdirSync(join(folder, 'elsewhere/compiled')).length, 1);
      assert.equal(CompileCache.forRequest(request({ cache: false })), undefined);
      process.env['CUFFI_CACHE'] = 'off';
      assert.equal(CompileCache.forRequest(request({ cache: true })), undefined);
      assert.equal(CompileCache.forRequest(request()), undefined);
    } finally {
      if (before === undefined) delete process.env['CUFFI_CACHE'];
      else process.env['CUFFI_CACHE'] = before;
    }
  });
});
