import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { countMismatches, pattern } from '../../../../src/cli/roundtrip-messages.ts';

describe('pattern', () => {
  test('no value repeats, and no value equals the other side’s', () => {
    const [parent, child] = [pattern('parent', 50_000), pattern('child', 50_000)];
    assert.equal(new Set(parent).size, 50_000);
    assert.equal(countMismatches('parent', parent), 0);
    assert.equal(countMismatches('child', child), 0);
    assert.equal(countMismatches('parent', child), 50_000);
    assert.equal(parent.includes(0), false);
  });
});

describe('countMismatches', () => {
  test('every wrong value is counted, including moved values', () => {
    const values = pattern('parent', 100);
    values[0] = 0;
    values[99] = 0;
    assert.equal(countMismatches('parent', values), 2);
    assert.equal(countMismatches('parent', pattern('parent', 100).reverse()), 100);
  });
});
