import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import fc from 'fast-check';
import {
  isContiguous,
  type Layout,
  layoutExtents,
  makeLayout,
  mayOverlapItself,
} from '../../../../src/array/layout.ts';
import {
  broadcastTo,
  expandDims,
  type Reshaped,
  ravel,
  reshape,
  squeeze,
  transpose,
  viewWithItemsize,
} from '../../../../src/array/views.ts';
import {
  addresses,
  anyLayout,
  assertItems,
  bytesOf,
  indices,
  runs,
} from '../../../support/layouts.ts';

describe('transpose', () => {
  const layout = makeLayout([2, 1, 3], 4);

  test('transposed axes keep their items', () => {
    fc.assert(
      fc.property(
        anyLayout.chain((given) =>
          fc.record({
            given: fc.constant(given),
            axes: fc.shuffledSubarray([...given.shape.keys()], { minLength: given.shape.length }),
            fromEnd: fc.boolean(),
          }),
        ),
        ({ given, axes, fromEnd }) => {
          const { shape } = given;
          const named = fromEnd ? axes.map((axis) => axis - axes.length) : axes;
          const before = (index: readonly number[]): number[] =>
            shape.map((_, axis) => index[axes.indexOf(axis)] as number);
          assertItems(
            transpose(given, named),
            axes.map((axis) => shape[axis] as number),
            given,
            before,
          );
          assertItems(transpose(given), shape.toReversed(), given, (index) => index.toReversed());
        },
      ),
      runs,
    );
  });

  test('an axis of size 1 can be inserted anywhere and removed again', () => {
    fc.assert(
      fc.property(anyLayout, fc.nat(4), fc.boolean(), (given, place, fromEnd) => {
        const at = Math.min(place, given.shape.length);
        const axis = fromEnd ? at - given.shape.length - 1 : at;
        const wider = expandDims(given, axis);
        assertItems(wider, given.shape.toSpliced(at, 0, 1), given, (index) =>
          index.toSpliced(at, 1),
        );
        assert.deepEqual(squeeze(wider, axis), given);
        const kept = [...given.shape.keys()].filter((each) => given.shape[each] !== 1);
        assertItems(
          squeeze(wider),
          kept.map((each) => given.shape[each] as number),
          given,
          (index) =>
            given.shape.map(
              (_, each) => (kept.includes(each) ? index[kept.indexOf(each)] : 0) as number,
            ),
        );
      }),
      runs,
    );
  });

  test('a broadcast array repeats its items along axes of size 1 and new axes', () => {
    fc.assert(
      fc.property(
        anyLayout.chain((given) =>
          fc.record({
            given: fc.constant(given),
            sizes: fc.tuple(...given.shape.map((n) => (n === 1 ? fc.nat(3) : fc.constant(n)))),
            added: fc.array(fc.nat(3), { maxLength: 2 }),
          }),
        ),
        ({ given, sizes, added }) => {
          const shape = [...added, ...sizes];
          const view = broadcastTo(given, shape);
          assertItems(view, shape, given, (index) =>
            index.slice(added.length).map((place, axis) => (given.shape[axis] === 1 ? 0 : place)),
          );
          const { low, high } = layoutExtents(view);
          assert.ok(low >= layoutExtents(given).low && high <= layoutExtents(given).high);
        },
      ),
      runs,
    );
    assert.ok(mayOverlapItself(broadcastTo(makeLayout([3], 4), [2, 3])));
  });

  test('missing and repeated axes throw', () => {
    const refused = (view: () => unknown, message: string): void => {
      assert.throws(view, { name: 'RangeError', message });
    };
    refused(() => transpose(layout, [0, 1]), 'axes [0, 1] do not match an array with 3 axes');
    refused(() => transpose(layout, [0, 1, 1]), 'axis 1 is given twice');
    refused(() => transpose(layout, [0, 1, -2]), 'axis 1 is given twice');
    refused(() => transpose(layout, [0, 1, 3]), 'axis 3 is out of bounds for an array with 3 axes');
    refused(() => squeeze(layout, 0), 'axis 0 of shape [2, 1, 3] has size 2, not 1');
    refused(() => squeeze(layout, [1, -2]), 'axis 1 is given twice');
    refused(() => squeeze(layout, -4), 'axis -4 is out of bounds for an array with 3 axes');
    refused(() => expandDims(layout, 4), 'axis 4 is out of bounds for an array with 4 axes');
    assert.throws(
      () => transpose(layout, 'C' as never),
      /^TypeError: axes must be an array of integers$/,
    );
    assert.throws(
      () => expandDims(layout, '1' as never),
      /^TypeError: axis must be a number, not "1"$/,
    );
  });

  test('an incompatible shape throws an error with both shapes', () => {
    for (const shape of [[3], [2, 2, 4], [2, 0, 4], [1, 1, 3], []])
      assert.throws(() => broadcastTo(layout, shape), {
        name: 'RangeError',
        message: `cannot broadcast shape [2, 1, 3] to [${shape.join(', ')}]`,
      });
    assert.throws(
      () => broadcastTo(makeLayout([1], 8), [2 ** 51]),
      /^RangeError: the byte length of shape \[2251799813685248\] is too large:/,
    );
    assert.throws(
      () => broadcastTo(makeLayout([0, 1, 1], 8), [0, 2 ** 27, 2 ** 27]),
      /^RangeError: shape's size is too large: 18014398509481984 is not a safe integer$/,
    );
    assert.throws(
      () => expandDims(makeLayout(new Array(64).fill(1), 8), 0),
      /^RangeError: shape has 65 axes: at most 64$/,
    );
  });
});

describe('reshape', () => {
  const anyOrder = fc.constantFrom('C' as const, 'F' as const);
  const sizeOf = (shape: readonly number[]): number => indices(shape).length;

  /** Shapes of a number of items. */
  const shapesOf = (size: number): fc.Arbitrary<number[]> => {
    if (size === 0) return fc.constantFrom([0], [0, 3], [2, 0, 1], [0, 0], [1, 4, 0]);
    const factors = [2, 3, 4, 6, 8, 9, 12].filter((factor) => size % factor === 0);
    const ones = fc.array(fc.constant(1), { maxLength: 1 });
    const rest: fc.Arbitrary<number[]> =
      factors.length === 0
        ? fc.constant(size === 1 ? [] : [size])
        : fc
            .constantFrom(...factors)
            .chain((factor) => shapesOf(size / factor).map((shape) => [factor, ...shape]));
    return fc.tuple(ones, rest).map(([some, more]) => [...some, ...more]);
  };

  /** A layout, and a shape with the same number of items. */
  const reshapes = anyLayout.chain((layout) =>
    fc.record({
      layout: fc.constant(layout),
      shape: shapesOf(sizeOf(layout.shape)),
      order: anyOrder,
    }),
  );

  /** Whether some strides place the items, in an order, at these addresses. */
  function isStrided(items: readonly number[], shape: readonly number[], layout: Layout): boolean {
    const at = indices(shape);
    const stride = (axis: number): number => {
      const next = at.findIndex((index) =>
        index.every((place, each) => place === Number(each === axis)),
      );
      return next < 0 ? 0 : (items[next] as number) - (items[0] as number);
    };
    const strides = shape.map((_, axis) => stride(axis));
    const candidate = { ...layout, shape, strides };
    return addresses(candidate).every((address, n) => address === items[n]);
  }

  test('a reshape is a view exactly if strides can express it', () => {
    fc.assert(
      fc.property(reshapes, ({ layout, shape, order }) => {
        const result = reshape(layout, shape, order);
        assert.deepEqual(result.shape, shape);
        const items = addresses(layout, order);
        const inOrderC =
          order === 'C'
            ? items
            : indices(shape).map(
                (index) =>
                  items[
                    index.reduceRight((at, place, axis) => at * (shape[axis] as number) + place, 0)
                  ],
              );
        if (result.view) {
          assert.deepEqual(result.view.shape, shape);
          assert.deepEqual(addresses(result.view, order), items);
        } else assert.ok(!isStrided(inOrderC as number[], shape, layout));
      }),
      runs,
    );
  });

  test('one size may be left open if the others determine it', () => {
    fc.assert(
      fc.property(reshapes, fc.nat(7), ({ layout, shape, order }, place) => {
        if (shape.length === 0) return;
        const open = shape.with(place % shape.length, -1);
        const isTold = sizeOf(shape.toSpliced(place % shape.length, 1)) > 0;
        if (isTold) assert.deepEqual(reshape(layout, open, order), reshape(layout, shape, order));
        else
          assert.throws(
            () => reshape(layout, open, order),
            /^RangeError: cannot reshape \d+ elements into \[/,
          );
      }),
      runs,
    );
  });

  test('a ravel is a view of contiguous items only', () => {
    fc.assert(
      fc.property(anyLayout, anyOrder, (layout, order) => {
        const { shape, view } = ravel(layout, order);
        assert.deepEqual(shape, [sizeOf(layout.shape)]);
        assert.equal(view !== undefined, isContiguous(layout, order));
        if (view) assert.deepEqual(addresses(view), addresses(layout, order));
      }),
      runs,
    );
  });

  test('a view with another item size needs a contiguous last axis', () => {
    fc.assert(
      fc.property(anyLayout, fc.constantFrom(1, 2, 3, 4, 6, 8, 16), (layout, itemsize) => {
        const { shape, strides } = layout;
        const length = shape.at(-1);
        const isTogether = length === 1 || shape.includes(0) || strides.at(-1) === layout.itemsize;
        const bytes = (length ?? 0) * layout.itemsize;
        const isWhole = itemsize < layout.itemsize ? layout.itemsize % itemsize : bytes % itemsize;
        if (itemsize === layout.itemsize) assert.equal(viewWithItemsize(layout, itemsize), layout);
        else if (length === undefined || !isTogether || isWhole !== 0)
          assert.throws(
            () => viewWithItemsize(layout, itemsize),
            /^RangeError: cannot view (items of \d|a single item of \d|the last axis, )/,
          );
        else {
          const view = viewWithItemsize(layout, itemsize);
          assert.deepEqual(view.shape, [...shape.slice(0, -1), bytes / itemsize]);
          assert.equal(view.itemsize, itemsize);
          assert.deepEqual(bytesOf(view), bytesOf(layout));
        }
      }),
      runs,
    );
  });

  test('reshapes of transposed arrays, of arrays with gaps and of reversed items are known', () => {
    const layout = makeLayout([2, 3, 4], 8);
    const view = ({ view: found }: Reshaped): readonly number[] | undefined => found?.strides;
    assert.deepEqual(view(reshape(layout, [6, -1])), [32, 8]);
    assert.deepEqual(view(reshape(layout, [4, 6])), [48, 8]);
    assert.equal(view(reshape(transpose(layout), [-1])), undefined);
    assert.deepEqual(view(reshape(transpose(layout), [-1], 'F')), [8]);
    const everySecond = makeLayout([2, 6], 8, { strides: [192, 16] });
    assert.deepEqual(view(reshape(everySecond, [2, 2, 3])), [192, 48, 16]);
    assert.equal(view(reshape(everySecond, [12])), undefined);
    const backwards = makeLayout([6], 8, { strides: [-8], byteOffset: 40 });
    assert.deepEqual(view(reshape(backwards, [2, 3])), [-24, -8]);
    assert.equal(ravel(backwards).view, undefined);
  });

  test('a wrong number of items, and bytes that do not make whole items, throw', () => {
    const layout = makeLayout([3, 4], 4);
    const refused = (call: () => unknown, message: string): void => {
      assert.throws(call, { name: 'RangeError', message });
    };
    refused(() => reshape(layout, [5, 3]), 'cannot reshape 12 elements into [5, 3]');
    refused(() => reshape(layout, [5, -1]), 'cannot reshape 12 elements into [5, -1]');
    refused(() => reshape(layout, [0, -1]), 'cannot reshape 12 elements into [0, -1]');
    refused(() => reshape(layout, [-1, -1]), 'only one size of [-1, -1] may be left open');
    refused(() => reshape(layout, [-2]), 'shape[0] must be an integer of at least -1, not -2');
    refused(
      () => viewWithItemsize(layout, 3),
      'cannot view the last axis, 4 items of 4 bytes as items of 3',
    );
    refused(
      () => viewWithItemsize(transpose(layout), 2),
      'cannot view items of 4 bytes as items of 2: the last axis is not contiguous, its stride is 16',
    );
    refused(
      () => viewWithItemsize(makeLayout([], 4), 2),
      'cannot view a single item of 4 bytes as items of 2',
    );
    assert.throws(
      () => reshape(layout, [12], 'K' as never),
      /^TypeError: order must be 'C' or 'F', not K$/,
    );
    assert.throws(
      () => reshape(layout, 12 as never),
      /^TypeError: shape must be an array of integers$/,
    );
  });
});
