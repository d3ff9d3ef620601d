import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import {
  addressOf,
  allocatePermanent,
  MAX_VIEW_BYTE_LENGTH,
  stringAt,
  viewMemory,
  withAddress,
} from '../../../ffi/native.ts';
import type { Address } from '../../../ffi/types.ts';

const memory = allocatePermanent(64);

describe('native memory', () => {
  test('a view of memory is the memory, without a copy', () => {
    const first = new Uint8Array(viewMemory(memory, 64));
    const second = new Uint8Array(viewMemory((memory + 8) as Address, 56));
    first[8] = 42;
    assert.equal(second[0], 42);
    assert.equal(addressOf(first), memory);
    assert.equal(addressOf(second), memory + 8);
  });

  test('viewMemory refuses an invalid address', () => {
    for (const address of [0, -8, 0.5, Number.NaN, 2 ** 53, Number.POSITIVE_INFINITY])
      assert.throws(() => viewMemory(address as Address, 8), /cannot view memory at address/);
  });

  test('viewMemory refuses a length that would abort the process', () => {
    for (const length of [0, -1, 0.5, Number.NaN, MAX_VIEW_BYTE_LENGTH + 1, 5 * 2 ** 30, 2 ** 53])
      assert.throws(() => viewMemory(memory, length), RangeError);
    assert.ok(MAX_VIEW_BYTE_LENGTH <= 2 ** 32);
  });

  test('allocatePermanent refuses an invalid size', () => {
    for (const length of [0, -1, 0.5, Number.NaN, 2 ** 31])
      assert.throws(() => allocatePermanent(length), RangeError);
  });

  test('the address of a part of a buffer is the address of its first byte', () => {
    const whole = new Uint8Array(4096);
    assert.equal(addressOf(whole.subarray(100)), addressOf(whole) + 100);
    assert.equal(addressOf(new DataView(whole.buffer, 7)), addressOf(whole) + 7);
    assert.equal(addressOf(new Float64Array(whole.buffer, 16, 2)), addressOf(whole) + 16);
  });

  test('an empty view has address 0', () => {
    assert.equal(addressOf(new Uint8Array(0)), 0);
  });

  test('withAddress passes an address for the duration of a call, and returns its result or throws its error', () => {
    const outer = Uint8Array.of(1);
    const inner = Uint8Array.of(2);
    const read = (address: Address): number | undefined =>
      new Uint8Array(viewMemory(address, 1))[0];
    const sum = withAddress(outer, (a) =>
      withAddress(inner, (b) => Number(read(a)) + Number(read(b))),
    );
    assert.equal(sum, 3);
    const thrown = new Error('from within');
    assert.throws(
      () =>
        withAddress(outer, () => {
          throw thrown;
        }),
      thrown,
    );
  });

  test('stringAt reads a zero-terminated UTF-8 string, and nothing at address 0', () => {
    const text = Buffer.from('Grüße\0and more');
    assert.equal(withAddress(text, stringAt), 'Grüße');
    assert.equal(stringAt(0 as Address), '');
  });
});
