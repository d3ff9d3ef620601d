/** Keys that another process chose so that a Map, Set or object would take quadratic time. */

import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { IpcError } from '../../../../../src/errors.ts';
import { ByteReader, ByteWriter } from '../../../../../src/ipc/bytes.ts';
import { MAX_NAME_LENGTH, MAX_UNCOUNTED_KEYS, Tag } from '../../../../../src/ipc/protocol.ts';
import { HashCollisions } from '../../../../../src/ipc/wire/hash-collisions.ts';
import { EncodedValue } from '../../../../../src/ipc/wire/value-decoder.ts';
import { encodeValue } from '../../../../../src/ipc/wire/value-encoder.ts';

// The hashes of V8, written with bigints (src/utils/utils.h and src/base/hashing.h of V8).

const UINT64 = 2n ** 64n - 1n;

function longHash(key: bigint): number {
  let hash = key & UINT64;
  hash = ((hash ^ UINT64) + (hash << 18n)) & UINT64;
  hash ^= hash >> 31n;
  hash = (hash * 21n) & UINT64;
  hash ^= hash >> 11n;
  hash = (hash + (hash << 6n)) & UINT64;
  hash ^= hash >> 22n;
  return Number(hash & 0x3fff_ffffn);
}

const UINT32 = 2n ** 32n - 1n;

function unseededHash(key: number): number {
  let hash = BigInt(key) & UINT32;
  hash = ((hash ^ UINT32) + (hash << 15n)) & UINT32;
  hash ^= hash >> 12n;
  hash = (hash + (hash << 2n)) & UINT32;
  hash ^= hash >> 4n;
  hash = (hash * 2057n) & UINT32;
  hash ^= hash >> 16n;
  return Number(hash & 0x3fff_ffffn);
}

const float64 = new Float64Array(1);
/** The first of the candidates that share the low bits of their hash. */
function colliding<T>(
  count: number,
  bits: number,
  key: (n: number) => T,
  hash: (key: T) => number,
) {
  const found: T[] = [];
  for (let n = 1; found.length < count; n++) {
    const candidate = key(n);
    if ((hash(candidate) & (2 ** bits - 1)) === 5) found.push(candidate);
  }
  return found;
}

/** The 64-bit integer whose hash is 5 and that number of higher bits. */
function unhashed(n: number): bigint {
  let hash = (BigInt(n) << 32n) | 5n;
  hash = invert(hash, 22n);
  hash = (hash * inverseOf(65n)) & UINT64;
  hash = invert(hash, 11n);
  hash = (hash * inverseOf(21n)) & UINT64;
  hash = invert(hash, 31n);
  // ~hash + (hash << 18) is hash * (2^18 - 1) - 1.
  return ((hash + 1n) * inverseOf(2n ** 18n - 1n)) & UINT64;
}

/** Inverts `hash ^= hash >> bits`. */
function invert(hash: bigint, bits: bigint): bigint {
  let result = hash;
  for (let known = bits; known < 64n; known += bits) result = hash ^ (result >> bits);
  return result;
}

/** The inverse of an odd number modulo 2^64. */
function inverseOf(odd: bigint): bigint {
  let inverse = odd;
  for (let step = 0; step < 6; step++) inverse = (inverse * (2n - odd * inverse)) & UINT64;
  return inverse & UINT64;
}

const longText = (length: number, n: number): string => String(n).padStart(length, 'x');
const first = <T>(count: number, key: (n: number) => T): T[] =>
  Array.from({ length: count }, (_, n) => key(n));

const unhashedKeys = first(2000, unhashed);
const doubleOf = (bits: bigint): number => {
  new BigUint64Array(float64.buffer)[0] = bits;
  return float64[0] as number;
};
const collidingIntegers = colliding(300, 8, (n) => n * 5, unseededHash);

const collidingKeys: Readonly<Record<string, readonly unknown[]>> = {
  'bigints with equal low 64 bits': first(2000, (n) => BigInt(n + 1) << 64n),
  'negative bigints with equal low 64 bits': first(2000, (n) => -(BigInt(n) << 64n) - 7n),
  'bigints of 64 bits': unhashedKeys,
  'negative bigints': unhashedKeys.map((key) => -key),
  doubles: unhashedKeys.map(doubleOf).filter((key) => !Number.isNaN(key)),
  'integers of 32 bits': collidingIntegers,
  'negative integers': colliding(300, 8, (n) => -n, unseededHash),
  'numbers that collide only while few are there': [
    ...collidingIntegers,
    ...first(20_000, (n) => -n - 1),
  ],
  'long strings of one length': first(300, (n) => longText(MAX_NAME_LENGTH + 1, n)),
};

const spreadKeys: Readonly<Record<string, readonly unknown[]>> = {
  integers: first(20_000, (n) => n),
  'multiples of a power of two': first(20_000, (n) => n * 4096),
  'negative integers': first(20_000, (n) => -n),
  'times in milliseconds': first(20_000, (n) => 1_790_000_000_000 + n * 1000),
  fractions: first(20_000, (n) => n + 0.5),
  'numbers of 32 bits': first(20_000, (n) => Math.fround(n / 3)),
  bigints: first(20_000, (n) => BigInt(n)),
  addresses: first(20_000, (n) => 0x7f00_0000_0000_0000n + BigInt(n) * 4096n),
  'amounts with 18 decimals': first(20_000, (n) => BigInt(n) * 10n ** 18n),
  'strings of digits': first(20_000, String),
  'a few long strings': first(60, (n) => longText(MAX_NAME_LENGTH + 1, n)),
  'objects and others': [undefined, null, true, NaN, ...first(1000, (n) => ({ n }))],
};

const accepts = (keys: readonly unknown[]): boolean => {
  const collisions = new HashCollisions();
  return keys.every((key) => collisions.add(key));
};

describe('HashCollisions', () => {
  for (const [what, keys] of Object.entries(collidingKeys))
    test(`refuses ${what} that V8 puts in one bucket`, () => {
      assert.equal(accepts(keys), false);
    });

  for (const [what, keys] of Object.entries(spreadKeys))
    test(`accepts ${what}`, () => {
      assert.ok(accepts(keys));
    });

  test('the keys of this test have one hash in V8', () => {
    for (const key of unhashedKeys) assert.equal(longHash(key), 5);
  });

  test('accepts any keys of as many as are not counted', () => {
    for (const keys of Object.values(collidingKeys))
      assert.ok(accepts(keys.slice(0, MAX_UNCOUNTED_KEYS)));
  });
});

const noObjects = { includes: (_: object): _ is never => false, alternativeTo: () => '' };
const encode = (value: unknown): Buffer =>
  ByteWriter.use(0, (writer) => {
    encodeValue(writer, value, noObjects);
    return Buffer.from(writer.written);
  });

/** Encodes a Set without the checks of the encoder. */
function encodeUnchecked(members: readonly unknown[]): Buffer {
  const body = Buffer.concat(members.map(encode));
  return Buffer.concat([Buffer.of(Tag.set), lengthOf(members.length), body]);
}

const lengthOf = (value: number): Buffer => {
  const bytes: number[] = [];
  for (let rest = value; ; rest >>>= 7) {
    bytes.push((rest & 0x7f) | (rest > 0x7f ? 0x80 : 0));
    if (rest <= 0x7f) return Buffer.from(bytes);
  }
};

function decode(bytes: Buffer): unknown {
  const value = new EncodedValue(new ByteReader(bytes));
  while (!value.check());
  return value.buildAll([]);
}

describe('EncodedValue', () => {
  for (const [what, keys] of Object.entries(collidingKeys))
    test(`refuses a Set of ${what}`, () => {
      assert.throws(() => decode(encodeUnchecked(keys)), {
        name: 'IpcError',
        code: 'limit-exceeded',
        message: /too many keys or members with the same hash/,
      });
    });

  test('a short value is refused only when it is taken, as a long one is', () => {
    const keys = unhashedKeys.filter((key) => key < 2n ** 63n).slice(0, 110);
    const bytes = encodeUnchecked(keys);
    assert.ok(bytes.byteLength <= 1024);
    const value = new EncodedValue(new ByteReader(bytes));
    assert.ok(value.check());
    assert.throws(() => value.buildAll([]), IpcError);
  });

  test('names of an object that make V8 copy all its items take linear time', {
    timeout: 60_000,
  }, () => {
    const dense = 200_000;
    const names = first(dense, (n) => n);
    for (let n = 1; n <= 300; n++) names.push(dense + n * 1500, dense + n * 1500 - 5);
    // V8 itself would take minutes to make such an object.
    const parts = names.map((name) => Buffer.concat([encode(String(name)), encode(name)]));
    const bytes = Buffer.concat([Buffer.of(Tag.object), lengthOf(names.length), ...parts]);
    const built = decode(bytes) as object;
    assert.equal(Object.keys(built).length, names.length);
    assert.ok(Object.entries(built).every(([name, value]) => name === String(value)));
  });

  test('an object has its highest index after jumps only if it was sent', () => {
    const highest = 2 ** 32 - 2;
    const sparse = Object.fromEntries(first(2000, (n) => [n * 5000, n]));
    assert.deepEqual(decode(encode(sparse)), sparse);
    const withHighest = { ...sparse, [highest]: 'last' };
    assert.deepEqual(decode(encode(withHighest)), withHighest);
  });

  test('a name may have at most 16,383 characters', () => {
    for (const letter of ['x', 'ж']) {
      const longest = { [letter.repeat(MAX_NAME_LENGTH)]: 1 };
      assert.deepEqual(decode(encode(longest)), longest);
      const tag = letter === 'x' ? Tag.latin1 : Tag.utf16;
      const name = Buffer.from(
        letter.repeat(MAX_NAME_LENGTH + 1),
        tag === Tag.latin1 ? 'latin1' : 'utf16le',
      );
      const bytes = [
        Buffer.of(Tag.object, 1, tag),
        lengthOf(name.byteLength),
        name,
        Buffer.of(Tag.null),
      ];
      assert.throws(
        () => decode(Buffer.concat(bytes)),
        /IpcError: a name of 16384 characters is too long/,
      );
    }
  });
});

describe('encodeValue', () => {
  for (const [what, keys] of Object.entries(collidingKeys))
    test(`refuses ${what} as keys and members, with the place`, () => {
      const map = new Map(keys.map((key) => [key, null]));
      assert.throws(
        () => encode({ map }),
        /^RangeError: value\.map has too many keys with the same hash/,
      );
      assert.throws(
        () => encode([new Set(keys)]),
        /^RangeError: value\[0\] has too many members with/,
      );
    });

  test('Maps and Sets of many other keys arrive', () => {
    for (const keys of Object.values(spreadKeys)) {
      const set = decode(encode(new Set(keys))) as Set<unknown>;
      assert.deepEqual([...set], [...new Set(keys)]);
      const map = decode(encode(new Map(keys.map((key, at) => [key, at])))) as Map<
        unknown,
        unknown
      >;
      assert.equal(map.size, new Set(keys).size);
    }
  });

  test('refuses a name that is too long, with the place of the object', () => {
    const inner = { [longText(MAX_NAME_LENGTH + 1, 1)]: 1 };
    assert.throws(
      () => encode({ inner }),
      /^RangeError: value\.inner has a name of 16384 characters/,
    );
  });
});
