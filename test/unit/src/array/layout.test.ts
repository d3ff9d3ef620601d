import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import fc from 'fast-check';
import {
  contiguousStrides,
  isContiguous,
  itemsByteLength,
  type LayoutOptions,
  layoutExtents,
  makeLayout,
  mayOverlapItself,
} from '../../../../src/array/layout.ts';
import { addresses, anyLayout, anyShape, bytesOf, runs } from '../../../support/layouts.ts';

const orders = ['C', 'F'] as const;

describe('makeLayout', () => {
  test('a layout is contiguous from its offset, in the given order', () => {
    assert.deepEqual(makeLayout([2, 3], 4), {
      shape: [2, 3],
      strides: [12, 4],
      itemsize: 4,
      byteOffset: 0,
    });
    assert.deepEqual(makeLayout([2, 3], 4, { order: 'F', byteOffset: 8 }), {
      shape: [2, 3],
      strides: [4, 8],
      itemsize: 4,
      byteOffset: 8,
    });
    assert.deepEqual(makeLayout([], 8).strides, []);
    assert.deepEqual(contiguousStrides([2, 0, 3], 8), [24, 24, 8], 'as NumPy has it');
  });
});

describe('isContiguous', () => {
  test('contiguous strides place the items one after another', () => {
    fc.assert(
      fc.property(anyShape, fc.constantFrom(...orders), (shape, order) => {
        const layout = makeLayout(shape, 4, { order, byteOffset: 12 });
        const size = addresses(layout).length;
        assert.deepEqual(
          addresses(layout, order),
          Array.from({ length: size }, (_, i) => 12 + 4 * i),
        );
        assert.equal(itemsByteLength(layout), 4 * size);
        assert.deepEqual(layoutExtents(layout), { low: 12, high: 12 + 4 * size });
      }),
      runs,
    );
  });

  test('a layout is contiguous if its items follow each other, or if it is empty', () => {
    fc.assert(
      fc.property(anyLayout, fc.constantFrom(...orders), (layout, order) => {
        const expected = addresses(layout, order).every(
          (address, i) => address === layout.byteOffset + i * layout.itemsize,
        );
        assert.equal(isContiguous(layout, order), expected);
      }),
      runs,
    );
  });
});

describe('layoutExtents', () => {
  test('the extents are the lowest byte and the byte after the highest', () => {
    fc.assert(
      fc.property(anyLayout, (layout) => {
        const bytes = bytesOf(layout);
        const none = { low: layout.byteOffset, high: layout.byteOffset };
        const expected = { low: Math.min(...bytes), high: Math.max(...bytes) + 1 };
        assert.deepEqual(layoutExtents(layout), bytes.length === 0 ? none : expected);
      }),
      runs,
    );
  });
});

describe('mayOverlapItself', () => {
  test('a layout overlaps itself if two items share a byte', () => {
    fc.assert(
      fc.property(anyLayout, (layout) => {
        const bytes = bytesOf(layout);
        assert.equal(mayOverlapItself(layout), new Set(bytes).size < bytes.length);
      }),
      runs,
    );
  });

  test('an overlap is assumed if the search takes too long', () => {
    const sieve = makeLayout([50_000, 50_000], 1, { strides: [100_003, 100_000] });
    assert.equal(mayOverlapItself(sieve), true);
    assert.equal(mayOverlapItself(makeLayout(new Array(64).fill(1), 8)), false);
  });
});

describe('makeLayout errors', () => {
  test('sizes beyond the safe integers throw', () => {
    const most = 2 ** 53 - 1;
    const wide = (shape: number[], options?: LayoutOptions, itemsize = 1) => {
      assert.throws(
        () => makeLayout(shape, itemsize, options),
        /^RangeError: (.* is too large: -?\d+ is not a safe integer|shape has 65 axes: at most 64)$/,
        String(shape),
      );
    };
    assert.equal(itemsByteLength(makeLayout([most], 1)), most);
    wide([most], {}, 2);
    wide([2 ** 27, 2 ** 27]);
    wide([0, 2 ** 27, 2 ** 27]);
    wide([most], { byteOffset: 1 });
    wide([3], { strides: [2 ** 52] });
    wide([3, 3], { strides: [-(2 ** 52), -(2 ** 52)] });
    wide(new Array(65).fill(1));
    assert.deepEqual(layoutExtents(makeLayout([2], 1, { strides: [-most] })), {
      low: -most,
      high: 1,
    });
  });

  test('an invalid shape, strides or order throws an error that names it', () => {
    const refused = (
      shape: unknown,
      options: object,
      name: string,
      message: string | RegExp,
    ): void => {
      assert.throws(() => makeLayout(shape as number[], 4, options), { name, message });
    };
    refused(5, {}, 'TypeError', 'shape must be an array of integers');
    refused([2, -1], {}, 'RangeError', 'shape[1] must be an integer of at least 0, not -1');
    refused([2.5], {}, 'RangeError', /^shape\[0\]/);
    refused(['2'], {}, 'TypeError', /^shape\[0\] must be a number/);
    // biome-ignore lint/suspicious/noSparseArray: a hole is not a size
    refused([1, , 2], {}, 'TypeError', /^shape\[1\] must be a number/);
    refused([2, 3], { strides: [4] }, 'RangeError', '1 strides do not fit the shape [2, 3]');
    refused([2], { strides: [0.5] }, 'RangeError', /^strides\[0\]/);
    refused([2], { strides: 4 }, 'TypeError', 'strides must be an array of integers');
    refused([2], { order: 'A' }, 'TypeError', "order must be 'C' or 'F', not A");
    refused([2], { byteOffset: -1 }, 'RangeError', /^byteOffset/);
    assert.throws(() => makeLayout([2], 0), { name: 'RangeError', message: /^itemsize/ });
  });
});
