import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { lastWords } from '../../../../../src/ipc/peer/child-output.ts';
import { runProgram } from '../../emulate.ts';

describe('lastWords', () => {
  const stack = '    at run (file:///srv/worker.js:3:9)\n    at async file:///srv/worker.js:9:1';

  test('is the first line of the error that Node printed last', () => {
    const where = 'file:///srv/worker.js:3\n  throw error;\n  ^\n\n';
    for (const [error, words] of [
      [`TypeError: no weights\n${stack}`, 'TypeError: no weights'],
      [`Error [ERR_X]: no\n${stack} {\n  code: 'ERR_X'\n}`, 'Error [ERR_X]: no'],
      [`CudaError: it failed\nAsk for less.\n${stack}`, 'CudaError: it failed'],
      [
        `PeerGoneError: gone\n${stack} {\n  [cause]: Error: before\n  ${stack}\n}`,
        'PeerGoneError: gone',
      ],
      ["Uncaught:\n'a string'\n(Use `node --trace-uncaught ...` to show)", '(Use `node --trace'],
    ] as const)
      assert.ok(
        lastWords(
          `starting\nError: an earlier one\n${where}${error}\n\nNode.js v24.1.0\n`,
        )?.startsWith(words === '(Use `node --trace' ? 'Error: an earlier one' : words),
        error,
      );
  });

  test('is the last line of any other output, and nothing if all its lines are empty', () => {
    assert.equal(lastWords('Traceback:\n  File x\nValueError: no\n'), 'ValueError: no');
    assert.equal(lastWords('one\ntwo\n\n'), 'two');
    assert.equal(lastWords(''), undefined);
    assert.equal(lastWords('\n'), undefined);
    assert.equal(lastWords('node: bad option\nNode.js v20.1.0'), 'node: bad option');
  });
});

describe('a child of spawnPeer', () => {
  const run = (...args: readonly string[]) =>
    runProgram(new URL('../fixtures/ended-parent.ts', import.meta.url), args);

  test('has the end of its stderr in its error, and all of it in that of this process', () => {
    const { stdout, stderr } = run('throwing');
    assert.deepEqual(JSON.parse(stdout), {
      message: 'it has exited with code 1 without closing the connection: Error: no weights',
      hasStderr: true,
      isShort: true,
    });
    assert.match(stderr, /^a first line\n/);
    assert.ok(stderr.length > 10_000);
  });

  test('whose parent closes the connection ends without a word, with code 1', () => {
    assert.deepEqual(JSON.parse(run('waiting').stdout), { code: 1, stderr: '' });
  });

  test('prints the stack with CUFFI_TRACE=1', () => {
    const { code, stderr } = JSON.parse(run('waiting', '1').stdout) as Record<string, string>;
    assert.equal(code, 1);
    assert.match(stderr ?? '', /ClosedError: this Peer is closed: process \d+ has closed/);
    assert.match(stderr ?? '', /\n +at /);
  });

  test('handles the end of its parent itself if it wants to', () => {
    assert.deepEqual(JSON.parse(run('handling').stdout), { code: 7, stderr: 'ClosedError\n' });
  });

  test('prints its own errors as ever, also after the end of its parent', () => {
    for (const mode of ['failing', 'closing']) {
      const { code, stderr } = JSON.parse(run(mode).stdout) as Record<string, string>;
      assert.equal(code, 1, mode);
      assert.match(stderr ?? '', /(Error: its own|ClosedError: this Peer is closed: close)/, mode);
      assert.match(stderr ?? '', /\n +at /, mode);
    }
  });
});
