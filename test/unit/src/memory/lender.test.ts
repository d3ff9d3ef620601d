import assert from 'node:assert/strict';
import { test } from 'node:test';
import { Lender } from '../../../../src/memory/lender.ts';

test('each thing has one holder, and those who wait are served in order', async () => {
  const lender = new Lender(['a', 'b']);
  assert.deepEqual(await Promise.all([lender.take(), lender.take()]), ['a', 'b']);
  assert.equal(lender.isEmpty, true);
  const served: string[] = [];
  const waiting = [1, 2, 3].map((n) => lender.take().then((item) => served.push(`${n}${item}`)));
  lender.give('b');
  lender.give('a');
  lender.give('c');
  await Promise.all(waiting);
  assert.deepEqual(served, ['1b', '2a', '3c']);
  lender.give('a');
  assert.equal(lender.isEmpty, false);
});
