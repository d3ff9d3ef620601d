import assert from 'node:assert/strict';
import { readdirSync, readFileSync } from 'node:fs';
import { describe, mock, test } from 'node:test';
import { print, printError, printJson, showProgress } from '../../../../src/cli/output.ts';

/** What a call printed with one of the functions of the console. */
function printed(stream: 'log' | 'error', call: () => void): unknown[][] {
  const { mock: calls } = mock.method(console, stream, () => {});
  try {
    call();
    return calls.calls.map(({ arguments: said }) => said);
  } finally {
    mock.restoreAll();
  }
}

const HOSTILE = 'a\u001b]0;x\u0007\u009b2J\r\u202eb\u2028c\u{e0041}';

describe('output', () => {
  for (const [stream, say] of [
    ['log', print],
    ['error', printError],
  ] as const)
    test(`what would control the terminal is a question mark in what ${say.name} prints`, () => {
      assert.deepEqual(
        printed(stream, () => say([HOSTILE, 'plain é 漢 😀'])),
        [['a?]0;x??2J??b?c?'], ['plain é 漢 😀']],
      );
    });

  test('a line break in a text does not begin a line of the command', () => {
    assert.deepEqual(
      printed('log', () => print(['why  x\nopenable  yes\n\n  y'])),
      [['why  x\n    openable  yes\n\n  y']],
    );
  });

  test('printJson prints one line without control characters, which parses to the same value', () => {
    const value = { [HOSTILE]: [HOSTILE, '\n', '\\u0000', 1] };
    const [[text] = []] = printed('log', () => printJson(value)) as string[][];
    assert.doesNotMatch(text as string, /[\p{Cc}\p{Cf}\p{Zl}\p{Zp}]/u);
    assert.deepEqual(JSON.parse(text as string), value);
  });

  test('no other file of the command prints', () => {
    const folder = new URL('../../../../src/cli/', import.meta.url);
    const printing = readdirSync(folder, { recursive: true, encoding: 'utf8' }).filter(
      (name) =>
        name.endsWith('.ts') &&
        /console\.|std(out|err)\.write/.test(readFileSync(new URL(name, folder), 'utf8')),
    );
    assert.deepEqual(printing, ['output.ts']);
  });

  test('progress is one line of a terminal, and nothing elsewhere', () => {
    const write = mock.method(process.stderr, 'write', () => true);
    const { isTTY, columns } = process.stderr;
    const term = process.env['TERM'];
    const shown = (at: { isTTY: boolean; columns?: number; term?: string }, text: string) => {
      Object.assign(process.stderr, { isTTY: at.isTTY, columns: at.columns });
      process.env['TERM'] = at.term ?? 'xterm';
      write.mock.resetCalls();
      showProgress(text);
      return write.mock.calls.map(({ arguments: said }) => (said as unknown[])[0]);
    };
    try {
      assert.deepEqual(shown({ isTTY: true, columns: 80 }, 'a\u009bb'), ['\r\u001b[Ka?b']);
      assert.deepEqual(shown({ isTTY: true, columns: 4 }, 'abcdef'), ['\r\u001b[Kabc']);
      // Of an unknown width.
      assert.deepEqual(shown({ isTTY: true, columns: 0 }, 'abcdef'), ['\r\u001b[Kabcdef']);
      assert.deepEqual(shown({ isTTY: false }, 'abc'), []);
      assert.deepEqual(shown({ isTTY: true, term: 'dumb' }, 'abc'), []);
    } finally {
      Object.assign(process.stderr, { isTTY, columns });
      process.env['TERM'] = term;
      if (term === undefined) delete process.env['TERM'];
      mock.restoreAll();
    }
  });
});
