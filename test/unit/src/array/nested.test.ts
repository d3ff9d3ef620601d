import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import fc from 'fast-check';
import { flatten, toNested } from '../../../../src/array/nested.ts';
import { sizeOf } from '../../../../src/array/shape.ts';
import {
  bfloat16,
  bool,
  complex128,
  Dtype,
  float16,
  float64,
  int32,
  int64,
  uint8,
} from '../../../../src/index.ts';
import { anyShape, indices, runs } from '../../../support/layouts.ts';

describe('flatten and toNested', () => {
  test('nested arrays survive a round trip through a flat one, in either order', () => {
    fc.assert(
      fc.property(anyShape, (shape) => {
        const values = Float64Array.from({ length: sizeOf(shape) }, (_, i) => i);
        const nested = toNested(values, shape);
        for (const [n, index] of indices(shape).entries())
          assert.equal(
            index.reduce<unknown>((part, at) => (part as unknown[])[at], nested),
            n,
          );
        if (!shape.includes(0))
          assert.deepEqual(flatten(nested, 'source'), { values, shape, dtype: float64 });
        const turned = toNested(values, shape.toReversed(), { order: 'F' });
        for (const [n, index] of indices(shape).entries())
          assert.equal(
            index.reduceRight<unknown>((part, at) => (part as unknown[])[at], turned),
            n,
          );
      }),
      runs,
    );
  });
});

describe('flatten', () => {
  test('the dtype is inferred from all nested items', () => {
    assert.equal(flatten([[], []], 'source').dtype, float64);
    assert.equal(flatten([true, false], 'source').dtype, bool);
    assert.equal(flatten([true, 2], 'source').dtype, float64);
    assert.equal(flatten([1n], 'source').dtype, int64);
    assert.equal(flatten([1, { re: 0, im: 1 }], 'source').dtype, complex128);
    assert.deepEqual(flatten([1.5, -2], 'source', float16).values, Uint16Array.of(0x3e00, 0xc000));
    assert.deepEqual(toNested(Uint16Array.of(0x3fc0), [1], { dtype: bfloat16 }), [1.5]);
    const raw = [Uint8Array.of(1, 2), Uint8Array.of(3, 4)];
    assert.deepEqual(flatten(raw, 'source', Dtype.bytes(2)).values, Uint8Array.of(1, 2, 3, 4));
  });

  test('an error names the index of the invalid item', () => {
    const throws = (source: unknown, message: RegExp, dtype?: Dtype): void =>
      assert.throws(() => flatten(source, 'source', dtype), message);
    throws([[1], [1, 2]], /source\[1\] is 2 long where others are 1 long/);
    throws([[1], 2], /source\[1\] is not an array where others are 1 long/);
    throws([1, [2]], /source\[1\] is an array where others are items/);
    throws(
      [
        [1, 2],
        [3, null],
      ],
      /source\[1\]\[1\] must be a number for complex128, not null/,
    );
    throws([0, 300], /source\[1\] must be an integer from 0 to 255 for uint8, not 300/, uint8);
    throws([2n ** 31n], /from -2147483648 to 2147483647 for int32/, int32);
    throws([{ re: 1, im: 'i' }], /source\[0\]\.im must be a number for complex128, not a string/);
    throws([new Float32Array(2)], /source\[0\] is a typed array/);
    throws('text', /source must be a number for float64, not a string/);
    const circle: unknown[] = [];
    circle.push(circle);
    throws(circle, /is nested more than 64 arrays deep/);
    assert.throws(() => toNested(new Float32Array(3), [2, 2]), /3 elements, but shape \[2, 2\]/);
    assert.throws(
      () => toNested(new Float32Array(4), [4], { dtype: uint8 }),
      /^TypeError: values must be a Uint8Array for uint8, not a Float32Array$/,
    );
  });
});
