import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { refill, wrap } from '../../../../src/cli/text.ts';

/** The rows of a text, as they are printed. */
const rowsOf = (text: string, width: number): string[] =>
  wrap(text, width).map(({ indent, begin, end }) => ' '.repeat(indent) + text.slice(begin, end));

describe('wrap', () => {
  test('a text of the width stays whole, and one of a character more does not', () => {
    assert.deepEqual(rowsOf('one two', 7), ['one two']);
    assert.deepEqual(rowsOf('a'.repeat(20).concat(' two'), 23), ['a'.repeat(20), 'two']);
    const words = 'one two three four five six seven';
    assert.deepEqual(rowsOf(words, 32), ['one two three four five six', '    seven']);
    assert.deepEqual(rowsOf(words, Number.POSITIVE_INFINITY), [words]);
  });

  test('rows continue under the last column that leaves enough room', () => {
    const text = `  --size S  ${'word '.repeat(8).trim()}`;
    assert.deepEqual(rowsOf(text, 36), [
      '  --size S  word word word word word',
      '            word word word',
    ]);
    // One column less, and they continue four spaces behind the beginning.
    assert.deepEqual(rowsOf(text, 35), [
      `  --size S  ${'word '.repeat(4).trim()}`,
      `      ${'word '.repeat(4).trim()}`,
    ]);
  });

  test('rows continue behind an arrow', () => {
    assert.deepEqual(rowsOf(`    → ${'word '.repeat(8).trim()}`, 30), [
      '    → word word word word word',
      '      word word word',
    ]);
  });

  test('a word longer than a row stays whole', () => {
    const long = 'x'.repeat(50);
    assert.deepEqual(rowsOf(`a ${long} b c`, 30), [`a ${long}`, '    b c']);
    assert.deepEqual(rowsOf(long, 30), [long]);
    assert.deepEqual(rowsOf(`key   ${long} b`, 30), [`key   ${long}`, '      b']);
  });

  test('a terminal of any width gets all words in their order', () => {
    const text =
      '  no       plain memory     by its 64-byte handle: a  b, and what it takes   to  say';
    for (let width = 1; width < 100; width += 1) {
      const rows = rowsOf(text, width);
      assert.equal(rows.join(' ').split(/ +/).join(' '), text.split(/ +/).join(' '), `${width}`);
      for (const row of rows)
        assert.ok(
          row.length <= width || !row.trim().includes(' ') || width < 40,
          `${width}: ${row}`,
        );
    }
  });
});

describe('refill', () => {
  const text = [
    'usage: cuffi one [options]',
    '       cuffi one --with PID',
    '',
    'A paragraph that was broken for a terminal',
    'that is wider.',
    '',
    '  --one N   a first text that continues in',
    '            a further line',
    '  --two     a second one',
    '',
    'The end.',
  ].join('\n');

  test('breaks paragraphs anew, and makes a row of two columns one line', () => {
    assert.deepEqual(refill(text, 30), [
      'usage: cuffi one [options]',
      '       cuffi one --with PID',
      '',
      'A paragraph that was broken',
      'for a terminal that is wider.',
      '',
      '  --one N   a first text that continues in a further line',
      '  --two     a second one',
      '',
      'The end.',
    ]);
  });

  test('leaves text that fits as it is, and words that do not fit whole', () => {
    assert.deepEqual(refill(text, 42), text.split('\n'));
    assert.deepEqual(refill('u\n\none averylongword two', 9).slice(2), [
      'one',
      'averylongword',
      'two',
    ]);
    assert.deepEqual(refill('', 9), ['']);
  });
});
