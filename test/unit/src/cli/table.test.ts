import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { columns, shortBytes, shortTime } from '../../../../src/cli/table.ts';

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
    assert.deepEqual(
      columns(rows, (column) => column !== 1),
      ['   a  bbb   c', 'aaaa  b    cc', '   x'],
    );
    const [long = '', short = ''] = columns([['z'.repeat(500)], ['x']], () => true);
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

  test('there may be more rows than a call has arguments', () => {
    assert.equal(columns(Array.from({ length: 300_000 }, () => ['a', 'b'])).length, 300_000);
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
