import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { copyHostMemory } from '../../../ffi/host-copy.ts';
import { mapAnonymous } from '../../../ffi/linux/mmap.ts';
import { addressOf, viewMemory } from '../../../ffi/native.ts';
import type { Address } from '../../../ffi/types.ts';
import { collectGarbage } from '../../support/process-state.ts';

const counting = (byteLength: number): Uint8Array =>
  new Uint8Array(byteLength).map((_, index) => (index * 31 + (index >> 8)) & 255);

describe('copyHostMemory', () => {
  test('bytes are copied on another thread, and the event loop turns meanwhile', async () => {
    const source = counting(1 << 20);
    const target = new Uint8Array(source.length);
    let turned = false;
    setImmediate(() => {
      turned = true;
    });
    // A copy can be over before the turn is.
    for (let n = 0; n < 100 && !turned; n++)
      await copyHostMemory(addressOf(target), addressOf(source), source.length, target, source);
    assert.ok(turned);
    assert.equal(Buffer.compare(target, source), 0);
  });

  test('the memory is held until it is copied', async () => {
    const mapping = mapAnonymous(8 << 20);
    const views = new Uint8Array(viewMemory(mapping.address, mapping.byteLength));
    const copies = Array.from({ length: 8 }, (_, n) => {
      const bytes = new Uint8Array(1 << 20).fill(n);
      const target = (mapping.address + (n << 20)) as Address;
      return copyHostMemory(target, addressOf(bytes), bytes.length, bytes);
    });
    await collectGarbage();
    await Promise.all(copies);
    for (let n = 0; n < 8; n += 1)
      assert.ok(views.subarray(n << 20, (n + 1) << 20).every((byte) => byte === n));
    mapping.unmap();
  });
});
