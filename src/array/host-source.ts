/** Sources of copies to an array: values on the host, as items in memory. */

import { type Dtype, dtypeOf } from '../dtype.ts';
import { typedArrayKind, typedArrayLength } from '../typed-array.ts';
import { checkHostMemory, withArticle } from '../validate.ts';
import type { HostValues, ItemValue } from './items.ts';
import { type Layout, makeLayout, type Order } from './layout.ts';
import { flatten, type Nested } from './nested.ts';
import { PinnedArray } from './pinned-array.ts';
import { formatShape, type Shape, sizeOf } from './shape.ts';

/**
 * Items on the host: a flat typed array, nested arrays, one item, or a pinned array.
 */
export type HostSource<D extends Dtype> = HostValues<D> | Nested<ItemValue<D>> | PinnedArray<D>;

/** What the caller says about a source. */
export interface HostSourceOptions {
  /** Default: the dtype of the source. */
  readonly dtype?: Dtype | undefined;
  /** Default: the shape of the source; a typed array has one axis. */
  readonly shape?: Shape | undefined;
  /** The order of the items in a typed array. Default C. */
  readonly order?: Order | undefined;
}

/** Contiguous items on the host. */
export interface HostItems {
  readonly memory: Uint8Array;
  readonly layout: Layout;
  readonly dtype: Dtype;
}

/** @throws TypeError for another dtype; RangeError for another number of items */
export function toHostItems(source: unknown, options: HostSourceOptions): HostItems {
  if (source instanceof PinnedArray) {
    const { host, dtype, shape, order } = source;
    return checkedHostItems(host, dtype, shape, { ...options, order }, true);
  }
  if (typedArrayKind(source) !== undefined && !isRawItem(source, options)) {
    const array = source as HostValues<Dtype>;
    const dtype = options.dtype ?? dtypeOf(array);
    const oneAxis = [Math.floor(typedArrayLength(array) / dtype.elementsPerItem)];
    return checkedHostItems(array, dtype, oneAxis, options, false);
  }
  const { values, shape, dtype } = flatten(source, 'source', options.dtype);
  return checkedHostItems(values, dtype, shape, { ...options, order: 'C' }, true);
}

/** Whether a Uint8Array is the single item of an array without axes. */
const isRawItem = (source: unknown, { dtype, shape }: HostSourceOptions): boolean =>
  dtype?.isRaw === true && shape?.length === 0 && typedArrayKind(source) === 'Uint8Array';

function checkedHostItems(
  values: HostValues<Dtype>,
  dtype: Dtype,
  shape: Shape,
  options: HostSourceOptions,
  isShaped: boolean,
): HostItems {
  const type = options.dtype ?? dtype;
  if (!type.accepts(values) || (isShaped && type.name !== dtype.name))
    throw new TypeError(
      `source is ${isShaped ? `of ${dtype}` : withArticle(typedArrayKind(values) ?? 'object')}, not ${withArticle(type.TypedArray.name)} of ${type}`,
    );
  const sizes = options.shape ?? shape;
  const length = sizeOf(sizes) * type.elementsPerItem;
  const givenLength = typedArrayLength(values);
  if (givenLength !== length)
    throw new RangeError(
      `source has ${givenLength} elements, but shape ${formatShape(sizes)} of ${type} takes ${length}`,
    );
  const { order = 'C' } = options;
  return {
    memory: checkHostMemory(values, 'source'),
    layout: makeLayout(sizes, type.itemsize, { order }),
    dtype: type,
  };
}
