import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { columns } from '../../../../src/cli/table.ts';

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
});
