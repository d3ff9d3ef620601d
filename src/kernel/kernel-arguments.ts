/**
 * The types of kernel parameters and of their arguments; and the arguments of a launch in native memory: a
 * table of addresses, written once, and the values that they point to, written for each launch. The driver
 * reads all of them before the launch call returns.
 */
import { types } from 'node:util';
import {
  type ScalarName,
  type StructParameter,
  scalarByteLengths,
} from '../../ffi/kernel-params.ts';
import { addressOf } from '../../ffi/native.ts';
import type { Address } from '../../ffi/types.ts';
import { Context } from '../context.ts';
import { type DtypeName, dtype } from '../dtype.ts';
import { toBfloat16, toFloat16 } from '../float16.ts';
import { closeCount, Resource } from '../lifetime.ts';
import { DeviceBuffer, PEER_ACCESS_REMEDY } from '../memory/buffer.ts';
import { noteMemoryUse, readAddressForCall } from '../memory/use-order.ts';
import {
  checkHostMemory,
  checkInstance,
  checkInteger,
  formatValue,
  type HostMemory,
} from '../validate.ts';

/**
 * The type of a kernel's parameter: a value, e.g. `float32`; a `pointer`; a pointer to items of a
 * dtype, e.g. `float32*`; or a struct by its size, `{ bytes: 12 }`.
 */
export type Parameter = ScalarName | 'pointer' | `${DtypeName}*` | StructParameter;

/** An object in device memory: a buffer, an array, or an object of another library. */
export interface Addressed<N extends string = string> {
  readonly address: number;
  readonly dtype?: { readonly name: N };
}

/**
 * The argument for a parameter. 64-bit integers are numbers or bigints; 16-bit floats are numbers,
 * which are rounded; a pointer is an object with an `address`, an address, or null; a struct is its
 * bytes.
 */
export type Argument<P extends Parameter> = P extends 'bool'
  ? boolean
  : P extends 'int64' | 'uint64'
    ? number | bigint
    : P extends ScalarName
      ? number
      : P extends `${infer N}*`
        ? Addressed<N> | number | null
        : P extends 'pointer'
          ? Addressed | number | null
          : HostMemory;

/** The arguments for all parameters of a kernel. */
export type Arguments<P extends readonly Parameter[]> = {
  -readonly [K in keyof P]: Argument<P[K]>;
};

/** The longest struct that a kernel can take by value. */
const MAX_STRUCT_BYTE_LENGTH = 32_764;

const isScalar = (param: unknown): param is ScalarName =>
  typeof param === 'string' && Object.hasOwn(scalarByteLengths, param);

/** The length of a parameter in bytes. */
export function parameterByteLength(param: Parameter): number {
  if (typeof param === 'object') return param.bytes;
  return isScalar(param) ? scalarByteLengths[param] : 8;
}

/** The dtype name of a typed pointer's items; undefined for other parameters. */
const pointedDtype = (param: Parameter): string | undefined =>
  typeof param === 'string' && param.endsWith('*') ? dtype(param.slice(0, -1)).name : undefined;

/** A parameter in words. */
export const parameterName = (param: Parameter): string =>
  typeof param === 'object' ? `a struct of ${param.bytes} bytes` : param;

/** Returns a checked copy of parameters. @throws TypeError, RangeError */
export function checkParameters<P extends readonly Parameter[]>(params: P): P {
  if (!Array.isArray(params))
    throw new TypeError(`params must be an array of types, not ${formatValue(params)}`);
  const own = Array.from(params, (param: unknown) =>
    typeof param === 'object' && param !== null
      ? Object.freeze({ bytes: (param as Partial<StructParameter>).bytes })
      : param,
  );
  for (const [at, param] of own.entries()) checkParameter(param, at);
  return Object.freeze(own) as unknown as P;
}

function checkParameter(param: unknown, at: number): void {
  if (typeof param === 'object' && param !== null) {
    checkInteger(
      (param as StructParameter).bytes,
      `the bytes of parameter ${at}`,
      1,
      MAX_STRUCT_BYTE_LENGTH,
    );
    return;
  }
  const pointed = typeof param === 'string' && param.endsWith('*') && param.slice(0, -1);
  if (param === 'pointer' || isScalar(param)) return;
  if (!pointed)
    throw new TypeError(
      `parameter ${at} must be one of ${Object.keys(scalarByteLengths).join(', ')}, pointer, a ` +
        `dtype and '*', or { bytes }, not ${formatValue(param)}`,
    );
  dtype(pointed); // throws for an unknown name
}

// ---- Arguments in native memory ----

/** Numbers for the parameter types, so that a launch can use a switch. */
const typeCodes = {
  bool: 0,
  int8: 1,
  int16: 2,
  int32: 3,
  int64: 4,
  uint8: 5,
  uint16: 6,
  uint32: 7,
  uint64: 8,
  float16: 9,
  bfloat16: 10,
  float32: 11,
  float64: 12,
  pointer: 13,
} as const;
const TYPED_POINTER = 14;
const STRUCT_CODE = 15;

/** The largest alignment of a value in a struct. */
const ALIGNMENT = 16;
const TWO_POW_32 = 2 ** 32;

const align = (at: number): number => Math.ceil(at / ALIGNMENT) * ALIGNMENT;

const typeCodeOf = (param: Parameter): number => {
  if (typeof param === 'object') return STRUCT_CODE;
  return Object.hasOwn(typeCodes, param)
    ? typeCodes[param as keyof typeof typeCodes]
    : TYPED_POINTER;
};

/** An object in device memory, which may know its context. */
type DevicePointer = Addressed & { readonly context?: unknown };

/** @throws ClosedError if an argument is a closed resource */
function assertArgumentsOpen(args: readonly unknown[]): void {
  for (const each of args) if (each instanceof Resource) each.assertOpen();
}

/**
 * Calls `use` with each buffer that arguments are, or lie in. Other libraries' objects tell nothing of
 * the allocation of their memory.
 */
export function forEachBuffer(args: readonly unknown[], use: (buffer: DeviceBuffer) => void): void {
  for (const each of args) {
    if (!(each instanceof Resource)) continue;
    const buffer = each instanceof DeviceBuffer ? each : (each as { buffer?: unknown }).buffer;
    if (buffer instanceof DeviceBuffer) use(buffer);
  }
}

/** The native memory for the arguments of one kernel. */
export class KernelArguments {
  /** The address of the table, valid as long as this object is reachable. */
  readonly address: Address;
  readonly #kernel: string;
  readonly #context: Context;
  readonly #params: readonly Parameter[];
  readonly #typeCodes: Uint8Array;
  /** The position of the first value, in 8-byte words; the others follow, one word each. */
  readonly #firstValue: number;
  /** The byte offsets of structs, by argument. */
  readonly #structOffsets = new Map<number, number>();
  readonly #pointedDtypes: readonly (string | undefined)[];
  readonly #u8: Uint8Array;
  readonly #u16: Uint16Array;
  readonly #u32: Uint32Array;
  readonly #u64: BigUint64Array;
  readonly #f32: Float32Array;
  readonly #f64: Float64Array;

  constructor(kernel: string, context: Context, params: readonly Parameter[]) {
    this.#kernel = kernel;
    this.#context = context;
    this.#params = params;
    this.#typeCodes = Uint8Array.from(params, typeCodeOf);
    this.#pointedDtypes = params.map(pointedDtype);
    const count = params.length;
    this.#firstValue = count;
    let end = align(16 * count);
    for (const [at, param] of params.entries()) {
      if (typeof param !== 'object') continue;
      this.#structOffsets.set(at, end);
      end += align(param.bytes);
    }
    // A separate ArrayBuffer, whose memory does not move.
    const memory = new ArrayBuffer(Math.max(end, ALIGNMENT));
    this.#u8 = new Uint8Array(memory);
    this.#u16 = new Uint16Array(memory);
    this.#u32 = new Uint32Array(memory);
    this.#u64 = new BigUint64Array(memory);
    this.#f32 = new Float32Array(memory);
    this.#f64 = new Float64Array(memory);
    this.address = addressOf(this.#u8);
    for (let at = 0; at < count; at += 1)
      this.#u64[at] = BigInt(this.address + (this.#structOffsets.get(at) ?? 8 * (count + at)));
  }

  /** Writes the arguments of a launch. @throws TypeError, RangeError, ClosedError */
  write(args: readonly unknown[]): void {
    const closingsBefore = closeCount;
    this.#write(args);
    // A getter of one argument may have closed another whose address was already written.
    if (closeCount !== closingsBefore) assertArgumentsOpen(args);
  }

  #write(args: readonly unknown[]): void {
    const paramCodes = this.#typeCodes;
    const count = paramCodes.length;
    if (args.length !== count) throw this.#countError(args.length);
    const u32 = this.#u32;
    const { int32, uint32, float32, float64, pointer } = typeCodes;
    let word = 2 * this.#firstValue;
    // The most common types are handled first and inline, for speed.
    for (let at = 0; at < count; at += 1, word += 2) {
      const value = args[at];
      const code = paramCodes[at] as number;
      if (typeof value === 'number') {
        if (code === uint32) {
          if (value >>> 0 !== value) throw this.#rangeError(at, value);
          u32[word] = value;
        } else if (code === int32) {
          if ((value | 0) !== value) throw this.#rangeError(at, value);
          u32[word] = value;
        } else if (code === float32) this.#f32[word] = value;
        else if (code === float64) this.#f64[word >>> 1] = value;
        else this.#writeNumber(at, code, value);
      } else if (typeof value === 'object' && code >= pointer) {
        if (code === STRUCT_CODE) this.#writeStruct(at, value);
        else {
          const address = value === null ? 0 : this.#addressOf(at, code, value as DevicePointer);
          u32[word] = address;
          u32[word + 1] = address / TWO_POW_32;
        }
      } else this.#writeOther(at, code, value);
    }
  }

  #writeNumber(at: number, code: number, value: number): void {
    const wordIndex = this.#firstValue + at;
    switch (code) {
      case typeCodes.pointer:
      case TYPED_POINTER:
      case typeCodes.uint64:
        if (value < 0 || !Number.isSafeInteger(value)) throw this.#rangeError(at, value);
        this.#writeWide(wordIndex, value);
        return;
      case typeCodes.int64:
        if (!Number.isSafeInteger(value)) throw this.#rangeError(at, value);
        this.#writeWide(wordIndex, value);
        return;
      case typeCodes.int8:
        if ((value << 24) >> 24 !== value) throw this.#rangeError(at, value);
        this.#u8[8 * wordIndex] = value;
        return;
      case typeCodes.uint8:
        if ((value & 0xff) !== value) throw this.#rangeError(at, value);
        this.#u8[8 * wordIndex] = value;
        return;
      case typeCodes.int16:
        if ((value << 16) >> 16 !== value) throw this.#rangeError(at, value);
        this.#u16[4 * wordIndex] = value;
        return;
      case typeCodes.uint16:
        if ((value & 0xffff) !== value) throw this.#rangeError(at, value);
        this.#u16[4 * wordIndex] = value;
        return;
      case typeCodes.float16:
        this.#u16[4 * wordIndex] = toFloat16(value);
        return;
      case typeCodes.bfloat16:
        this.#u16[4 * wordIndex] = toBfloat16(value);
        return;
      default:
        throw this.#typeError(at, value);
    }
  }

  #writeOther(at: number, code: number, value: unknown): void {
    const wordIndex = this.#firstValue + at;
    if (typeof value === 'boolean' && code === typeCodes.bool)
      this.#u8[8 * wordIndex] = Number(value);
    else if (typeof value === 'bigint' && (code === typeCodes.int64 || code === typeCodes.uint64)) {
      const wrapped =
        code === typeCodes.int64 ? BigInt.asIntN(64, value) : BigInt.asUintN(64, value);
      if (wrapped !== value) throw this.#rangeError(at, value);
      this.#u64[wordIndex] = value;
    } else throw this.#typeError(at, value);
  }

  #addressOf(at: number, code: number, value: DevicePointer): number {
    // Throws for a closed resource. The launch states the use of cuffi's own memory.
    const address = value instanceof Resource ? readAddressForCall(value) : value.address;
    const { context } = value;
    if (typeof address !== 'number') throw this.#typeError(at, value);
    if (address < 0 || !Number.isSafeInteger(address)) throw this.#rangeError(at, address);
    if (context !== undefined && context !== this.#context)
      assertReachable(this.#context, value, context, `${this.#describeArgument(at)}`);
    if (code === TYPED_POINTER) {
      const itemDtype = value.dtype?.name;
      if (itemDtype !== undefined && itemDtype !== this.#pointedDtypes[at])
        throw new TypeError(
          `${this.#describeArgument(at)} points to ${this.#pointedDtypes[at]}: its items are ${itemDtype}`,
        );
    }
    return address;
  }

  #writeStruct(at: number, value: object | null): void {
    const bytes = checkHostMemory(value, this.#describeArgument(at));
    const expectedLength = parameterByteLength(this.#params[at] as Parameter);
    if (bytes.length !== expectedLength)
      throw new RangeError(
        `${this.#describeArgument(at)} has ${expectedLength} bytes, not ${bytes.length}`,
      );
    this.#u8.set(bytes, this.#structOffsets.get(at));
  }

  /** Writes a safe integer, which may be negative. */
  #writeWide(wordIndex: number, value: number): void {
    this.#u32[2 * wordIndex] = value;
    this.#u32[2 * wordIndex + 1] = Math.floor(value / TWO_POW_32);
  }

  #describeArgument(at: number): string {
    return `argument ${at} of kernel ${this.#kernel}`;
  }

  #countError(count: number): TypeError {
    const parameterNames = this.#params.map(parameterName).join(', ');
    return new TypeError(
      `kernel ${this.#kernel} takes ${this.#params.length} arguments${parameterNames && ` (${parameterNames})`}, not ${count}`,
    );
  }

  #typeError(at: number, value: unknown): TypeError {
    const isHost = ArrayBuffer.isView(value) || types.isAnyArrayBuffer(value);
    return new TypeError(
      `${this.#describeArgument(at)} must be ${describeExpected(this.#params[at] as Parameter)}, not ${formatValue(value)}` +
        (isHost ? ', which is in host memory: copy it to the device' : ''),
    );
  }

  #rangeError(at: number, value: number | bigint): RangeError {
    return new RangeError(
      `${this.#describeArgument(at)} must be ${describeRange(this.#params[at] as Parameter)}, not ${value}`,
    );
  }
}

// ---- Texts of error messages ----

/** What a parameter accepts. */
function describeExpected(param: Parameter): string {
  if (typeof param === 'object') return `the bytes of ${parameterName(param)}`;
  if (param === 'pointer' || param.endsWith('*'))
    return `in device memory (anything with an address), or an address, or null, for ${param}`;
  if (param === 'bool') return 'true or false';
  const isWide = param === 'int64' || param === 'uint64';
  return `a number${isWide ? ' or a bigint' : ''}, for ${param}`;
}

/** The integers that a parameter accepts. */
function describeRange(param: Parameter): string {
  if (typeof param === 'object' || !/^u?int/.test(param) || param.endsWith('*'))
    return 'an address, an integer from 0 to 2^53 - 1';
  const bits = 8 * parameterByteLength(param);
  const [low, high] = param.startsWith('int') ? [`-2^${bits - 1}`, bits - 1] : ['0', bits];
  const asNumber = bits === 64 ? ' (as a number: a safe one)' : '';
  return `an integer from ${low} to 2^${high} - 1${asNumber}`;
}

// ---- Memory of other contexts ----

/**
 * Checks that a kernel may access memory of another context, and notes the use, so that the memory
 * outlives the work that is queued.
 *
 * @param memoryContext the context that the memory object reports
 * @throws TypeError for memory of another device to which the context has no access
 */
function assertReachable(
  context: Context,
  memory: object,
  memoryContext: unknown,
  name: string,
): void {
  const owner = checkInstance(memoryContext, Context, `the context of ${name}`);
  if (owner.device !== context.device) assertAccessible(context, owner, bufferOf(memory), name);
  noteMemoryUse(context, [owner]);
}

/** @param buffer undefined for an object of another library, of which only the context is known */
function assertAccessible(
  context: Context,
  owner: Context,
  buffer: DeviceBuffer | undefined,
  name: string,
): void {
  if (buffer ? buffer.isAccessibleFrom(context) : context.peerAccess.has(owner)) return;
  throw new TypeError(
    `${name} is in memory of ${owner.device}, but the kernel runs on ${context.device}: copy it ` +
      `there, or allow access by ${buffer?.accessRemedy ?? PEER_ACCESS_REMEDY}`,
  );
}

/** The buffer that an argument is, or lies in. */
function bufferOf(memory: object): DeviceBuffer | undefined {
  if (memory instanceof DeviceBuffer) return memory;
  const { buffer } = memory as { readonly buffer?: unknown };
  return buffer instanceof DeviceBuffer ? buffer : undefined;
}
