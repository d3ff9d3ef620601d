/** The typed arrays of JavaScript, as far as the items of a dtype may be held in one. */

/** Any typed array that every supported version of Node has. */
export type TypedArray =
  | Int8Array
  | Uint8Array
  | Uint8ClampedArray
  | Int16Array
  | Uint16Array
  | Int32Array
  | Uint32Array
  | BigInt64Array
  | BigUint64Array
  | Float32Array
  | Float64Array;

/** A native Float16Array, which Node 24 and later have: told by its tag, as no type names it here. */
export interface NativeFloat16Array extends ArrayBufferView {
  readonly [Symbol.toStringTag]: 'Float16Array';
  readonly length: number;
}

/** The constructor of one kind of typed array: zeros, or a view of a buffer. */
export interface TypedArrayConstructor<A extends TypedArray> {
  new (length: number): A;
  new (buffer: ArrayBufferLike, byteOffset?: number, length?: number): A;
  readonly prototype: A;
  /** E.g. `Float32Array`. */
  readonly name: string;
  readonly BYTES_PER_ELEMENT: number;
}

/** The kind of a typed array, e.g. `Uint8Array` for a Buffer; undefined for anything else. */
export const typedArrayKind = (value: unknown): string | undefined =>
  ArrayBuffer.isView(value) && !(value instanceof DataView)
    ? (value as TypedArray | NativeFloat16Array)[Symbol.toStringTag]
    : undefined;
