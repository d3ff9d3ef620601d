import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import {
  arena,
  BLOCK,
  BLOCK_BYTE_LENGTH,
  OUT0,
  OUT1,
  OUT2,
  OUT3,
  readBytes,
  readFloat32,
  readHandle,
  readInt32,
  readSize,
  readString,
  readUint32,
  readUint64,
} from '../../../ffi/arena.ts';
import type { CUstream } from '../../../ffi/types.ts';

const view = new DataView(arena.buffer);
const bytes = new Uint8Array(arena.buffer);
const at = (address: number): number => address - arena.address;
const write64 = (address: number, value: bigint): void =>
  view.setBigUint64(at(address), value, true);

describe('the arena', () => {
  test('its slots and its block lie inside it, apart from each other, on multiples of eight', () => {
    const slots = [OUT0, OUT1, OUT2, OUT3, BLOCK].map(at);
    assert.deepEqual(slots, [...new Set(slots)]);
    for (const slot of slots) assert.equal(slot % 8, 0);
    assert.ok(at(BLOCK) >= at(OUT3) + 8);
    assert.ok(at(BLOCK) + BLOCK_BYTE_LENGTH <= arena.byteLength);
    assert.equal(arena.buffer.byteLength, arena.byteLength);
  });

  test('reads 32-bit values with their sign', () => {
    view.setUint32(at(OUT1), 0xffff_fffe, true);
    assert.equal(readInt32(OUT1), -2);
    assert.equal(readUint32(OUT1), 0xffff_fffe);
    view.setFloat32(at(OUT2), 1.5, true);
    assert.equal(readFloat32(OUT2), 1.5);
  });

  test('reads 64-bit values exactly', () => {
    for (const value of [0n, 1n, 0xffff_ffffn, 2n ** 32n, 2n ** 53n + 1n, 2n ** 64n - 1n]) {
      write64(OUT3, value);
      assert.equal(readUint64(OUT3), value);
    }
  });

  test('reads a size or a handle up to 2^53 - 1, in every place', () => {
    for (const value of [0, 1, 0xffff_ffff, 2 ** 32, 2 ** 52 + 1, Number.MAX_SAFE_INTEGER])
      for (const slot of [OUT0, OUT1, OUT2, OUT3, BLOCK]) {
        write64(slot, BigInt(value));
        assert.equal(readSize(slot), value);
        assert.equal(readHandle(slot), value);
      }
  });

  test('refuses a size from 2^53 on, and says what it was', () => {
    write64(OUT0, 2n ** 53n);
    assert.throws(() => readSize(OUT0), /9007199254740992, which is above 2\^53/);
    write64(OUT0, 2n ** 64n - 1n);
    assert.throws(() => readSize(OUT0), RangeError);
  });

  test('a handle from 2^53 on is released by its exact value, then refused', () => {
    for (const value of [2n ** 53n, 2n ** 53n + 1n, 2n ** 64n - 1n]) {
      write64(OUT0, value);
      const released: unknown[] = [];
      assert.throws(
        () => readHandle<CUstream>(OUT0, (handle) => released.push(handle)),
        (error) => error instanceof RangeError && error.message.includes(`0x${value.toString(16)}`),
      );
      assert.deepEqual(released, [value]);
    }
  });

  test('a handle that nothing releases is refused all the same, and a good one never released', () => {
    write64(OUT0, 2n ** 60n);
    assert.throws(() => readHandle(OUT0), RangeError);
    write64(OUT0, 4096n);
    assert.equal(
      readHandle(OUT0, () => assert.fail('released')),
      4096,
    );
  });

  test('gives a copy of bytes, which the next call does not change', () => {
    bytes.set([1, 2, 3, 4], at(BLOCK));
    const copy = readBytes(BLOCK, 4);
    bytes.fill(0, at(BLOCK), at(BLOCK) + 4);
    assert.deepEqual(copy, Uint8Array.of(1, 2, 3, 4));
  });

  test('reads a string up to its zero, and no further than it was told', () => {
    bytes.fill(0x78, at(BLOCK), arena.byteLength);
    bytes.set(Buffer.from('Grüße\0'), at(BLOCK));
    assert.equal(readString(BLOCK, 100), 'Grüße');
    assert.equal(readString(BLOCK, 2), 'Gr');
    bytes[at(BLOCK)] = 0;
    assert.equal(readString(BLOCK, 100), '');
    bytes.fill(0x78, at(BLOCK), arena.byteLength);
    assert.equal(readString(BLOCK, 4), 'xxxx');
  });
});
