import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import fc from 'fast-check';
import {
  indexLayout,
  type Selector,
  type Slice,
  splitLayout,
} from '../../../../src/array/indexing.ts';
import { layoutExtents, makeLayout } from '../../../../src/array/layout.ts';
import { anyLayout, assertItems, runs } from '../../../support/layouts.ts';

const place = fc.option(fc.integer({ min: -7, max: 7 }), { nil: undefined });
const anySlice: fc.Arbitrary<Slice> = fc.record({
  start: place,
  stop: place,
  step: fc.constantFrom(undefined, 1, 2, 3, 9, -1, -2, -3, -9),
});

/** The indices that a slice selects, one by one as in the Python manual. */
function taken({ start, stop, step = 1 }: Slice, length: number): number[] {
  const at = (given: number): number => (given < 0 ? given + length : given);
  const places: number[] = [];
  const first = step > 0 ? 0 : length - 1;
  for (let i = first; i >= 0 && i < length; i += Math.sign(step)) {
    const isFrom = start === undefined || (step > 0 ? i >= at(start) : i <= at(start));
    const isTo = stop === undefined || (step > 0 ? i < at(stop) : i > at(stop));
    if (isFrom && isTo) places.push(i);
  }
  return places.filter((_, n) => n % Math.abs(step) === 0);
}

describe('indexLayout', () => {
  test('selectors choose the same items as in Python, and never leave the array', () => {
    fc.assert(
      fc.property(
        anyLayout.chain((layout) =>
          fc.record({
            layout: fc.constant(layout),
            selectors: fc.tuple(
              ...layout.shape.map((length) =>
                length === 0
                  ? anySlice
                  : fc.oneof(anySlice, fc.integer({ min: -length, max: length - 1 })),
              ),
            ),
            named: fc.nat(layout.shape.length),
            isFromEnd: fc.boolean(),
          }),
        ),
        ({ layout, selectors, named, isFromEnd }) => {
          const { shape } = layout;
          const whole = shape.length - named;
          const all: (Slice | number)[] = isFromEnd
            ? [...shape.slice(0, whole).map(() => ({})), ...selectors.slice(whole)]
            : [...selectors.slice(0, named), ...shape.slice(named).map(() => ({}))];
          const given: Selector[] = isFromEnd ? ['...', ...all.slice(whole)] : all.slice(0, named);
          const places = all.map((selector, axis) => {
            const length = shape[axis] as number;
            if (typeof selector !== 'number') return taken(selector, length);
            return [selector < 0 ? selector + length : selector];
          });
          const kept = [...all.keys()].filter((axis) => typeof all[axis] !== 'number');
          const view = indexLayout(layout, given);
          assertItems(
            view,
            kept.map((axis) => (places[axis] as number[]).length),
            layout,
            (at) =>
              places.map((some, axis) => {
                const along = kept.indexOf(axis);
                return some[along < 0 ? 0 : (at[along] as number)] as number;
              }),
          );
          const { low, high } = layoutExtents(view);
          assert.ok(low >= layoutExtents(layout).low && high <= layoutExtents(layout).high);
        },
      ),
      runs,
    );
  });
});

describe('splitLayout', () => {
  test('the parts of a split are the slices between its indices', () => {
    fc.assert(
      fc.property(
        anyLayout.filter(({ shape }) => shape.length > 0),
        fc.nat(3),
        fc.array(fc.integer({ min: -4, max: 5 }), { maxLength: 3 }),
        fc.integer({ min: 1, max: 4 }),
        (layout, place, cuts, sections) => {
          const axis = place % layout.shape.length;
          const length = layout.shape[axis] as number;
          const slices = (at: readonly number[]) =>
            [...at, undefined].map((stop, n) =>
              indexLayout(layout, [
                ...layout.shape.slice(0, axis).map(() => ({})),
                { start: n === 0 ? undefined : at[n - 1], stop },
              ]),
            );
          assert.deepEqual(splitLayout(layout, cuts, axis), slices(cuts));
          const starts = Array.from({ length }, (_, at) => at).filter((at) => at % sections === 0);
          assert.deepEqual(splitLayout(layout, { size: sections }, axis), slices(starts.slice(1)));
          if (length % sections !== 0) return;
          const size = length / sections;
          const even = Array.from({ length: sections - 1 }, (_, n) => (n + 1) * size);
          assert.deepEqual(splitLayout(layout, sections, axis - layout.shape.length), slices(even));
        },
      ),
      runs,
    );
  });
});

describe('indexLayout and splitLayout errors', () => {
  const layout = makeLayout([2, 3], 4);

  test('an index out of bounds, or one too many, throws an error with both numbers', () => {
    const refused = (selectors: readonly Selector[], message: string): void => {
      assert.throws(() => indexLayout(layout, selectors), { name: 'RangeError', message });
    };
    refused([2], 'index 2 is out of bounds for axis 0 with size 2');
    refused([0, -4], 'index -4 is out of bounds for axis 1 with size 3');
    refused([0, 0, 0], 'too many indices for shape [2, 3]: 3, not 2');
    refused(['...', '...'], "an index may have only one '...'");
    refused([{ step: 0 }], 'step must not be 0');
    refused([0.5], `index must be an integer of at least ${Number.MIN_SAFE_INTEGER}, not 0.5`);
    assert.throws(
      () => indexLayout(makeLayout([4], 8), [{ step: 2 ** 51 }]),
      /^RangeError: a stride is too large: 18014398509481984 is not a safe integer$/,
    );
    for (const wrong of ['1', null, [0, 1], { from: 1 }, { start: '1' }, undefined])
      assert.throws(
        () => indexLayout(layout, [wrong as never]),
        /^TypeError: (a selector must be an integer|slice: |start must be a number)/,
        String(wrong),
      );
    assert.throws(
      () => indexLayout(layout, 1 as never),
      /^TypeError: an index must be an array of selectors$/,
    );
  });

  test('a split into unequal parts throws', () => {
    assert.throws(() => splitLayout(layout, 2, 1), {
      name: 'RangeError',
      message: 'cannot split 3 of shape [2, 3] into 2 parts of the same size',
    });
    assert.throws(
      () => splitLayout(layout, 0),
      /^RangeError: sections must be an integer of at least 1, not 0$/,
    );
    assert.throws(
      () => splitLayout(layout, 1, 2),
      /^RangeError: axis 2 is out of bounds for an array with 2 axes$/,
    );
    assert.throws(
      () => splitLayout(layout, '1' as never),
      /^TypeError: sections must be an integer, an array of them, or \{ size \}$/,
    );
    assert.throws(
      () => splitLayout(makeLayout([], 4), 1),
      /^RangeError: axis 0 is out of bounds for an array with 0 axes$/,
    );
  });
});
