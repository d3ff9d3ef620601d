import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { numbersOf } from '../cpus.ts';

describe('numbersOf', () => {
  test('a list of CPUs is read as the kernel writes it', () => {
    assert.deepEqual(numbersOf('0-2,5,7-8'), [0, 1, 2, 5, 7, 8]);
    assert.deepEqual(numbersOf('3'), [3]);
    assert.deepEqual(numbersOf(''), []);
  });
});
