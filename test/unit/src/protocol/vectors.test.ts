/** The test vectors of the protocol, with cuffi's own readers and writers. */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { readFacts } from '../../../../src/protocol/facts.ts';
import { vectors } from '../../../../src/protocol/vectors.ts';
import { readVectors, vectorFolder } from '../../../support/vectors.ts';
import { failuresOf } from './run-vectors.ts';

const files = [...vectors(readFacts()).keys()].map((path) => path.replace('test/protocol/', ''));

describe('vectors', () => {
  for (const file of files)
    test(`${file} is read and written as it says`, () => {
      assert.deepEqual(failuresOf(vectorFolder, file), []);
    });

  test('has at least 60 that must be refused, each with a code', () => {
    const refused = readVectors(vectorFolder, 'refused.json');
    assert.ok(refused.length >= 60);
  });
});
