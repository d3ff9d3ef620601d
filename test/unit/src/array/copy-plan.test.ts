import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import fc from 'fast-check';
import { type CopyPlan, copyOffsets, planCopy } from '../../../../src/array/copy-plan.ts';
import { indexLayout } from '../../../../src/array/indexing.ts';
import { type Layout, makeLayout } from '../../../../src/array/layout.ts';
import { broadcastTo, transpose } from '../../../../src/array/views.ts';
import { addresses, anyShape, bytesOf, orderlyLayout, runs } from '../../../support/layouts.ts';

/** Each byte that a plan writes, with the byte that it reads. */
function carriedOut(plan: CopyPlan): [target: number, source: number][] {
  const { width, height, depth, source, target } = plan;
  const bytes: [number, number][] = [];
  for (const [from, to] of copyOffsets(plan))
    for (let slice = 0; slice < depth; slice += 1)
      for (let row = 0; row < height; row += 1)
        for (let byte = 0; byte < width; byte += 1)
          bytes.push([
            to + slice * target.slicePitch + row * target.rowPitch + byte,
            from + slice * source.slicePitch + row * source.rowPitch + byte,
          ]);
  return bytes.sort(([a], [b]) => a - b);
}

/** The same, item by item. */
function expected(source: Layout, target: Layout): [target: number, source: number][] {
  const from = bytesOf(source);
  return bytesOf(target)
    .map((byte, n): [number, number] => [byte, from[n] as number])
    .sort(([a], [b]) => a - b);
}

const pairs = fc
  .record({ shape: anyShape, itemsize: fc.constantFrom(1, 2, 4) })
  .chain(({ shape, itemsize }) =>
    fc.record({
      source: fc.oneof(
        orderlyLayout(shape, itemsize),
        // Includes axes with a source stride of 0.
        orderlyLayout(
          shape.map((length, axis) => (axis % 2 === 0 && length > 0 ? 1 : length)),
          itemsize,
        ).map((layout) => broadcastTo(layout, shape)),
      ),
      target: orderlyLayout(shape, itemsize),
    }),
  );

describe('planCopy', () => {
  test('a plan writes each byte of the target once, from the right byte of the source', () => {
    fc.assert(
      fc.property(pairs, ({ source, target }) => {
        const plan = planCopy(source, target);
        if (source.shape.includes(0)) assert.equal(plan, undefined);
        else assert.deepEqual(carriedOut(plan as CopyPlan), expected(source, target));
      }),
      runs,
    );
  });

  test('every box is valid for the driver, and has the right kind', () => {
    fc.assert(
      fc.property(pairs, ({ source, target }) => {
        const plan = planCopy(source, target);
        if (!plan) return;
        const { kind, width, height, depth, count } = plan;
        for (const { rowPitch, slicePitch } of [plan.source, plan.target]) {
          assert.ok(rowPitch >= width);
          assert.ok(slicePitch >= rowPitch * height && slicePitch % rowPitch === 0);
        }
        const size = addresses(target).length;
        assert.equal(width * height * depth * count, size * target.itemsize);
        assert.ok(height > 1 || depth === 1);
        const isOfItems = width === target.itemsize && size > 1;
        assert.equal(kind, isOfItems ? 'gather' : height > 1 ? 'box' : 'run');
        assert.equal([...copyOffsets(plan)].length, count);
      }),
      runs,
    );
  });

  const summary = (source: Layout, target: Layout): unknown[] => {
    const { kind, width, height, depth, count } = planCopy(source, target) as CopyPlan;
    return [kind, width, height, depth, count];
  };

  test('axes that are contiguous on both sides are copied as one run', () => {
    const array = makeLayout([2, 3, 4, 5, 6], 4);
    const inOrderF = makeLayout([2, 3, 4, 5, 6], 4, { order: 'F' });
    assert.deepEqual(summary(array, array), ['run', 2880, 1, 1, 1]);
    assert.deepEqual(summary(inOrderF, inOrderF), ['run', 2880, 1, 1, 1]);
    assert.deepEqual(summary(makeLayout([], 8), makeLayout([], 8)), ['run', 8, 1, 1, 1]);
    const backwards = indexLayout(array, [{ step: -1 }, {}, {}, { step: -1 }]);
    assert.deepEqual(summary(backwards, backwards), ['run', 2880, 1, 1, 1]);
    // Axes of size 1 may have any stride.
    const odd = makeLayout([1, 12], 4, { strides: [7, 4] });
    assert.deepEqual(summary(odd, makeLayout([1, 12], 4)), ['run', 48, 1, 1, 1]);
  });

  test('parts of planes and of volumes are copied as one box', () => {
    const plane = indexLayout(makeLayout([20, 30], 4), [{ start: 2, stop: 12 }, { stop: 7 }]);
    assert.deepEqual(planCopy(plane, makeLayout([10, 7], 4)), {
      kind: 'box',
      width: 28,
      height: 10,
      depth: 1,
      source: { byteOffset: 240, rowPitch: 120, slicePitch: 1200 },
      target: { byteOffset: 0, rowPitch: 28, slicePitch: 280 },
      axes: [{ length: 10, source: 120, target: 28 }],
      repetitions: [],
      count: 1,
    });
    const volume = makeLayout([4, 20, 30], 4);
    const part = indexLayout(volume, [{}, { stop: 5 }, { stop: 7 }]);
    assert.deepEqual(summary(part, makeLayout([4, 5, 7], 4)), ['box', 28, 5, 4, 1]);
    const everySecond = indexLayout(volume, [{ step: 2 }, {}, { stop: 7 }]);
    assert.deepEqual(summary(everySecond, makeLayout([2, 20, 7], 4)), ['box', 28, 20, 2, 1]);
    const fourAxes = indexLayout(makeLayout([3, 4, 20, 30], 4), [{}, {}, { stop: 5 }, { stop: 7 }]);
    assert.deepEqual(summary(fourAxes, makeLayout([3, 4, 5, 7], 4)), ['box', 28, 5, 12, 1]);
    const spread = indexLayout(makeLayout([3, 4, 20, 30], 4), [
      {},
      { step: 2 },
      { stop: 5 },
      { stop: 7 },
    ]);
    assert.deepEqual(summary(spread, makeLayout([3, 2, 5, 7], 4)), ['box', 28, 5, 6, 1]);
  });

  test('reversed rows are copied one by one, and single items are gathered', () => {
    const plane = makeLayout([20, 30], 4);
    assert.deepEqual(summary(indexLayout(plane, [{ step: -1 }]), plane), ['run', 120, 1, 1, 20]);
    assert.deepEqual(summary(broadcastTo(makeLayout([30], 4), [20, 30]), plane), [
      'run',
      120,
      1,
      1,
      20,
    ]);
    const column = indexLayout(plane, [{}, 3]);
    assert.deepEqual(summary(column, makeLayout([20], 4)), ['gather', 4, 20, 1, 1]);
    assert.deepEqual(summary(transpose(plane), makeLayout([30, 20], 4)), ['gather', 4, 30, 1, 20]);
    const backwards = indexLayout(makeLayout([6], 4), [{ step: -1 }]);
    assert.deepEqual(summary(backwards, makeLayout([6], 4)), ['gather', 4, 1, 1, 6]);
  });

  test('slices whose pitch is not a multiple of the row pitch are copied one by one', () => {
    const odd = makeLayout([2, 3, 4], 1, { strides: [29, 8, 1] });
    assert.deepEqual(summary(odd, makeLayout([2, 3, 4], 1)), ['box', 4, 3, 1, 2]);
  });

  test('a pitch may be as large as the driver’s limit, and not larger', () => {
    const largest = makeLayout([3, 8], 1, { strides: [2 ** 31 - 1, 1] });
    assert.deepEqual(summary(largest, makeLayout([3, 8], 1)), ['box', 8, 3, 1, 1]);
    assert.deepEqual(summary(makeLayout([3, 8], 1), largest), ['box', 8, 3, 1, 1]);
    const far = makeLayout([3, 8], 1, { strides: [2 ** 31, 1] });
    assert.deepEqual(summary(far, makeLayout([3, 8], 1)), ['run', 8, 1, 1, 3]);
  });

  test('different shapes and item sizes throw an error with both', () => {
    const array = makeLayout([2, 3], 4);
    assert.throws(() => planCopy(array, makeLayout([3, 2], 4)), {
      name: 'RangeError',
      message: 'cannot copy shape [2, 3] to shape [3, 2]',
    });
    assert.throws(() => planCopy(array, makeLayout([2, 3, 1], 4)), {
      name: 'RangeError',
      message: 'cannot copy shape [2, 3] to shape [2, 3, 1]',
    });
    assert.throws(() => planCopy(array, makeLayout([2, 3], 8)), {
      name: 'RangeError',
      message: 'cannot copy items of 4 bytes to items of 8 bytes',
    });
  });
});
