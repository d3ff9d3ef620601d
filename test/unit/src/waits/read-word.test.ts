import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { END_OF_WAITS } from '../../../../src/ipc/protocol.ts';
import { INVALID, readWord } from '../../../../src/waits/read-word.ts';

describe('readWord', () => {
  const words = new BigUint64Array(3);
  const read = (word: bigint): number => {
    words[1] = word;
    return readWord(new Uint32Array(words.buffer), 1);
  };

  test('returns a count with all of its 53 bits', () => {
    for (const count of [0, 1, 2 ** 31, 2 ** 32 + 7, Number.MAX_SAFE_INTEGER])
      assert.equal(read(BigInt(count)), count);
  });

  test('finds what ends all waits beyond every count, and nothing else', () => {
    assert.equal(read(END_OF_WAITS), Number.POSITIVE_INFINITY);
    for (const word of [2n ** 53n, END_OF_WAITS - 1n, 2n ** 63n, 2n ** 64n - 1n])
      assert.equal(read(word), INVALID);
  });
});
