import assert from 'node:assert/strict';
import { test } from 'node:test';
import { countMismatches, pattern } from '../../../../src/cli/pattern.ts';

test('no value repeats, and none is the one of the other side', () => {
  const [parent, child] = [pattern('parent', 50_000), pattern('child', 50_000)];
  assert.equal(new Set(parent).size, 50_000);
  assert.equal(countMismatches('parent', parent), 0);
  assert.equal(countMismatches('child', child), 0);
  assert.equal(countMismatches('parent', child), 50_000);
  assert.equal(parent.includes(0), false);
});

test('every wrong value is counted, also values that moved', () => {
  const values = pattern('parent', 100);
  values[0] = 0;
  values[99] = 0;
  assert.equal(countMismatches('parent', values), 2);
  assert.equal(countMismatches('parent', pattern('parent', 100).reverse()), 100);
});
