import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { Stream } from '../../../../src/index.ts';
import { MemoryUses } from '../../../../src/memory/use-order.ts';
import { emulate } from '../emulate.ts';

describe('MemoryUses', () => {
  test('names each stream once, and none at all once other work may use the memory', () => {
    emulate();
    using a = Stream.create();
    using b = Stream.create();
    const cases: readonly (readonly [uses: (Stream | undefined)[], streams: unknown[]])[] = [
      [[], []],
      [[undefined, undefined], [undefined]],
      [
        [a, b, a],
        [a, b],
      ],
      [
        [b, undefined],
        [undefined, b],
      ],
    ];
    for (const [used, streams] of cases) {
      const uses = new MemoryUses();
      for (const stream of used) uses.add(stream);
      assert.deepEqual(uses.streams, streams);
      // A kernel of another library may get the address.
      uses.isAddressKnown = true;
      assert.equal(uses.streams, undefined);
      uses.add(a);
      assert.equal(uses.streams, undefined);
    }
  });
});
