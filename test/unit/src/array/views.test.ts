import assert from 'node:assert/strict';
import { test } from 'node:test';
import fc from 'fast-check';
import { extents, makeLayout } from '../../../../src/array/layout.ts';
import { mayOverlapItself } from '../../../../src/array/overlap.ts';
import { broadcastTo, expandDims, squeeze, transpose } from '../../../../src/array/views.ts';
import { anyLayout, assertItems, runs } from '../../../support/layouts.ts';

const layout = makeLayout([2, 1, 3], 4);

test('transposed axes carry their items along', () => {
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

test('an axis of size 1 comes anywhere and goes again, and the items stay', () => {
  fc.assert(
    fc.property(anyLayout, fc.nat(4), fc.boolean(), (given, place, fromEnd) => {
      const at = Math.min(place, given.shape.length);
      const axis = fromEnd ? at - given.shape.length - 1 : at;
      const wider = expandDims(given, axis);
      assertItems(wider, given.shape.toSpliced(at, 0, 1), given, (index) => index.toSpliced(at, 1));
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

test('a broadcast array has its items again along axes of size 1 and new ones', () => {
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
        const { low, high } = extents(view);
        assert.ok(low >= extents(given).low && high <= extents(given).high);
      },
    ),
    runs,
  );
  assert.ok(mayOverlapItself(broadcastTo(makeLayout([3], 4), [2, 3])));
});

test('axes that are not there, or there twice, are refused', () => {
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

test('a shape that an array does not fit is refused with both', () => {
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
    /^RangeError: shape's size is too large: 18014398509481984 is no safe integer$/,
  );
  assert.throws(
    () => expandDims(makeLayout(new Array(64).fill(1), 8), 0),
    /^RangeError: shape has 65 axes: at most 64$/,
  );
});
