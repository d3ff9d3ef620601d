import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { columns, shortAge, shortBytes } from '../../../../src/cli/table.ts';

describe('table', () => {
  test('columns are as wide as their widest cell, and lines end without spaces', () => {
    assert.deepEqual(columns([['a', 'bbb', 'c'], ['aaaa', 'b', ''], ['x']]), [
      'a     bbb  c',
      'aaaa  b',
      'x',
    ]);
    assert.deepEqual(columns([]), []);
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

  test('sizes and ages are given in the largest unit that fits', () => {
    assert.deepEqual([0, 1023, 1536, 3 << 20, 4 * 2 ** 30].map(shortBytes), [
      '0 B',
      '1023 B',
      '1.5 KiB',
      '3 MiB',
      '4 GiB',
    ]);
    assert.deepEqual([999, 59_999, 60_000, 7_200_000, 200_000_000].map(shortAge), [
      '0 s',
      '59 s',
      '1 min',
      '2 h',
      '2 d',
    ]);
  });
});
