/** Dtypes by their name, their typestr, a typed array, or their DLPack type. */
import { checkInteger } from './arguments.ts';
import {
  bfloat16,
  bool,
  complex64,
  complex128,
  type DlpackType,
  Dtype,
  float16,
  float32,
  float64,
  int8,
  int16,
  int32,
  int64,
  uint8,
  uint16,
  uint32,
  uint64,
} from './dtype.ts';
import { type NativeFloat16Array, type TypedArray, typedArrayKind } from './typed-array.ts';

const named = {
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
  float32,
  float64,
  complex64,
  complex128,
} as const;

/** The name of a dtype other than raw bytes. */
export type DtypeName = keyof typeof named;

/** Every dtype other than raw bytes. */
export const dtypes: readonly Dtype[] = Object.values(named);

/** The dtype of each kind of typed array. */
const ofKind = {
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
  (typeof ofKind)[A[typeof Symbol.toStringTag]];

/** By typestr without its byte order, e.g. `f4`; bfloat16 is told from raw bytes by its `<`. */
const byCode = new Map<string, Dtype>(
  dtypes.filter((each) => each !== bfloat16).map((each) => [each.typestr.slice(1), each]),
);

const known = (): string => `${dtypes.map(({ name }) => name).join(', ')}, V<itemsize>`;

/**
 * A dtype by its name or its typestr, which may say `<`, `=` or `|` for the byte order, or nothing;
 * a dtype stands for itself.
 *
 * @throws TypeError for a name that no dtype has, for big-endian items, and for fields
 * @example
 * cuda.dtype('float32') === cuda.dtype('<f4'); // true
 * cuda.dtype('V12').itemsize; // 12 raw bytes
 * @see https://numpy.org/doc/stable/reference/arrays.interface.html
 */
export function dtype<K extends DtypeName>(of: K): (typeof named)[K];
export function dtype<D extends Dtype>(of: D): D;
export function dtype(of: string | Dtype): Dtype;
export function dtype(of: string | Dtype): Dtype {
  if (of instanceof Dtype) return of;
  if (Array.isArray(of) || (typeof of === 'string' && of.includes(',')))
    throw new TypeError(
      "a dtype with fields is not supported: take its items as raw bytes, e.g. 'V12' for 12 each",
    );
  if (typeof of !== 'string') throw new TypeError(`a dtype must be a name or a Dtype, not ${of}`);
  if (Object.hasOwn(named, of)) return named[of as DtypeName];
  const found = fromTypestr(of);
  if (!found)
    throw new TypeError(
      `there is no dtype ${JSON.stringify(of.slice(0, 60))}; known: ${known()}, and their typestrs`,
    );
  return found;
}

function fromTypestr(typestr: string): Dtype | undefined {
  const [, order, code, kind, size] = /^([<>=|]?)(([a-zA-Z])(\d+))$/.exec(typestr) ?? [];
  if (code === undefined) return undefined;
  if (typestr === bfloat16.typestr) return bfloat16;
  const found = byCode.get(code) ?? (kind === 'V' ? rawBytes(code, Number(size)) : undefined);
  // Single bytes and raw ones have no order.
  if (order === '>' && found && !found.isRaw && found.itemsize > 1)
    throw new TypeError(
      `'${typestr}' is big-endian, and GPUs are little-endian: swap the bytes, and say '${found.typestr}'`,
    );
  return found;
}

function rawBytes(name: string, itemsize: number): Dtype | undefined {
  // Not with leading zeros: a dtype has one name.
  return name === `V${itemsize}` ? Dtype.bytes(itemsize) : undefined;
}

/**
 * The dtype whose items a typed array holds: uint8 for a Buffer, float16 for a native Float16Array,
 * uint16 for a Uint16Array, whatever its bits stand for.
 *
 * @throws TypeError for anything but a typed array
 * @example
 * cuda.dtypeOf(new Float32Array(4)) === cuda.float32; // true
 */
export function dtypeOf<A extends TypedArray | NativeFloat16Array>(array: A): DtypeOf<A> {
  const kind = typedArrayKind(array);
  if (kind === undefined || !Object.hasOwn(ofKind, kind))
    throw new TypeError(
      `only typed arrays have a dtype, not ${array === null ? 'null' : `a value of type ${typeof array}`}`,
    );
  return ofKind[kind as keyof typeof ofKind] as DtypeOf<A>;
}

/**
 * The dtype of a DLPack type. A vector of more than one lane of whole bytes becomes raw bytes.
 *
 * @throws TypeError where cuffi has no dtype for it, e.g. for 8-bit floats; TypeError or RangeError
 * for fields that are no such numbers
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
      `there is no dtype for DLPack's code ${code} with ${bits} bits; known: ${known()}`,
    );
  return lanes === 1 ? found : Dtype.bytes(found.itemsize * lanes);
}
