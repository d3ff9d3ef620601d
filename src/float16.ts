/** The 16-bit floats as bits in Uint16Arrays: to them, rounded, and from them, exactly. */

/** A binary format of 16 bits: a sign, an exponent, and so many bits of mantissa. */
interface Format {
  readonly mantissaBits: number;
  readonly bias: number;
  /** What a float32 with the same exponent bits must be multiplied with: its bias is 127. */
  readonly decodeScale: number;
}

const float16Format: Format = { mantissaBits: 10, bias: 15, decodeScale: 2 ** 112 };
const bfloat16Format: Format = { mantissaBits: 7, bias: 127, decodeScale: 1 };

/** Adding and taking it away rounds a number below 2^51 to an integer, ties to the even one. */
const ROUNDER = 2 ** 52;

const double = new Float64Array(1);
const doubleBits = new Uint32Array(double.buffer);
const single = new Float32Array(1);
const singleBits = new Uint32Array(single.buffer);

/** 2 to an exponent of normal doubles, from its bits: once for every number of an array. */
function powerOfTwo(exponent: number): number {
  doubleBits[0] = 0;
  doubleBits[1] = (exponent + 1023) << 20;
  return double[0] as number;
}

function encode(value: number, { mantissaBits, bias }: Format): number {
  if (typeof value !== 'number')
    throw new TypeError(`a float must be made of a number, not of a ${typeof value}`);
  const infinity = (2 * bias + 1) << mantissaBits;
  if (Number.isNaN(value)) return infinity | (1 << (mantissaBits - 1));
  double[0] = value;
  const high = doubleBits[1] as number;
  const sign = (high >>> 16) & 0x8000;
  // Straight from the double: over a float32 it would be rounded twice.
  const exponent = ((high >>> 20) & 0x7ff) - 1023;
  if (exponent > bias) return sign | infinity;
  // Numbers below the least normal one have its spacing.
  const scale = Math.max(exponent, 1 - bias);
  const mantissa = Math.abs(value) * powerOfTwo(mantissaBits - scale) + ROUNDER - ROUNDER;
  // A normal mantissa has its leading bit, which counts one in the exponent: so does a carry.
  return sign | (((scale + bias - 1) << mantissaBits) + mantissa);
}

function decode(bits: number, { mantissaBits, bias, decodeScale }: Format): number {
  const sign = (bits & 0x8000) === 0 ? 1 : -1;
  const magnitude = bits & 0x7fff;
  const infinity = (2 * bias + 1) << mantissaBits;
  if (magnitude >= infinity) return magnitude === infinity ? sign * Infinity : Number.NaN;
  // The bits where a float32 has them.
  singleBits[0] = magnitude << (23 - mantissaBits);
  return sign * (single[0] as number) * decodeScale;
}

function encodeAll(values: ArrayLike<number>, format: Format): Uint16Array<ArrayBuffer> {
  if (!Number.isSafeInteger(values?.length))
    throw new TypeError('16-bit floats must be made of a number or of an array of numbers');
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
  if (typeof bits === 'number' || bits instanceof Uint16Array) return bits;
  throw new TypeError('the bits of 16-bit floats must be a number or a Uint16Array');
}

/**
 * The bits of numbers as float16, rounded to the nearest, ties to even; from 65520 on they are
 * infinite, and every NaN is the same one.
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
 * The numbers whose float16 bits are given; exact. Of a number only the lower 16 bits count.
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
 * The bits of numbers as bfloat16, rounded to the nearest, ties to even; every NaN is the same one.
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
 * The numbers whose bfloat16 bits are given; exact. Of a number only the lower 16 bits count.
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
