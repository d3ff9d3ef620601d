import assert from 'node:assert/strict';
import { test } from 'node:test';
import { findExport, generationOf, rememberExport } from '../../../../src/ipc/exports.ts';
import { collectGarbage } from '../../../support/gc.ts';

test('a name that went to something else names that, also when the first is collected', async () => {
  rememberExport('event x', {});
  const later = {};
  rememberExport('event x', later);
  await collectGarbage();
  assert.equal(findExport('event x'), later);
  rememberExport('event y', {});
  await collectGarbage();
  assert.equal(findExport('event y'), undefined);
});

test('the number of an allocation stays, and tells nothing of those of others', () => {
  const allocations = Array.from({ length: 100 }, () => ({}));
  const numbers = allocations.map(generationOf);
  assert.deepEqual(allocations.map(generationOf), numbers);
  assert.equal(new Set(numbers).size, 100);
  const high = numbers.map((number) => Math.floor(number / 2 ** 32));
  assert.ok(new Set(high).size > 90, String(high));
  assert.equal(findExport(`memory ${numbers[7]}`), allocations[7]);
});
