/** What kernels take: the types of parameters, and of the arguments that go with them. */
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

/** Anything in device memory: a buffer, an array, an object of another library. */
export interface Addressed<N extends string = string> {
  readonly address: number;
  readonly dtype?: { readonly name: N };
}

/**
 * What a launch takes for a parameter. Integers of 64 bits are numbers or bigints; 16-bit floats are
 * numbers, rounded; a pointer is anything with an `address`, or the address, or null; a struct is
 * its bytes.
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

/** What a launch takes for all parameters of a kernel. */
export type Arguments<P extends readonly Parameter[]> = {
  -readonly [K in keyof P]: Argument<P[K]>;
};

/** The most that a kernel may take by value. */
const MAX_STRUCT_BYTE_LENGTH = 32_764;

const isScalar = (param: unknown): param is ScalarName =>
  typeof param === 'string' && Object.hasOwn(scalarByteLengths, param);

/** The bytes of a parameter. */
export function parameterByteLength(param: Parameter): number {
  if (typeof param === 'object') return param.bytes;
  return isScalar(param) ? scalarByteLengths[param] : 8;
}

/** The dtype that a pointer's items have, where its parameter says. */
export const pointedDtype = (param: Parameter): string | undefined =>
  typeof param === 'string' && param.endsWith('*') ? dtype(param.slice(0, -1)).name : undefined;

/** A parameter in a few words. */
export const parameterName = (param: Parameter): string =>
  typeof param === 'object' ? `a struct of ${param.bytes} bytes` : param;

/** @throws TypeError, RangeError unless parameters of a kernel */
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
  dtype(pointed); // throws for the name of none
}
