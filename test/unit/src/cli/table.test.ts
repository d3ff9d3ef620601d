import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { columns, countOf, heading, shortBytes, shortTime } from '../../../../src/cli/table.ts';

describe('table', () => {
  test('columns are as wide as their widest cell, and lines end without spaces', () => {
    assert.deepEqual(columns([['a', 'bbb', 'c'], ['aaaa', 'b', ''], ['x']]), [
      'a     bbb  c',
      'aaaa  b',
      'x',
    ]);
    assert.deepEqual(columns([]), []);
  });

  test('the cells of a column may end together, the last column included', () => {
    const rows = [['a', 'bbb', 'c'], ['aaaa', 'b', 'cc'], ['x']];
    assert.deepEqual(columns(rows, { isRight: (column) => column !== 1 }), [
      '   a  bbb   c',
      'aaaa  b    cc',
      '   x',
    ]);
    const [long = '', short = ''] = columns([['z'.repeat(500)], ['x']], { isRight: () => true });
    assert.equal(long, `${'z'.repeat(399)}…`);
    assert.equal(short, 'x'.padStart(400));
  });

  test('a cell of any length pads no row beyond 60 characters, and the last one ends after 400', () => {
    const [long, short] = columns([
      ['x'.repeat(4096), 'y'.repeat(59).concat('😀z'), 'z'.repeat(4096)],
      ['a', 'b', 'c'],
    ]);
    assert.equal(long, `${'x'.repeat(59)}…  ${'y'.repeat(59)}…  ${'z'.repeat(399)}…`);
    assert.equal(short, `${'a'.padEnd(60)}  ${'b'.padEnd(60)}  c`);
  });

  test('columns that do not fit continue in a further line, aligned among themselves', () => {
    const rows = [
      ['#', 'NAME', 'SIZE', 'CC', 'WAYS'],
      ['0', 'a device', '4 GiB', '9.0', 'x'.repeat(40)],
      ['1', 'b'],
    ];
    const isRight = (at: number): boolean => at === 2;
    assert.deepEqual(
      columns(rows, { isRight, width: 18 }),
      [
        '#  NAME       SIZE',
        '  CC ',
        '  WAYS',
        '0  a device  4 GiB',
        '  9.0',
        `  ${'x'.repeat(40)}`,
        '1  b',
      ].map((line) => line.trimEnd()),
    );
    const startsAt = (last: string, room: number): boolean =>
      columns([...rows, ['2', 'c', '', '', last]], { isRight, width: 3 + 10 + 7 + 5 + room })[1] !==
      '  WAYS';
    rows[1]?.splice(4, 1, 'y');
    // The last column needs but some room if its words can be wrapped, else that of the longest one.
    assert.deepEqual([startsAt('x '.repeat(20), 24), startsAt('x '.repeat(20), 23)], [true, false]);
    const word = `a ${'x'.repeat(40)}`;
    assert.deepEqual([startsAt(word, 40), startsAt(word, 39)], [true, false]);
  });

  test('a styled cell keeps its style, and the spaces that follow it', () => {
    const bold = (text: string) => ({ text, style: 'heading' as const });
    assert.deepEqual(
      columns([
        [bold('A'), bold('B'), bold('C')],
        ['aa', 'b', ''],
      ]),
      [[bold('A '), '  ', bold('B'), '  ', bold('C')], 'aa  b'],
    );
    assert.deepEqual(heading('A', 'B'), [bold('A'), bold('B')]);
  });

  test('there may be more rows than a call has arguments', () => {
    assert.equal(columns(Array.from({ length: 300_000 }, () => ['a', 'b'])).length, 300_000);
  });
});

describe('countOf', () => {
  test('one thing is singular', () => {
    assert.deepEqual(
      [0, 1, 2].map((count) => countOf(count, 'object')),
      ['0 objects', '1 object', '2 objects'],
    );
  });
});

describe('shortBytes', () => {
  test('a size has up to four digits and the unit in which it is from 1 to 1024', () => {
    const sizes = [0, 4, 1023, 1024, 1536, (1 << 20) - 1, 1 << 20, 1000 << 20, 5 * 2 ** 50];
    assert.deepEqual(sizes.map(shortBytes), [
      '0 B',
      '4 B',
      '1023 B',
      '1 KiB',
      '1.5 KiB',
      '1 MiB',
      '1 MiB',
      '1000 MiB',
      '5120 TiB',
    ]);
  });
});

describe('shortTime', () => {
  test('a time has three digits and the unit in which it is from 1 to 1000', () => {
    const said = [0.000_05, 0.0012, 0.085_14, 0.9999, 1, 12.34, 999.6, 4070].map(shortTime);
    assert.deepEqual(said, [
      '50.0 ns',
      '1.20 µs',
      '85.1 µs',
      '1.00 ms',
      '1.00 ms',
      '12.3 ms',
      '1.00 s',
      '4.07 s',
    ]);
  });
});
