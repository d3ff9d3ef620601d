/** Converts numbers to 16-bit floats, as bits in Uint16Arrays, and back. */

import { typedArrayKind } from './typed-array.ts';

/**
 * Converts numbers to the bits of float16, rounded to nearest, ties to even. Numbers from 65520 on become
 * infinite; every NaN becomes the same NaN.
 *
 * @throws TypeError for anything but numbers
 * @example
 * cuda.toFloat16(1.5); // 0x3e00
 * cuda.toFloat16([0.1, 0.2]); // a Uint16Array of 2
 * @see https://en.wikipedia.org/wiki/Half-precision_floating-point_format
 */
export function toFloat16(value: number): number;
export function toFloat16(values: ArrayLike<number>): Uint16Array<ArrayBuffer>;
export function toFloat16(value: number | ArrayLike<number>): number | Uint16Array<ArrayBuffer> {
  return typeof value === 'object' ? encodeAll(value, float16Format) : encode(value, float16Format);
}

/**
 * Converts the bits of float16 to numbers, exactly. Only the lower 16 bits of a number count.
 *
 * @throws TypeError for anything but a number or a Uint16Array
 * @example
 * cuda.fromFloat16(0x3e00); // 1.5
 * cuda.fromFloat16(new Uint16Array([0x3c00, 0xc000])); // Float32Array [1, -2]
 */
export function fromFloat16(bits: number): number;
export function fromFloat16(bits: Uint16Array): Float32Array<ArrayBuffer>;
export function fromFloat16(bits: number | Uint16Array): number | Float32Array<ArrayBuffer> {
  const given = checkBits(bits);
  return typeof given === 'number' ? decode(given, float16Format) : decodeAll(given, float16Format);
}

/**
 * Converts numbers to the bits of bfloat16, rounded to nearest, ties to even; every NaN becomes the
 * same NaN.
 *
 * @throws TypeError for anything but numbers
 * @example
 * cuda.toBfloat16(1.5); // 0x3fc0
 * cuda.toBfloat16(new Float32Array([0.1, 0.2])); // a Uint16Array of 2
 * @see https://en.wikipedia.org/wiki/Bfloat16_floating-point_format
 */
export function toBfloat16(value: number): number;
export function toBfloat16(values: ArrayLike<number>): Uint16Array<ArrayBuffer>;
export function toBfloat16(value: number | ArrayLike<number>): number | Uint16Array<ArrayBuffer> {
  return typeof value === 'object'
    ? encodeAll(value, bfloat16Format)
    : encode(value, bfloat16Format);
}

/**
 * Converts the bits of bfloat16 to numbers, exactly. Only the lower 16 bits of a number count.
 *
 * @throws TypeError for anything but a number or a Uint16Array
 * @example
 * cuda.fromBfloat16(0x3fc0); // 1.5
 */
export function fromBfloat16(bits: number): number;
export function fromBfloat16(bits: Uint16Array): Float32Array<ArrayBuffer>;
export function fromBfloat16(bits: number | Uint16Array): number | Float32Array<ArrayBuffer> {
  const given = checkBits(bits);
  return typeof given === 'number'
    ? decode(given, bfloat16Format)
    : decodeAll(given, bfloat16Format);
}

// ---------------------------------------------------------------------------------------------
// Conversion by the bits of doubles and floats
// ---------------------------------------------------------------------------------------------

/** A binary format of 16 bits: a sign, an exponent and a mantissa. */
interface Format {
  readonly mantissaBits: number;
  readonly bias: number;
  /** The factor for a float32 with the same exponent bits, whose bias is 127. */
  readonly decodeScale: number;
}

const float16Format: Format = { mantissaBits: 10, bias: 15, decodeScale: 2 ** 112 };
const bfloat16Format: Format = { mantissaBits: 7, bias: 127, decodeScale: 1 };

/** Adding and subtracting it rounds a number below 2^51 to an integer, ties to even. */
const ROUNDER = 2 ** 52;

const double = new Float64Array(1);
const doubleBits = new Uint32Array(double.buffer);
const single = new Float32Array(1);
const singleBits = new Uint32Array(single.buffer);

/** Returns 2 to an exponent of normal doubles, made of its bits: it is called for every number. */
function powerOfTwo(exponent: number): number {
  doubleBits[0] = 0;
  doubleBits[1] = (exponent + 1023) << 20;
  return double[0] as number;
}

function encode(value: number, { mantissaBits, bias }: Format): number {
  if (typeof value !== 'number')
    throw new TypeError(`a 16-bit float is made from a number, not from a ${typeof value}`);
  const infinity = (2 * bias + 1) << mantissaBits;
  if (Number.isNaN(value)) return infinity | (1 << (mantissaBits - 1));
  double[0] = value;
  const high = doubleBits[1] as number;
  const sign = (high >>> 16) & 0x8000;
  // Directly from the double: going through a float32 would round twice.
  const exponent = ((high >>> 20) & 0x7ff) - 1023;
  if (exponent > bias) return sign | infinity;
  // Subnormal numbers have the spacing of the smallest normal number.
  const scale = Math.max(exponent, 1 - bias);
  const mantissa = Math.abs(value) * powerOfTwo(mantissaBits - scale) + ROUNDER - ROUNDER;
  // The leading bit of a normal mantissa adds one to the exponent, and so does a carry.
  return sign | (((scale + bias - 1) << mantissaBits) + mantissa);
}

function decode(bits: number, { mantissaBits, bias, decodeScale }: Format): number {
  const sign = (bits & 0x8000) === 0 ? 1 : -1;
  const magnitude = bits & 0x7fff;
  const infinity = (2 * bias + 1) << mantissaBits;
  if (magnitude >= infinity) return magnitude === infinity ? sign * Infinity : Number.NaN;
  // Shifted to where a float32 has these bits.
  singleBits[0] = magnitude << (23 - mantissaBits);
  return sign * (single[0] as number) * decodeScale;
}

function encodeAll(values: ArrayLike<number>, format: Format): Uint16Array<ArrayBuffer> {
  if (!Number.isSafeInteger(values?.length))
    throw new TypeError('16-bit floats are made from a number or an array of numbers');
  const bits = new Uint16Array(values.length);
  for (let i = 0; i < bits.length; i += 1) bits[i] = encode(values[i] as number, format);
  return bits;
}

function decodeAll(bits: Uint16Array, format: Format): Float32Array<ArrayBuffer> {
  const values = new Float32Array(bits.length);
  for (let i = 0; i < values.length; i += 1) values[i] = decode(bits[i] as number, format);
  return values;
}

function checkBits(bits: unknown): number | Uint16Array {
  if (typeof bits === 'number') return bits;
  if (typedArrayKind(bits) === 'Uint16Array') return bits as Uint16Array;
  throw new TypeError('the bits of 16-bit floats must be a number or a Uint16Array');
}
