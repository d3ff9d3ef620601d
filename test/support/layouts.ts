/** Layouts by chance, and the slow model of what a layout means: each index and its address. */
import assert from 'node:assert/strict';
import { crc32 } from 'node:zlib';
import fc from 'fast-check';
import { type Layout, makeLayout } from '../../src/array/layout.ts';
import { DeviceBuffer, Dtype, fromBuffer } from '../../src/index.ts';
import { trials } from './iterations.ts';

/** How often a property of layouts is tried. */
export const runs: fc.Parameters<unknown> = trials(300, 100_000);

/** Up to 4 axes of up to 4 places. */
export const anyShape: fc.Arbitrary<number[]> = fc.array(fc.integer({ min: 0, max: 4 }), {
  maxLength: 4,
});

const anyItemsize = fc.constantFrom(1, 2, 3, 4, 8);

/** Any strides at all: items may overlap, and lie as no ordinary view has them. */
const wildLayout: fc.Arbitrary<Layout> = fc
  .record({ shape: anyShape, itemsize: anyItemsize })
  .chain(({ shape, itemsize }) =>
    fc
      .array(fc.integer({ min: -24, max: 24 }), {
        minLength: shape.length,
        maxLength: shape.length,
      })
      .map((strides) => makeLayout(shape, itemsize, { strides, byteOffset: 1000 })),
  );

/** The layout of a view of an ordinary array: axes in any order, with gaps, or backwards. */
export const orderlyLayout = (shape: readonly number[], itemsize: number): fc.Arbitrary<Layout> =>
  fc
    .record({
      axes: fc.shuffledSubarray([...shape.keys()], { minLength: shape.length }),
      isPlain: fc.boolean(),
      gaps: fc.array(
        fc.record({
          step: fc.constantFrom(1, 1, 1, 2),
          more: fc.constantFrom(0, 0, 0, 1, 2),
          slack: fc.constantFrom(0, 0, 0, 0, 1),
          isBackwards: fc.integer({ min: 0, max: 5 }).map((n) => n === 0),
        }),
        { minLength: shape.length, maxLength: shape.length },
      ),
    })
    .map(({ axes, isPlain, gaps }) => {
      const strides = new Array<number>(shape.length);
      let stride = itemsize;
      for (const axis of isPlain ? [...shape.keys()].reverse() : axes) {
        const { step, more, slack, isBackwards } = gaps[axis] as (typeof gaps)[number];
        strides[axis] = isBackwards ? -stride * step : stride * step;
        stride *= step * ((shape[axis] as number) + more);
        stride += slack;
      }
      return makeLayout(shape, itemsize, { strides, byteOffset: 10_000 });
    });

/** Layouts of all sorts. */
export const anyLayout: fc.Arbitrary<Layout> = fc.oneof(
  wildLayout,
  fc
    .record({ shape: anyShape, itemsize: anyItemsize })
    .chain(({ shape, itemsize }) => orderlyLayout(shape, itemsize)),
);

/** All indices of a shape, the last axis fastest. */
export const indices = (shape: readonly number[]): number[][] =>
  shape.reduce<number[][]>(
    (heads, length) => heads.flatMap((head) => Array.from({ length }, (_, i) => [...head, i])),
    [[]],
  );

/** Where the item of an index begins. */
const addressAt = (layout: Layout, index: readonly number[]): number =>
  index.reduce(
    (address, place, axis) => address + place * (layout.strides[axis] as number),
    layout.byteOffset,
  );

/** Where the items begin, in the order C or F of their indices. */
export const addresses = (layout: Layout, order: 'C' | 'F' = 'C'): number[] =>
  order === 'C'
    ? indices(layout.shape).map((index) => addressAt(layout, index))
    : indices(layout.shape.toReversed()).map((index) => addressAt(layout, index.toReversed()));

/** Each byte that the items touch, as often as they do. */
export const bytesOf = (layout: Layout): number[] =>
  addresses(layout).flatMap((address) =>
    Array.from({ length: layout.itemsize }, (_, byte) => address + byte),
  );

/** Asserts that a view has a shape and, at each index, the item that was at another index. */
export function assertItems(
  view: Layout,
  shape: readonly number[],
  layout: Layout,
  indexBefore: (index: readonly number[]) => readonly number[],
): void {
  assert.deepEqual(view.shape, shape);
  assert.equal(view.strides.length, shape.length);
  assert.equal(view.itemsize, layout.itemsize);
  for (const index of indices(shape))
    assert.equal(addressAt(view, index), addressAt(layout, indexBefore(index)));
}

/** Layouts that NumPy described, and what cuffi says of them: see test/unit/src/array/fixtures/layouts.py. */

/** A layout as the script writes it. */
export type NumpyLayout = readonly [
  itemsize: number,
  shape: readonly number[],
  strides: readonly number[],
  byteOffset: number,
  low: number,
  high: number,
  orders: string,
  crcInC: number,
  crcInF: number,
];

const BYTE_LENGTH = 4096;
/** More than the items of any layout take. */
const ROOM = 1 << 16;

const crcOf = ({ buffer, byteOffset, byteLength }: ArrayBufferView): number =>
  crc32(new Uint8Array(buffer, byteOffset, byteLength));

/** The script's 4096 bytes on a device, and room for copies of their items. */
export class NumpyMemory implements Disposable {
  readonly #memory = DeviceBuffer.allocate(BYTE_LENGTH);
  readonly #copies = DeviceBuffer.allocate(ROOM);

  constructor() {
    this.#memory.copyFromSync(
      Uint8Array.from({ length: BYTE_LENGTH }, (_, i) => (167 * i + 13) % 251),
    );
  }

  /** Asserts that cuffi sees a layout as NumPy does, and gathers the same items. */
  assertAgrees(layout: NumpyLayout): void {
    const [itemsize, shape, strides, byteOffset, low, high, orders, crcInC, crcInF] = layout;
    const dtype = Dtype.bytes(itemsize);
    const array = fromBuffer(this.#memory, shape, dtype, { strides, byteOffset });
    const copy = fromBuffer(this.#copies, shape, dtype, { order: 'F' });
    array.copyTo(copy);
    const start = this.#memory.address;
    const { extents, isCContiguous, isFContiguous } = array;
    assert.deepEqual(
      [
        extents.low - start,
        extents.high - start,
        `${isCContiguous ? 'C' : ''}${isFContiguous ? 'F' : ''}`,
        crcOf(array.copyToHostSync()),
        crcOf(array.copyToHostSync(undefined, { order: 'F' })),
        crcOf(copy.copyToHostSync()),
      ],
      [low, high, orders, crcInC, crcInF, crcInC],
    );
  }

  [Symbol.dispose](): void {
    this.#memory.close();
    this.#copies.close();
  }
}

/** The different bytes of a buffer, in the order in which they come. */
export const valuesOf = async (buffer: DeviceBuffer): Promise<number[]> => [
  ...new Set(await buffer.copyToHost()),
];
