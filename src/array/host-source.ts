/** What on the host may be copied to an array, as items in memory. */

import { type Dtype, dtypeOf } from '../dtype.ts';
import { typedArrayKind, typedArrayLength } from '../typed-array.ts';
import { checkHostMemory, withArticle } from '../validate.ts';
import type { HostValues, ItemValue } from './items.ts';
import { type Layout, makeLayout, type Order } from './layout.ts';
import { flatten, type Nested } from './nested.ts';
import { PinnedArray } from './pinned-array.ts';
import { type Shape, shown, sizeOf } from './shape.ts';

/**
 * Items on the host: flat in a typed array, one after the other; in nested arrays, or one item; or in
 * a pinned array.
 */
export type HostSource<D extends Dtype> = HostValues<D> | Nested<ItemValue<D>> | PinnedArray<D>;

/** What is known of a source beside itself. */
export interface SourceTraits {
  /** Default: that of the source. */
  readonly dtype?: Dtype | undefined;
  /** Default: that of the source; a typed array has one axis. */
  readonly shape?: Shape | undefined;
  /** The order in which a typed array has the items. Default C. */
  readonly order?: Order | undefined;
}

/** Items on the host, one after the other. */
export interface HostItems {
  readonly memory: Uint8Array;
  readonly layout: Layout;
  readonly dtype: Dtype;
}

/** @throws TypeError for another dtype, RangeError for another number of items */
export function hostItems(source: unknown, traits: SourceTraits): HostItems {
  if (source instanceof PinnedArray) {
    const { host, dtype, shape, order } = source;
    return itemsOf(host, dtype, shape, { ...traits, order }, true);
  }
  if (typedArrayKind(source) !== undefined && !isRawItem(source, traits)) {
    const array = source as HostValues<Dtype>;
    const dtype = traits.dtype ?? dtypeOf(array);
    const whole = [Math.floor(typedArrayLength(array) / dtype.elementsPerItem)];
    return itemsOf(array, dtype, whole, traits, false);
  }
  const { values, shape, dtype } = flatten(source, 'source', traits.dtype);
  return itemsOf(values, dtype, shape, { ...traits, order: 'C' }, true);
}

/** Whether a Uint8Array is the one item of an array without axes. */
const isRawItem = (source: unknown, { dtype, shape }: SourceTraits): boolean =>
  dtype?.isRaw === true && shape?.length === 0 && source instanceof Uint8Array;

function itemsOf(
  values: HostValues<Dtype>,
  dtype: Dtype,
  shape: Shape,
  wanted: SourceTraits,
  isShaped: boolean,
): HostItems {
  const type = wanted.dtype ?? dtype;
  if (!type.accepts(values) || (isShaped && type.name !== dtype.name))
    throw new TypeError(
      `source is ${isShaped ? `of ${dtype}` : withArticle(typedArrayKind(values) ?? 'object')}, not ${withArticle(type.TypedArray.name)} of ${type}`,
    );
  const sizes = wanted.shape ?? shape;
  const length = sizeOf(sizes) * type.elementsPerItem;
  const given = typedArrayLength(values);
  if (given !== length)
    throw new RangeError(
      `source has ${given} elements, shape ${shown(sizes)} of ${type} takes ${length}`,
    );
  const { order = 'C' } = wanted;
  return {
    memory: checkHostMemory(values, 'source'),
    layout: makeLayout(sizes, type.itemsize, { order }),
    dtype: type,
  };
}
