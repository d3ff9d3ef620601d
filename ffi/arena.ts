/**
 * The arena: native scratch memory for the out-values and structs of synchronous calls. Read what a
 * call wrote here before the next call. Never pass an address of it to an asynchronous call, or to a
 * device that reads it later.
 */
import { allocatePermanent, viewMemory } from './native.ts';
import { encodeStruct, type StructName, type StructValues, structs } from './structs.ts';
import type { Address } from './types.ts';

const BYTE_LENGTH = 65_536;
const BLOCK_OFFSET = 4096;

/**
 * Four slots of eight bytes for out-values, and a block of 4 KiB for structs and strings. Undefined
 * until {@link openArena}, which precedes every driver call.
 */
export let OUT0: Address;
export let OUT1: Address;
export let OUT2: Address;
export let OUT3: Address;
export let BLOCK: Address;
export const BLOCK_BYTE_LENGTH = 4096;

let base: Address;
let buffer: ArrayBuffer;
let bytes: Uint8Array;
let u32: Uint32Array;
let i32: Int32Array;
let f32: Float32Array;
let view: DataView;
let text: Buffer;

/**
 * Allocates the arena, unless it is open. Not done at the import, because it loads koffi. The driver
 * does it before the arguments of its first call are evaluated.
 *
 * @returns the address of the block
 */
export function openArena(): Address {
  if (BLOCK !== undefined) return BLOCK;
  base = allocatePermanent(BYTE_LENGTH);
  buffer = viewMemory(base, BYTE_LENGTH);
  bytes = new Uint8Array(buffer);
  u32 = new Uint32Array(buffer);
  i32 = new Int32Array(buffer);
  f32 = new Float32Array(buffer);
  view = new DataView(buffer);
  text = Buffer.from(buffer);
  OUT0 = base;
  OUT1 = (base + 8) as Address;
  OUT2 = (base + 16) as Address;
  OUT3 = (base + 24) as Address;
  BLOCK = (base + BLOCK_OFFSET) as Address;
  return BLOCK;
}

/** The whole arena. The emulated driver writes out-values through the same buffer. */
export const arena = {
  byteLength: BYTE_LENGTH,
  blockOffset: BLOCK_OFFSET,
  get address(): Address {
    openArena();
    return base;
  },
  get buffer(): ArrayBuffer {
    openArena();
    return buffer;
  },
} as const;

const MAX_HIGH = 0x20_0000;
const wordIndex = (address: Address): number => (address - base) >>> 2;

export const readInt32 = (address: Address): number => i32[wordIndex(address)] as number;
export const readUint32 = (address: Address): number => u32[wordIndex(address)] as number;
export const readFloat32 = (address: Address): number => f32[wordIndex(address)] as number;
export const readUint64 = (address: Address): bigint => {
  const at = wordIndex(address);
  return ((BigInt(u32[at + 1] as number) << 32n) | BigInt(u32[at] as number)) as bigint;
};

/** A size or count. @throws RangeError from 2^53 on */
export const readSize = (address: Address): number => {
  const at = wordIndex(address);
  const high = u32[at + 1] as number;
  if (high >= MAX_HIGH)
    throw new RangeError(`the driver returned ${readUint64(address)}, which is above 2^53`);
  return (u32[at] as number) + high * 2 ** 32;
};

/**
 * Reads a handle or address of the driver. Above 2^53 a number would lose bits, so `release` gets the
 * exact value to destroy it, and the call throws. All handles and addresses enter through here.
 *
 * @throws RangeError from 2^53 on
 */
export const readHandle = <H extends number>(
  address: Address,
  release?: (exact: H) => unknown,
): H => {
  const at = wordIndex(address);
  const high = u32[at + 1] as number;
  if (high < MAX_HIGH) return ((u32[at] as number) + high * 2 ** 32) as H;
  const exact = readUint64(address);
  // koffi's integer parameters take a bigint too; the brand cannot say so.
  release?.(exact as unknown as H);
  throw new RangeError(
    `the driver returned the handle 0x${exact.toString(16)}, which is above 2^53`,
  );
};

/** A copy of `byteLength` bytes of the arena. */
export const readBytes = (address: Address, byteLength: number): Uint8Array =>
  bytes.slice(address - base, address - base + byteLength);

/** `byteLength` bytes of the arena in base64. */
export const readBase64 = (address: Address, byteLength: number): string =>
  text.toString('base64', address - base, address - base + byteLength);

/** The zero-terminated string of at most `maxByteLength` bytes. */
export const readString = (address: Address, maxByteLength: number): string => {
  const start = address - base;
  const end = bytes.indexOf(0, start);
  return Buffer.from(
    buffer,
    start,
    (end < 0 || end > start + maxByteLength ? start + maxByteLength : end) - start,
  ).toString('utf8');
};

/** Writes a 32-bit value for the driver to read. Returns its address. */
export const writeInt32 = (value: number, address: Address = openArena()): Address => {
  i32[wordIndex(address)] = value;
  return address;
};

/** Like {@link writeInt32}, with 64 bits. */
export const writeUint64 = (value: number | bigint, address: Address = openArena()): Address => {
  view.setBigUint64(address - base, BigInt.asUintN(64, BigInt(value)), true);
  return address;
};

/** Writes bytes for the driver to read. Returns their address. */
export const writeBytes = (values: Uint8Array, address: Address = openArena()): Address => {
  bytes.set(values, address - base);
  return address;
};

/** Writes a struct for the driver to read. Missing fields are zero. Returns its address. */
export const writeStruct = <S extends StructName>(
  name: S,
  values: StructValues<S>,
  address: Address = openArena(),
): Address => {
  encodeStruct(name, values, view, address - base);
  return address;
};

/** The number of bytes that a copy struct in the arena moves. 0 for a struct elsewhere. */
export const copyByteLength = (name: StructName, address: Address): number => {
  const { fields, byteLength } = structs[name];
  if (address < base || address + byteLength > base + BYTE_LENGTH) return 0;
  const extents = ['WidthInBytes', 'Height', 'Depth'].flatMap((extent) => {
    const place = (fields as Record<string, readonly [number, number]>)[extent];
    return place ? [readSize((address + place[0]) as Address)] : [];
  });
  return extents.length === 0 ? 0 : extents.reduce((product, extent) => product * extent, 1);
};
