import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { randomBytes, sha256 } from '../../../src/crypto.ts';

describe('sha256', () => {
  test('returns the digest of text and of the same bytes in hex', () => {
    // FIPS 180-4, the example of one block.
    const digest = 'ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad';
    assert.equal(sha256('abc'), digest);
    assert.equal(sha256(new Uint8Array([97, 98, 99])), digest);
  });
});

describe('randomBytes', () => {
  test('returns other bytes at each call, as many as asked', () => {
    const [a, b] = [randomBytes(16), randomBytes(16)];
    assert.equal(a.byteLength, 16);
    assert.notDeepEqual(a, b);
  });
});
