import { inspect } from 'node:util';
import { checkInteger, requireMade } from './arguments.ts';
import { type TypedArray, type TypedArrayConstructor, typedArrayKind } from './typed-array.ts';

/** A type as DLPack writes it: DLDataType. */
export interface DlpackType {
  /** 0 int, 1 uint, 2 float, 4 bfloat, 5 complex, 6 bool. */
  readonly code: number;
  /** The bits of one lane. */
  readonly bits: number;
  /** 1, but for vectors. */
  readonly lanes: number;
}

/** The largest itemsize that NumPy has. */
const MAX_ITEMSIZE = 2 ** 31 - 1;
/** DLDataType has 16 bits for them. */
const MAX_LANES = 2 ** 16 - 1;

/** The kinds of typed arrays that may hold a dtype's items besides its own. */
const alsoHeldBy: Readonly<Record<string, string>> = {
  uint8: 'Uint8ClampedArray',
  float16: 'Float16Array',
};

/**
 * The type of an array's items, with the typed array that holds them on the host. Two dtypes are
 * the same when their names are. Items are little-endian, as on every GPU.
 *
 * @example
 * const { name, itemsize, typestr } = cuda.float32; // 'float32', 4, '<f4'
 * const zeros = new cuda.float32.TypedArray(16); // a Float32Array
 * @see https://numpy.org/doc/stable/reference/arrays.dtypes.html
 */
export class Dtype<N extends string = string, A extends TypedArray = TypedArray> {
  /** NumPy's name, e.g. `float32`; raw bytes are `V` and their itemsize. */
  readonly name: N;
  /** The bytes of one item. */
  readonly itemsize: number;
  /**
   * The type as the array interfaces of NumPy and CUDA write it, e.g. `<f4`. They have no word for
   * bfloat16: it is `<V2`, as PyTorch and ml_dtypes write it, and NumPy reads two raw bytes.
   */
  readonly typestr: string;
  /** The constructor of the typed array that holds items on the host. */
  readonly TypedArray: TypedArrayConstructor<A>;
  /** How many elements of {@link TypedArray} one item takes: 2 for complex ones, else mostly 1. */
  readonly elementsPerItem: number;
  readonly #code: number;

  private constructor(
    name: N,
    typestr: string,
    code: number,
    array: TypedArrayConstructor<A>,
    elementsPerItem: number,
  ) {
    requireMade(array, Function, 'Dtype', 'dtype');
    this.name = name;
    this.itemsize = array.BYTES_PER_ELEMENT * elementsPerItem;
    this.typestr = typestr;
    this.TypedArray = array;
    this.elementsPerItem = elementsPerItem;
    this.#code = code;
  }

  /** @internal One of the dtypes that there are. */
  static define<N extends string, A extends TypedArray>(
    name: N,
    typestr: string,
    code: number,
    array: TypedArrayConstructor<A>,
    elementsPerItem = 1,
  ): Dtype<N, A> {
    return new Dtype(name, typestr, code, array, elementsPerItem);
  }

  /**
   * Items of so many raw bytes: records and structured scalars, whose fields cuffi does not know.
   *
   * @throws TypeError or RangeError unless itemsize is an integer from 1 to 2^31 - 1
   * @example
   * const record = cuda.Dtype.bytes(12); // NumPy's V12
   */
  static bytes<S extends number>(itemsize: S): Dtype<`V${S}`, Uint8Array> {
    checkInteger(itemsize, 'itemsize', 1, MAX_ITEMSIZE);
    return new Dtype(`V${itemsize}`, `|V${itemsize}`, 1, Uint8Array, itemsize);
  }

  /** Whether an item is {@link itemsize} raw bytes. */
  get isRaw(): boolean {
    return this.name.startsWith('V');
  }

  /**
   * The type as DLPack writes it; raw bytes are a vector of uint8.
   *
   * @throws RangeError for raw items of more than 65535 bytes, which DLPack has no type for
   * @see https://dmlc.github.io/dlpack/latest/c_api.html
   */
  get dlpack(): DlpackType {
    if (!this.isRaw) return { code: this.#code, bits: this.itemsize * 8, lanes: 1 };
    if (this.itemsize > MAX_LANES)
      throw new RangeError(
        `DLPack has no type for ${this.name}: at most ${MAX_LANES} bytes, not ${this.itemsize}`,
      );
    return { code: this.#code, bits: 8, lanes: this.itemsize };
  }

  /**
   * Whether a typed array may hold items of this dtype: one of the kind {@link TypedArray}, for
   * uint8 also a Uint8ClampedArray, for float16 also a native Float16Array.
   */
  accepts(value: unknown): boolean {
    const kind = typedArrayKind(value);
    return kind !== undefined && (kind === this.TypedArray.name || kind === alsoHeldBy[this.name]);
  }

  toString(): string {
    return this.name;
  }

  [inspect.custom](): string {
    return `Dtype ${this.name}`;
  }
}

/** True or false in one byte, 1 or 0. */
export const bool = Dtype.define('bool', '|b1', 6, Uint8Array);
/** 8-bit signed integers. */
export const int8 = Dtype.define('int8', '|i1', 0, Int8Array);
/** 16-bit signed integers. */
export const int16 = Dtype.define('int16', '<i2', 0, Int16Array);
/** 32-bit signed integers. */
export const int32 = Dtype.define('int32', '<i4', 0, Int32Array);
/** 64-bit signed integers, bigints on the host. */
export const int64 = Dtype.define('int64', '<i8', 0, BigInt64Array);
/** 8-bit unsigned integers. */
export const uint8 = Dtype.define('uint8', '|u1', 1, Uint8Array);
/** 16-bit unsigned integers. */
export const uint16 = Dtype.define('uint16', '<u2', 1, Uint16Array);
/** 32-bit unsigned integers. */
export const uint32 = Dtype.define('uint32', '<u4', 1, Uint32Array);
/** 64-bit unsigned integers, bigints on the host. */
export const uint64 = Dtype.define('uint64', '<u8', 1, BigUint64Array);
/** Half precision, its bits on the host: see {@link toFloat16} and {@link fromFloat16}. */
export const float16 = Dtype.define('float16', '<f2', 2, Uint16Array);
/** The upper half of a float32, its bits on the host: see {@link toBfloat16}, {@link fromBfloat16}. */
export const bfloat16 = Dtype.define('bfloat16', '<V2', 4, Uint16Array);
/** Single precision. */
export const float32 = Dtype.define('float32', '<f4', 2, Float32Array);
/** Double precision. */
export const float64 = Dtype.define('float64', '<f8', 2, Float64Array);
/** Two float32 an item: the real part, then the imaginary one. */
export const complex64 = Dtype.define('complex64', '<c8', 5, Float32Array, 2);
/** Two float64 an item: the real part, then the imaginary one. */
export const complex128 = Dtype.define('complex128', '<c16', 5, Float64Array, 2);

/** The dtype of an array that is given none, as in NumPy and numba. */
export const defaultDtype: typeof float64 = float64;
