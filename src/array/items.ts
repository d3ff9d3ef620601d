/** Reads and writes single items of typed arrays as JavaScript values. */

import type { Dtype } from '../dtype.ts';
import { fromBfloat16, fromFloat16, toBfloat16, toFloat16 } from '../float16.ts';
import { counted } from '../inspect.ts';
import type { NativeFloat16Array, TypedArray } from '../typed-array.ts';
import { bytesOfView, typedArrayKind, typedArrayLength } from '../typed-array.ts';

/** A complex number. */
export interface Complex {
  readonly re: number;
  readonly im: number;
}

/** An item of any dtype; raw items are Uint8Arrays. */
export type Item = number | bigint | boolean | Complex | Uint8Array;

/** A value that can be written as a number; `true` is 1. */
type RealValue = number | bigint | boolean;

/** The type of an item when read, the values that can be written, and the typed arrays of items. */
interface DtypeTypes<I extends Item, V extends Item, A extends TypedArray | NativeFloat16Array> {
  readonly item: I;
  readonly value: V;
  readonly array: A;
}

/** By dtype name. Conditional types instead of this table would make arrays invariant in the dtype. */
interface TypesByDtypeName {
  readonly bool: DtypeTypes<boolean, RealValue, Uint8Array>;
  readonly int8: DtypeTypes<number, RealValue, Int8Array>;
  readonly int16: DtypeTypes<number, RealValue, Int16Array>;
  readonly int32: DtypeTypes<number, RealValue, Int32Array>;
  readonly int64: DtypeTypes<bigint, RealValue, BigInt64Array>;
  readonly uint8: DtypeTypes<number, RealValue, Uint8Array | Uint8ClampedArray>;
  readonly uint16: DtypeTypes<number, RealValue, Uint16Array>;
  readonly uint32: DtypeTypes<number, RealValue, Uint32Array>;
  readonly uint64: DtypeTypes<bigint, RealValue, BigUint64Array>;
  readonly float16: DtypeTypes<number, RealValue, Uint16Array | NativeFloat16Array>;
  readonly bfloat16: DtypeTypes<number, RealValue, Uint16Array>;
  readonly float8_e4m3fn: DtypeTypes<Uint8Array, Uint8Array, Uint8Array>;
  readonly float8_e5m2: DtypeTypes<Uint8Array, Uint8Array, Uint8Array>;
  readonly float32: DtypeTypes<number, RealValue, Float32Array>;
  readonly float64: DtypeTypes<number, RealValue, Float64Array>;
  readonly complex64: DtypeTypes<Complex, number | Complex, Float32Array>;
  readonly complex128: DtypeTypes<Complex, number | Complex, Float64Array>;
  readonly [raw: `V${number}`]: DtypeTypes<Uint8Array, Uint8Array, Uint8Array>;
  readonly [name: string]: DtypeTypes<Item, Item, TypedArray | NativeFloat16Array>;
}

/** The type of an item when it is read; 16-bit floats are numbers. */
export type ItemOf<D extends Dtype> = TypesByDtypeName[D['name']]['item'];

/** The values that can be written as an item of a dtype. */
export type ItemValue<D extends Dtype> = TypesByDtypeName[D['name']]['value'];

/** The typed array that holds a dtype's items on the host. */
export type HostArray<D extends Dtype> = D['TypedArray']['prototype'];

/** Every typed array that can hold a dtype's items. */
export type HostValues<D extends Dtype> = TypesByDtypeName[D['name']]['array'];

/** Returns the name of a value for an error message. */
type NameOf = () => string;

/** Writes a value as the item `at` of `into`. @throws TypeError or RangeError with the name */
export type ItemWriter = (into: TypedArray, at: number, value: unknown, nameOf: NameOf) => void;

const formatItem = (value: unknown): string =>
  typeof value === 'bigint'
    ? `${value}n`
    : typeof value === 'string'
      ? `'${value}'`
      : typeof value === 'number' || value === null || value === undefined
        ? String(value)
        : describeType(value);

function numberOf(value: unknown, nameOf: NameOf, dtype: Dtype): number {
  if (typeof value === 'number') return value;
  if (typeof value === 'boolean' || typeof value === 'bigint') return Number(value);
  throw new TypeError(`${nameOf()} must be a number for ${dtype}, not ${describeType(value)}`);
}

const describeType = (value: unknown): string =>
  value === null || value === undefined
    ? String(value)
    : typeof value === 'object'
      ? 'an object'
      : `a ${typeof value}`;

const writeBool: ItemWriter = (into, at, value, nameOf) => {
  if (value !== true && value !== false && value !== 1 && value !== 0)
    throw new TypeError(`${nameOf()} must be true or false for bool, not ${formatItem(value)}`);
  into[at] = Number(value);
};

function integerWriter(dtype: Dtype): ItemWriter {
  const bits = BigInt(dtype.itemsize * 8);
  const isSigned = dtype.name.startsWith('i');
  const min = isSigned ? -(1n << (bits - 1n)) : 0n;
  const max = (1n << (isSigned ? bits - 1n : bits)) - 1n;
  const isBig = dtype.itemsize === 8;
  return (into, at, value, nameOf) => {
    const number = typeof value === 'bigint' ? value : numberOf(value, nameOf, dtype);
    const isWhole = typeof number === 'bigint' || Number.isSafeInteger(number);
    if (!isWhole || number < min || number > max)
      throw new RangeError(
        `${nameOf()} must be an integer from ${min} to ${max} for ${dtype}, not ${formatItem(value)}` +
          (isWhole ? '' : ': round it, or use float32 or float64'),
      );
    into[at] = isBig ? BigInt(number) : Number(number);
  };
}

const floatWriter =
  (dtype: Dtype, encode: (value: number) => number): ItemWriter =>
  (into, at, value, nameOf) => {
    into[at] = encode(numberOf(value, nameOf, dtype));
  };

const complexWriter =
  (dtype: Dtype): ItemWriter =>
  (into, at, value, nameOf) => {
    const isPair = typeof value === 'object' && value !== null && 're' in value && 'im' in value;
    const { re, im } = isPair ? value : { re: value, im: 0 };
    into[2 * at] = numberOf(re, isPair ? () => `${nameOf()}.re` : nameOf, dtype);
    into[2 * at + 1] = numberOf(im, () => `${nameOf()}.im`, dtype);
  };

const rawWriter =
  (dtype: Dtype): ItemWriter =>
  (into, at, value, nameOf) => {
    const isRaw = typedArrayKind(value) === 'Uint8Array';
    if (!isRaw || typedArrayLength(value as Uint8Array) !== dtype.itemsize)
      throw new TypeError(
        `${nameOf()} must be a Uint8Array of ${counted(dtype.itemsize, 'byte')} for ${dtype}` +
          (dtype.name.startsWith('V') ? '' : ': its bits, which cuffi does not convert'),
      );
    into.set(bytesOfView(value as Uint8Array) as never, at * dtype.itemsize);
  };

/** Returns the function that writes items of a dtype. */
export function itemWriter(dtype: Dtype): ItemWriter {
  const { name } = dtype;
  if (dtype.isRaw) return rawWriter(dtype);
  if (name === 'bool') return writeBool;
  if (name.includes('int')) return integerWriter(dtype);
  if (name.startsWith('complex')) return complexWriter(dtype);
  if (name === 'float16') return floatWriter(dtype, toFloat16);
  if (name === 'bfloat16') return floatWriter(dtype, toBfloat16);
  return floatWriter(dtype, (value) => value);
}

/** The bytes of one item. @throws TypeError or RangeError for a value that does not fit */
export function itemBytes(value: unknown, dtype: Dtype): Uint8Array {
  const item = new dtype.TypedArray(dtype.elementsPerItem);
  itemWriter(dtype)(item, 0, value, () => 'value');
  return new Uint8Array(item.buffer, item.byteOffset, item.byteLength);
}

/** Reads the item `at` of a typed array. */
export function readItem<D extends Dtype>(from: TypedArray, at: number, dtype: D): ItemOf<D>;
export function readItem(from: TypedArray, at: number, dtype: Dtype): Item {
  const { name, itemsize } = dtype;
  if (dtype.isRaw) return (from as Uint8Array).slice(at * itemsize, (at + 1) * itemsize);
  if (name.startsWith('complex'))
    return { re: from[2 * at] as number, im: from[2 * at + 1] as number };
  const element = from[at] as number | bigint;
  if (name === 'bool') return element !== 0;
  if (name === 'float16') return fromFloat16(Number(element));
  if (name === 'bfloat16') return fromBfloat16(Number(element));
  return element;
}
