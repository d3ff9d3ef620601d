import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { CStrings } from '../../../ffi/c-strings.ts';
import { stringAt, viewMemory } from '../../../ffi/native.ts';
import type { Address } from '../../../ffi/types.ts';

describe('CStrings', () => {
  test('C finds each string by its address and by the table, whatever the lengths', () => {
    const texts = ['first', '', 'µ and 日本', 'x'.repeat(300), 'last'];
    using strings = new CStrings(texts);
    assert.equal(strings.count, texts.length);
    const table = new BigUint64Array(viewMemory(strings.table, 8 * texts.length));
    for (const [n, text] of texts.entries()) {
      assert.equal(stringAt(strings.at(n)), text);
      assert.equal(stringAt(Number(table[n]) as Address), text);
    }
  });

  test('no strings have no table, and a string that C would end early is refused', () => {
    using none = new CStrings([]);
    assert.deepEqual([none.table, none.count], [0, 0]);
    for (const text of ['\0', 'a\0', '\0a', 'a\0b'])
      assert.throws(() => new CStrings(['before', text]), {
        name: 'TypeError',
        message: 'a string for C must not have a zero in it',
      });
  });
});
