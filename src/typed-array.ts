/** JavaScript's typed arrays, and their properties as the engine knows them. */

/** Any typed array that all supported versions of Node have. Fresh memory is an ArrayBuffer. */
export type TypedArray<B extends ArrayBufferLike = ArrayBufferLike> =
  | Int8Array<B>
  | Uint8Array<B>
  | Uint8ClampedArray<B>
  | Int16Array<B>
  | Uint16Array<B>
  | Int32Array<B>
  | Uint32Array<B>
  | BigInt64Array<B>
  | BigUint64Array<B>
  | Float32Array<B>
  | Float64Array<B>;

/** A native Float16Array of Node 24 and later, recognized by its tag: older type libraries lack it. */
export interface NativeFloat16Array extends ArrayBufferView {
  readonly [Symbol.toStringTag]: 'Float16Array';
  readonly length: number;
}

/** The constructor of one kind of typed array, for zeros or for a view of a buffer. */
export interface TypedArrayConstructor<A extends TypedArray> {
  new (length: number): A;
  new (buffer: ArrayBuffer, byteOffset?: number, length?: number): A;
  readonly prototype: A;
  /** E.g. `Float32Array`. */
  readonly name: string;
  readonly BYTES_PER_ELEMENT: number;
}

/** The engine's own getter of a property: an object may override the property itself. */
const getterOf = (prototype: object, name: PropertyKey): (() => unknown) =>
  Object.getOwnPropertyDescriptor(prototype, name)?.get as () => unknown;

const typedArrayPrototype = Object.getPrototypeOf(Uint8Array.prototype) as object;
const kindOf = getterOf(typedArrayPrototype, Symbol.toStringTag);
const bufferOf = getterOf(typedArrayPrototype, 'buffer');
const byteOffsetOf = getterOf(typedArrayPrototype, 'byteOffset');
const byteLengthOf = getterOf(typedArrayPrototype, 'byteLength');
const lengthOf = getterOf(typedArrayPrototype, 'length');
const bufferOfDataView = getterOf(DataView.prototype, 'buffer');
const byteOffsetOfDataView = getterOf(DataView.prototype, 'byteOffset');
const byteLengthOfDataView = getterOf(DataView.prototype, 'byteLength');

/**
 * Returns the kind of a typed array, e.g. `Uint8Array` for a Buffer; undefined for anything else. A
 * subclass cannot change the result.
 */
export const typedArrayKind = (value: unknown): string | undefined =>
  kindOf.call(value) as string | undefined;

/** Returns the real number of elements of a typed array. */
export const typedArrayLength = (value: ArrayBufferView): number => lengthOf.call(value) as number;

/** Returns the real memory of a view. */
export const bufferOfView = (view: ArrayBufferView): ArrayBufferLike =>
  (typedArrayKind(view) === undefined
    ? bufferOfDataView.call(view)
    : bufferOf.call(view)) as ArrayBufferLike;

/**
 * Returns the real bytes of a view, without copying: with the values of overridden properties, a copy
 * could go beyond the end of the memory.
 *
 * @throws TypeError if the memory is detached
 */
export const bytesOfView = (view: ArrayBufferView): Uint8Array =>
  typedArrayKind(view) === undefined
    ? new Uint8Array(
        bufferOfDataView.call(view) as ArrayBufferLike,
        byteOffsetOfDataView.call(view) as number,
        byteLengthOfDataView.call(view) as number,
      )
    : new Uint8Array(
        bufferOf.call(view) as ArrayBufferLike,
        byteOffsetOf.call(view) as number,
        byteLengthOf.call(view) as number,
      );
