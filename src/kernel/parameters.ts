/** The types of kernel parameters and of their arguments. */
import {
  type ScalarName,
  type StructParameter,
  scalarByteLengths,
} from '../../ffi/kernel-params.ts';
import { type DtypeName, dtype } from '../dtype.ts';
import { checkInteger, formatValue, type HostMemory } from '../validate.ts';

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
export const pointedDtype = (param: Parameter): string | undefined =>
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
