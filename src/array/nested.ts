/** Converts between nested JavaScript arrays and flat typed arrays. */

import {
  type AnyDtypeName,
  bool,
  complex128,
  type Dtype,
  type DtypeOf,
  type DtypeOrName,
  defaultDtype,
  dtype as dtypeNamed,
  dtypeOf,
  int64,
  type NamedDtype,
} from '../dtype.ts';
import { thrownFrom } from '../errors.ts';
import { type TypedArray, typedArrayKind, typedArrayLength } from '../typed-array.ts';
import { checkOptions, withArticle } from '../validate.ts';
import { type Item, type ItemOf, itemWriter, readItem } from './items.ts';
import { checkOrder, contiguousStrides, type Order } from './layout.ts';
import { checkShape, formatShape, type Shape, sizeOf } from './shape.ts';

/** One item, or nested arrays of items; all arrays of one depth have the same length. */
export type Nested<T> = T | readonly Nested<T>[];

/** Nested arrays of a shape, e.g. `T[][]` for one of two axes; {@link Nested} if the rank is unknown. */
export type NestedOf<T, S extends Shape> = number extends S['length']
  ? Nested<T>
  : S extends readonly [number, ...infer Rest extends Shape]
    ? NestedOf<T, Rest>[]
    : T;

/** Options of {@link toNested}. */
export interface NestedOptions<D extends Dtype = Dtype> {
  /** The dtype of the values, or its name. Default: `dtypeOf(values)`. */
  readonly dtype?: DtypeOrName<D>;
  /** The order of the values. Default C. */
  readonly order?: Order;
}

/**
 * Converts flat values, as copies to the host return them, to nested arrays of items; a shape without
 * axes gives one item. Meant for reading and printing small results, not for computing.
 *
 * @throws TypeError; RangeError if the number of values does not fit the shape
 * @example
 * cuda.toNested(new Float32Array([1, 2, 3, 4]), [2, 2]); // [[1, 2], [3, 4]]
 */
export function toNested<D extends Dtype, const S extends Shape>(
  values: TypedArray,
  shape: S,
  options: NestedOptions<D> & { readonly dtype: D },
): NestedOf<ItemOf<D>, S>;
export function toNested<N extends AnyDtypeName, const S extends Shape>(
  values: TypedArray,
  shape: S,
  options: NestedOptions & { readonly dtype: N },
): NestedOf<ItemOf<NamedDtype<N>>, S>;
export function toNested<A extends TypedArray, const S extends Shape>(
  values: A,
  shape: S,
  options?: NestedOptions & { readonly dtype?: undefined },
): NestedOf<ItemOf<DtypeOf<A>>, S>;
export function toNested(values: TypedArray, shape: Shape, options?: NestedOptions): Nested<Item> {
  const { dtype: given, order = 'C' } = checkOptions(options, ['dtype', 'order'], 'toNested');
  const dtype: Dtype = given === undefined ? dtypeOf(values) : dtypeNamed(given);
  const sizes = checkShape(shape);
  const length = sizeOf(sizes) * dtype.elementsPerItem;
  if (!dtype.accepts(values))
    throw new TypeError(
      `values must be ${withArticle(dtype.TypedArray.name)} for ${dtype}, not ${withArticle(typedArrayKind(values) ?? 'object')}`,
    );
  const givenLength = typedArrayLength(values);
  if (givenLength !== length)
    throw new RangeError(
      `values has ${givenLength} elements, but shape ${formatShape(sizes)} of ${dtype} takes ${length}`,
    );
  const strides = contiguousStrides(sizes, 1, checkOrder(order));
  const read = (axis: number, at: number): Nested<Item> => {
    const size = sizes[axis];
    if (size === undefined) return readItem<Dtype>(values, at, dtype);
    const stride = strides[axis] as number;
    return Array.from({ length: size }, (_, place) => read(axis + 1, at + place * stride));
  };
  return read(0, 0);
}

/** The items of nested arrays as one typed array in order C. */
export interface FlatItems {
  readonly values: TypedArray;
  readonly shape: Shape;
  readonly dtype: Dtype;
}

const MAX_DEPTH = 64;

/**
 * Flattens nested arrays into one typed array.
 *
 * @param dtype default: the dtype that fits the items, float64 if there are no items
 * @throws TypeError, RangeError with the index of an invalid item or of an array of another length
 */
export function flatten(source: unknown, name: string, dtype?: Dtype): FlatItems {
  const shape: number[] = [];
  const leaves: unknown[] = [];
  collectLeaves(source, shape, name, leaves);
  const type = dtype ?? inferDtype(leaves, name);
  const values = new type.TypedArray(leaves.length * type.elementsPerItem);
  const write = itemWriter(type);
  let at = 0;
  const nameOf = (): string => `${name}${indexPath(at, shape)}`;
  for (; at < leaves.length; at += 1) write(values, at, leaves[at], nameOf);
  return { values, shape, dtype: type };
}

// ---- Reading nested arrays ----

/** The index of an item as text, e.g. `[1][0]`. */
const indexPath = (at: number, shape: Shape): string =>
  contiguousStrides(shape, 1)
    .map((stride, axis) => `[${Math.floor(at / stride) % (shape[axis] as number)}]`)
    .join('');

/**
 * Appends the items in `source` to `leaves`, reading each array once. The first array at each depth
 * sets the length of all others in `shape`.
 *
 * @param isFirst whether `source` is the first array at its depth
 */
function collectLeaves(
  source: unknown,
  shape: number[],
  path: string,
  leaves: unknown[],
  depth = 0,
  isFirst = true,
): void {
  const isList = Array.isArray(source);
  const ownLength = isList ? source.length : undefined;
  if (isFirst && ownLength !== undefined) {
    if (depth === MAX_DEPTH)
      throw thrownFrom(
        flatten,
        new RangeError(`${path.replace(/\[.*/, '')} is nested more than ${MAX_DEPTH} arrays deep`),
      );
    shape.push(ownLength);
  }
  const length = shape[depth];
  if (length === undefined) {
    if (isList)
      throw thrownFrom(
        flatten,
        new RangeError(`${path} is an array where others are items: shape ${formatShape(shape)}`),
      );
    if (ArrayBuffer.isView(source) && typedArrayKind(source) !== 'Uint8Array')
      throw thrownFrom(
        flatten,
        new TypeError(`${path} is a typed array: pass one for all items, and the shape`),
      );
    leaves.push(source);
    return;
  }
  if (!isList || ownLength !== length)
    throw thrownFrom(
      flatten,
      new RangeError(
        `${path} is ${isList ? `${ownLength} long` : 'not an array'} where others are ${length} long`,
      ),
    );
  for (let i = 0; i < length; i += 1)
    collectLeaves(source[i], shape, `${path}[${i}]`, leaves, depth + 1, isFirst && i === 0);
}

/** The dtype of items for which none is given. */
function inferDtype(leaves: readonly unknown[], name: string): Dtype {
  const kinds = new Set(leaves.map((leaf) => typeof leaf));
  if (kinds.size === 0) return defaultDtype;
  if (kinds.has('bigint')) {
    if (kinds.size === 1) return int64;
    throw thrownFrom(
      flatten,
      new TypeError(`${name} mixes bigints with other items: pass a dtype`),
    );
  }
  if (kinds.has('object')) return complex128;
  return kinds.size === 1 && kinds.has('boolean') ? bool : defaultDtype;
}
