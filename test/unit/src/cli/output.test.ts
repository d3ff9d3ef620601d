import assert from 'node:assert/strict';
import { readdirSync, readFileSync } from 'node:fs';
import { describe, mock, test } from 'node:test';
import { WriteStream } from 'node:tty';
import {
  print,
  printAgain,
  printError,
  printedWidth,
  printJson,
  showProgress,
} from '../../../../src/cli/output.ts';
import { type Line, mark } from '../../../../src/cli/text.ts';

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

  /** What a call prints if stdout and stderr are a terminal. */
  function onTerminal(columns: number, env: Record<string, string>, call: () => void): string[] {
    const outputs = [process.stdout, process.stderr] as const;
    const before = outputs.map(({ isTTY, columns: width, rows }) => ({
      isTTY,
      columns: width,
      rows,
    }));
    // What Node looks at, a CI's own variables among them.
    const names = [
      'TERM',
      'COLORTERM',
      'TMUX',
      'NO_COLOR',
      'FORCE_COLOR',
      'NODE_DISABLE_COLORS',
      'CI',
      'TF_BUILD',
      'TEAMCITY_VERSION',
    ];
    const variables = names.map((name) => [name, process.env[name]] as const);
    for (const name of names) delete process.env[name];
    Object.assign(process.env, { TERM: 'xterm-256color', ...env });
    // Node asks it whether it has colours.
    const { getColorDepth } = WriteStream.prototype;
    for (const each of outputs)
      Object.assign(each, { isTTY: true, columns, rows: 5, getColorDepth });
    try {
      return [...printed('log', call), ...printed('error', () => {})].map(String);
    } finally {
      for (const [at, each] of outputs.entries()) Object.assign(each, before[at]);
      for (const [name, value] of variables) {
        if (value === undefined) delete process.env[name];
        else process.env[name] = value;
      }
    }
  }

  const RESULT: Line = [mark('good'), { text: 'ok  ', style: 'good' }, 'a fact\u001b[2J'];

  test('a terminal gets colours and marks; NO_COLOR takes the colours only', () => {
    const say = () =>
      print([RESULT, [mark('bad'), 'x'], [mark('unsure'), 'y'], [mark('faint'), 'z']]);
    const [first, ...others] = onTerminal(80, {}, say);
    assert.equal(first, '\u001b[32m✓ \u001b[39m\u001b[32mok  \u001b[39ma fact?[2J');
    assert.deepEqual(others, ['\u001b[31m✗ \u001b[39mx', '\u001b[33m? \u001b[39my', '  z']);
    assert.equal(onTerminal(80, { NO_COLOR: '1' }, say)[0], '✓ ok  a fact?[2J');
    assert.equal(onTerminal(80, { TERM: 'dumb' }, say)[0], '  ok  a fact?[2J');
    assert.deepEqual(printed('log', say)[0], ['  ok  a fact?[2J']);
  });

  test('a terminal gets lines of its width, and styles on each row; others whole lines', () => {
    const fact = 'one two three four five six seven eight nine ten';
    const long: Line = [mark('good'), 'ok     ', { text: fact, style: 'bad' }];
    const rows = onTerminal(34, { NO_COLOR: '1' }, () => print([long]))[0]?.split('\n');
    assert.deepEqual(rows, [
      '✓ ok     one two three four five',
      '         six seven eight nine ten',
    ]);
    const red = onTerminal(34, {}, () => print([long]))[0]?.split('\n');
    assert.equal(red?.[1], '         \u001b[31msix seven eight nine ten\u001b[39m');
    assert.deepEqual(
      printed('log', () => print([long])),
      [[`  ok     ${fact}`]],
    );
    // The lines of one text are wrapped each, and indented.
    const two = `why\n${fact}`;
    assert.deepEqual(onTerminal(34, {}, () => print([two]))[0]?.split('\n'), [
      'why',
      '    one two three four five six',
      '        seven eight nine ten',
    ]);
  });

  test('printAgain replaces what a terminal shows, within its height, and follows elsewhere', () => {
    const lines = ['a', 'b', 'c', 'd', 'e'];
    const say = (count: number) => () => printAgain(lines.slice(0, count));
    assert.deepEqual(onTerminal(80, {}, say(4)), ['\u001b[H\u001b[Ja\nb\nc\nd']);
    assert.deepEqual(onTerminal(80, {}, say(5)), ['\u001b[H\u001b[Ja\nb\nc\n…']);
    assert.deepEqual(printed('log', say(2)), [['a'], ['b'], ['']]);
    assert.deepEqual(onTerminal(80, { TERM: 'dumb' }, say(1)), ['a', '']);
  });

  test('the width of lines is that of a terminal', () => {
    const widths: number[] = [];
    onTerminal(34, {}, () => widths.push(printedWidth()));
    onTerminal(0, {}, () => widths.push(printedWidth()));
    onTerminal(34, { TERM: 'dumb' }, () => widths.push(printedWidth()));
    assert.deepEqual(widths, [34, Number.POSITIVE_INFINITY, Number.POSITIVE_INFINITY]);
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
