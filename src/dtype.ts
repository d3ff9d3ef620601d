import { inspect } from 'node:util';
import {
  type NativeFloat16Array,
  type TypedArray,
  type TypedArrayConstructor,
  typedArrayKind,
} from './typed-array.ts';
import { checkInteger, didYouMean, formatValue } from './validate.ts';

/** DLPack's DLDataType. */
export interface DlpackType {
  /** 0 int, 1 uint, 2 float, 4 bfloat, 5 complex, 6 bool, 10 float8_e4m3fn, 12 float8_e5m2. */
  readonly code: number;
  /** The bits of one lane. */
  readonly bits: number;
  /** 1, but for vectors. */
  readonly lanes: number;
}

/** The largest itemsize that NumPy supports. */
const MAX_ITEMSIZE = 2 ** 31 - 1;
/** DLPack's code of unsigned integers. */
const UINT = 1;
/** DLDataType stores the number of lanes in 16 bits. */
const MAX_LANES = 2 ** 16 - 1;

/** Other kinds of typed arrays that may hold a dtype's items. */
const alternativeArrays: Readonly<Record<string, string>> = {
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
export class Dtype<N extends string = string, A extends TypedArray = TypedArray<ArrayBuffer>> {
  /** NumPy's name, e.g. `float32`; raw bytes are `V` and their itemsize. */
  readonly name: N;
  /** The bytes of one item. */
  readonly itemsize: number;
  /**
   * The type in the notation of NumPy's and CUDA's array interfaces, e.g. `<f4`. They have no bfloat16:
   * as PyTorch and ml_dtypes do, cuffi writes `<V2`, which NumPy reads as two raw bytes. They have no
   * 8-bit floats: cuffi writes `|V1`, one raw byte, and reads that as `V1`.
   */
  readonly typestr: string;
  /** The constructor of the typed array that holds items on the host. */
  readonly TypedArray: TypedArrayConstructor<A>;
  /** How many elements of {@link TypedArray} one item takes: 2 if complex, itemsize if raw, else 1. */
  readonly elementsPerItem: number;
  readonly #code: number;

  private constructor(
    name: N,
    typestr: string,
    code: number,
    array: TypedArrayConstructor<A>,
    elementsPerItem: number,
  ) {
    // The constructor of another realm's typed arrays is an instance of that realm's Function.
    if (typeof array !== 'function')
      throw new TypeError('a Dtype cannot be created with new: use dtype');
    this.name = name;
    this.itemsize = array.BYTES_PER_ELEMENT * elementsPerItem;
    this.typestr = typestr;
    this.TypedArray = array;
    this.elementsPerItem = elementsPerItem;
    this.#code = code;
  }

  /** @internal Makes one of the predefined dtypes. */
  static define<N extends string, A extends TypedArray>(
    name: N,
    typestr: string,
    code: number,
    array: new (length: number) => A,
    elementsPerItem = 1,
  ): Dtype<N, A> {
    // TypeScript's own constructors have a prototype over any kind of memory.
    const ArrayClass = array as unknown as TypedArrayConstructor<A>;
    return new Dtype(name, typestr, code, ArrayClass, elementsPerItem);
  }

  /**
   * Returns the dtype of items of raw bytes: records and structured scalars, whose fields cuffi does not
   * know.
   *
   * @throws TypeError or RangeError unless itemsize is an integer from 1 to 2^31 - 1
   * @example
   * const record = cuda.Dtype.bytes(12); // NumPy's V12
   */
  static bytes<S extends number>(itemsize: S): RawDtype<`V${S}`> {
    checkInteger(itemsize, 'itemsize', 1, MAX_ITEMSIZE);
    return Dtype.define(`V${itemsize}`, `|V${itemsize}`, UINT, Uint8Array, itemsize);
  }

  /** Whether an item is {@link itemsize} raw bytes, which cuffi does not convert: an 8-bit float, too. */
  get isRaw(): boolean {
    return this.typestr.startsWith('|V');
  }

  /**
   * DLPack's notation of the type; raw bytes are a vector of uint8.
   *
   * @throws RangeError for raw items of more than 65535 bytes: DLPack has no type for them
   * @see https://dmlc.github.io/dlpack/latest/c_api.html
   */
  get dlpack(): DlpackType {
    const isVector = this.isRaw && this.#code === UINT;
    if (!isVector) return { code: this.#code, bits: this.itemsize * 8, lanes: 1 };
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
    return (
      kind !== undefined && (kind === this.TypedArray.name || kind === alternativeArrays[this.name])
    );
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
/** 8-bit floats with 4 bits of exponent and no infinity, as raw bytes: PyTorch's and JAX's of that name. */
export const float8_e4m3fn = Dtype.define('float8_e4m3fn', '|V1', 10, Uint8Array);
/** 8-bit floats with 5 bits of exponent, as raw bytes: PyTorch's and JAX's of that name. */
export const float8_e5m2 = Dtype.define('float8_e5m2', '|V1', 12, Uint8Array);
/** Single precision. */
export const float32 = Dtype.define('float32', '<f4', 2, Float32Array);
/** Double precision. */
export const float64 = Dtype.define('float64', '<f8', 2, Float64Array);
/** Two float32 an item: the real part, then the imaginary one. */
export const complex64 = Dtype.define('complex64', '<c8', 5, Float32Array, 2);
/** Two float64 an item: the real part, then the imaginary one. */
export const complex128 = Dtype.define('complex128', '<c16', 5, Float64Array, 2);

/** The dtype of an array that is created without one, as in NumPy and numba. */
export const defaultDtype: typeof float64 = float64;

// ---------------------------------------------------------------------------------------------
// Dtypes by their name, their typestr, a typed array, or their DLPack type
// ---------------------------------------------------------------------------------------------

const dtypesByName = {
  bool,
  int8,
  int16,
  int32,
  int64,
  uint8,
  uint16,
  uint32,
  uint64,
  float16,
  bfloat16,
  float8_e4m3fn,
  float8_e5m2,
  float32,
  float64,
  complex64,
  complex128,
} as const;

/** The name of a dtype other than raw bytes. */
export type DtypeName = keyof typeof dtypesByName;

/** The name of a dtype: of a number, e.g. `float32`, or of raw bytes, e.g. `V12`. */
export type AnyDtypeName = DtypeName | `V${number}`;

/** The dtype with a name. */
export type NamedDtype<N extends AnyDtypeName> = N extends DtypeName
  ? (typeof dtypesByName)[N]
  : RawDtype<N>;

/** A dtype, or its name or typestr, as calls take it: for a known dtype its name. */
export type DtypeOrName<D extends Dtype = Dtype> = D | D['name'];

/** Items of raw bytes. */
type RawDtype<N extends string> = Dtype<N, Uint8Array<ArrayBuffer>>;

/** Every dtype with a name of its own: all but `V` and an itemsize. */
export const dtypes: readonly Dtype[] = Object.values(dtypesByName);

/** The dtype of each kind of typed array. */
const dtypesByArrayKind = {
  Int8Array: int8,
  Int16Array: int16,
  Int32Array: int32,
  BigInt64Array: int64,
  Uint8Array: uint8,
  Uint8ClampedArray: uint8,
  Uint16Array: uint16,
  Uint32Array: uint32,
  BigUint64Array: uint64,
  Float16Array: float16,
  Float32Array: float32,
  Float64Array: float64,
} as const;

/** The dtype that {@link dtypeOf} finds for a typed array. */
export type DtypeOf<A extends TypedArray | NativeFloat16Array> =
  (typeof dtypesByArrayKind)[A[typeof Symbol.toStringTag]];

/**
 * By typestr without its byte order, e.g. `f4`. bfloat16 is absent: only its `<` tells it from raw bytes.
 * So are 8-bit floats: nothing tells them.
 */
const dtypesByCode = new Map<string, Dtype>(
  dtypes
    .filter((each) => each !== bfloat16 && !each.isRaw)
    .map((each) => [each.typestr.slice(1), each]),
);

const knownNames = (): string => `${dtypes.map(({ name }) => name).join(', ')}, V<itemsize>`;

/**
 * Returns a dtype by its name or its typestr. The byte order of a typestr may be `<`, `=`, `|` or absent.
 * A dtype returns itself.
 *
 * @throws TypeError for a name that no dtype has, for big-endian items, and for fields
 * @example
 * cuda.dtype('float32') === cuda.dtype('<f4'); // true
 * cuda.dtype('V12').itemsize; // 12 raw bytes
 * @see https://numpy.org/doc/stable/reference/arrays.interface.html
 */
export function dtype<N extends AnyDtypeName>(of: N): NamedDtype<N>;
export function dtype<D extends Dtype>(of: D): D;
export function dtype(of: string | Dtype): Dtype;
export function dtype(of: string | Dtype): Dtype {
  if (of instanceof Dtype) return of;
  if (Array.isArray(of) || (typeof of === 'string' && of.includes(',')))
    throw new TypeError(
      "a dtype with fields is not supported: use raw bytes, e.g. 'V12' for items of 12 bytes",
    );
  if (typeof of !== 'string')
    throw new TypeError(
      `dtype must be a Dtype or its name, e.g. 'float32', not ${formatValue(of)}`,
    );
  if (Object.hasOwn(dtypesByName, of)) return dtypesByName[of as DtypeName];
  const found = fromTypestr(of);
  if (!found)
    throw new TypeError(
      `there is no dtype ${JSON.stringify(of.slice(0, 60))}${meantBy(of)}; known: ${knownNames()}, and their typestrs`,
    );
  return found;
}

/** Names that other languages and libraries have for dtypes, in lower case. */
const foreignNames: ReadonlyMap<string, DtypeName> = new Map([
  ['float', 'float32'],
  ['single', 'float32'],
  ['double', 'float64'],
  ['half', 'float16'],
  ['bfloat', 'bfloat16'],
  ['bf16', 'bfloat16'],
  ['fp16', 'float16'],
  ['fp32', 'float32'],
  ['fp64', 'float64'],
  ['int', 'int32'],
  ['uint', 'uint32'],
  ['integer', 'int32'],
  ['number', 'float64'],
  ['bigint', 'int64'],
  ['long', 'int64'],
  ['ulong', 'uint64'],
  ['short', 'int16'],
  ['ushort', 'uint16'],
  ['byte', 'uint8'],
  ['ubyte', 'uint8'],
  ['char', 'int8'],
  ['uchar', 'uint8'],
  ['boolean', 'bool'],
  ['complex', 'complex128'],
  ['cfloat', 'complex64'],
  ['cdouble', 'complex128'],
]);

/** Returns ` (did you mean 'float32'?)` for a name that is near that of a dtype, or stands for one elsewhere. */
function meantBy(name: string): string {
  // As in `torch.float32`, `np.float32`, `Float32Array`, `float32_t`, `f32`.
  const word = name
    .toLowerCase()
    .replace(/^.*\./, '')
    .replace(/^big(?=u?int\d)|(array|_t)$/g, '')
    .replace(
      /^([fiu])(8|16|32|64)$/,
      (_, kind: string, bits: string) => `${{ f: 'float', i: 'int', u: 'uint' }[kind]}${bits}`,
    );
  const meant = foreignNames.get(word);
  return meant === undefined
    ? didYouMean(word, Object.keys(dtypesByName))
    : didYouMean(meant, [meant]);
}

function fromTypestr(typestr: string): Dtype | undefined {
  const [, order, code, kind, size] = /^([<>=|]?)(([a-zA-Z])(\d+))$/.exec(typestr) ?? [];
  if (code === undefined) return undefined;
  if (typestr === bfloat16.typestr) return bfloat16;
  const found = dtypesByCode.get(code) ?? (kind === 'V' ? rawBytes(code, Number(size)) : undefined);
  // Single bytes and raw bytes have no byte order.
  if (order === '>' && found && !found.isRaw && found.itemsize > 1)
    throw new TypeError(
      `'${typestr}' is big-endian, and GPUs are little-endian: swap the bytes, and use '${found.typestr}'`,
    );
  return found;
}

function rawBytes(name: string, itemsize: number): Dtype | undefined {
  // Leading zeros are not allowed: a dtype has exactly one name.
  return name === `V${itemsize}` ? Dtype.bytes(itemsize) : undefined;
}

/**
 * Returns the dtype of a typed array: uint8 for a Buffer, float16 for a native Float16Array. A
 * Uint16Array has uint16, even if its bits are those of 16-bit floats.
 *
 * @throws TypeError for anything but a typed array
 * @example
 * cuda.dtypeOf(new Float32Array(4)) === cuda.float32; // true
 */
export function dtypeOf<A extends TypedArray | NativeFloat16Array>(array: A): DtypeOf<A> {
  const kind = typedArrayKind(array);
  if (kind === undefined || !Object.hasOwn(dtypesByArrayKind, kind))
    throw new TypeError(
      `only typed arrays have a dtype, not ${array === null ? 'null' : `a value of type ${typeof array}`}`,
    );
  return dtypesByArrayKind[kind as keyof typeof dtypesByArrayKind] as DtypeOf<A>;
}

/**
 * Returns the dtype of a DLPack type. A vector of more than one lane becomes raw bytes.
 *
 * @throws TypeError if cuffi has no such dtype, e.g. for 4-bit floats; TypeError or RangeError for
 * fields that are not such numbers
 * @example
 * cuda.dtypeFromDlpack({ code: 2, bits: 32, lanes: 1 }) === cuda.float32; // true
 * @see https://dmlc.github.io/dlpack/latest/c_api.html
 */
export function dtypeFromDlpack({ code, bits, lanes }: DlpackType): Dtype {
  checkInteger(code, 'code', 0, 255);
  checkInteger(bits, 'bits', 1, 255);
  checkInteger(lanes, 'lanes', 1, 65_535);
  const found = dtypes.find(({ dlpack }) => dlpack.code === code && dlpack.bits === bits);
  if (!found)
    throw new TypeError(
      `there is no dtype for DLPack's code ${code} with ${bits} bits; known: ${knownNames()}`,
    );
  return lanes === 1 ? found : Dtype.bytes(found.itemsize * lanes);
}
