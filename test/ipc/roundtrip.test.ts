import assert from 'node:assert/strict';
import { once } from 'node:events';
import { describe, test } from 'node:test';
import { emulated } from '../support/driver.ts';
import { startProgram } from '../support/program.ts';

const main = new URL('../../src/cli/main.ts', import.meta.url);

/** Runs the command, as it would run from a shell. */
async function cuffi(...args: string[]): Promise<{ code: number; out: string; err: string }> {
  const child = startProgram(main, args, { stdio: ['ignore', 'pipe', 'pipe'] });
  let out = '';
  let err = '';
  child.stdout.on('data', (data) => {
    out += data;
  });
  child.stderr.on('data', (data) => {
    err += data;
  });
  const [code] = await once(child, 'close');
  return { code, out, err };
}

describe('cuffi roundtrip', () => {
  test('a buffer goes to another process and back without a copy', {
    timeout: 60_000,
  }, async () => {
    const { code, out, err } = await cuffi('roundtrip', '--elements', '2000000');
    assert.equal(code, 0, err + out);
    assert.match(out, emulated ? /^driver +emulated/ : /^driver +.*libcuda/);
    if (emulated) assert.match(out, /^shared +pool: /m);
    assert.match(out, /0 bytes copied between export and first read/);
    assert.match(out, /^No copy was made\.$/m);
    assert.match(out, /round trip: OK\n$/);
    assert.equal(err, '');
  });

  for (const [kind, way] of [
    ['legacy', 'memory'],
    ['virtual', 'virtualMemory'],
  ] as const)
    test(`${kind} memory does, and JSON says the same`, { timeout: 60_000 }, async (t) => {
      const { code, out } = await cuffi(
        'roundtrip',
        '--json',
        '--elements',
        '1000',
        '--kind',
        kind,
      );
      assert.equal(code, 0);
      const { result, support } = JSON.parse(out);
      if (!support[way].supported) {
        t.skip(support[way].reason);
        return;
      }
      assert.equal(result.kind, kind);
      assert.equal(result.ok, true);
      assert.equal(result.byteLength, 4000);
      assert.equal(result.bytesCopied, 0);
      assert.deepEqual(result.child.read, result.parent.wrote);
      assert.deepEqual(result.parent.readBack, result.child.wrote);
      assert.notDeepEqual(result.parent.wrote, result.child.wrote);
      assert.notEqual(result.parent.pid, result.child.pid);
    });
});
