import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { exportIdOf, findExport, rememberExport } from '../../../../../src/ipc/sharing/facts.ts';
import { collectGarbage } from '../../../../support/process-state.ts';

describe('findExport', () => {
  test('a reused name finds the new object, also after the first is collected', async () => {
    rememberExport('event x', {});
    const later = {};
    rememberExport('event x', later);
    await collectGarbage();
    assert.equal(findExport('event x'), later);
    rememberExport('event y', {});
    await collectGarbage();
    assert.equal(findExport('event y'), undefined);
  });
});

describe('exportIdOf', () => {
  test('the id of an allocation is constant and reveals no other id', () => {
    const allocations = Array.from({ length: 100 }, () => ({}));
    const numbers = allocations.map(exportIdOf);
    assert.deepEqual(allocations.map(exportIdOf), numbers);
    assert.equal(new Set(numbers).size, 100);
    const high = numbers.map((number) => Math.floor(number / 2 ** 32));
    assert.ok(new Set(high).size > 90, String(high));
    assert.equal(findExport(`memory ${numbers[7]}`), allocations[7]);
  });
});

describe('rememberExport', () => {
  test('only the names of collected objects are removed, once there are many names', async (t) => {
    const kept = {};
    rememberExport('event kept', kept);
    const name = (n: number): string => `event collected ${n}`;
    const count = 3000;
    const remember = (from: number): void => {
      for (let n = from; n < from + count; n++) rememberExport(name(n), {});
    };
    remember(0);
    await collectGarbage();
    const forgotten = new Set<unknown>();
    const { delete: forget } = Map.prototype;
    t.mock.method(Map.prototype, 'delete', function (this: Map<unknown, unknown>, key: unknown) {
      forgotten.add(key);
      return forget.call(this, key);
    });
    // Between two sweeps, more than twice as many names as were left are added.
    remember(count);
    remember(2 * count);
    t.mock.restoreAll();
    for (let n = 0; n < count; n++) assert.ok(forgotten.has(name(n)), name(n));
    assert.equal(forgotten.has('event kept'), false);
    assert.equal(findExport('event kept'), kept);
  });
});
