import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { describe, test } from 'node:test';
import { libc, SystemError } from '../../../../ffi/linux/libc.ts';
import { mapAnonymous } from '../../../../ffi/linux/mmap.ts';
import { viewMemory } from '../../../../ffi/native.ts';
import { isMapped } from '../../../support/process-state.ts';

/** The kernel's flags of the mapping that begins at an address. */
function flagsAt(address: number): string {
  const lines = readFileSync('/proc/self/smaps', 'utf8').split('\n');
  const at = lines.findIndex((line) => line.startsWith(`${address.toString(16)}-`));
  return lines.slice(at).find((line) => line.startsWith('VmFlags:')) ?? '';
}

describe('mapAnonymous', () => {
  test('a mapping is zeroed, in whole pages, and not for children', () => {
    const mapping = mapAnonymous(5000);
    assert.equal(mapping.byteLength % libc.getpagesize(), 0);
    assert.ok(mapping.byteLength >= 5000);
    assert.match(flagsAt(mapping.address), / dc( |$)/);
    const bytes = new Uint8Array(viewMemory(mapping.address, mapping.byteLength));
    assert.ok(bytes.every((byte) => byte === 0));
    bytes.fill(7);
    assert.ok(bytes.every((byte) => byte === 7));
    mapping.unmap();
    assert.equal(isMapped(mapping.address), false);
  });

  test('a retired mapping reads zeros, takes no memory, and can be written still', () => {
    const mapping = mapAnonymous(64 << 10);
    const bytes = new Uint8Array(viewMemory(mapping.address, mapping.byteLength));
    bytes.fill(7);
    mapping.retire();
    assert.ok(bytes.every((byte) => byte === 0));
    bytes[5] = 1;
    assert.equal(bytes[5], 1);
    mapping.retire();
    assert.equal(bytes[5], 0);
    mapping.unmap();
  });

  test('what the system has no room for is an error', () => {
    assert.throws(() => mapAnonymous(2 ** 50), SystemError);
    assert.throws(() => mapAnonymous(0), { code: 'EINVAL' });
  });
});
