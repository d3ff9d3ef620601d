import { closeFd } from '../../../ffi/libc.ts';
import { IpcError } from '../../errors.ts';
import { releaseQuietly } from '../../resource.ts';
import { type ParcelSession, unpack } from '../parcel.ts';
import { ByteReader } from './byte-reader.ts';
import { MAX_VALUE_DEPTH, MAX_VALUE_OBJECTS, MAX_VALUE_PARTS } from './limits.ts';
import { binaryTypes, Tag } from './tags.ts';

/** A GPU object that is still to be opened, and the place in the value where it goes. */
interface Slot {
  readonly holder: Record<PropertyKey, unknown>;
  readonly key: string | number;
  readonly descriptor: unknown;
  readonly fdCount: number;
}

/** A value that is sound in itself; nothing of it was opened. */
export interface DecodedValue {
  readonly root: { value: unknown };
  readonly slots: readonly Slot[];
}

/** A value with its GPU objects, which belong to whoever takes it. */
export interface ReceivedValue {
  readonly value: unknown;
  readonly objects: readonly object[];
}

/**
 * Reads a value of another process. Nothing is believed of it, and nothing opened.
 *
 * @param fdCount how many file descriptors came with it
 * @throws IpcError for anything but one whole value
 */
export function decodeValue(bytes: Uint8Array, fdCount: number): DecodedValue {
  const decoder = new Decoder(bytes);
  const decoded = decoder.decode();
  const expected = decoded.slots.reduce((sum, slot) => sum + slot.fdCount, 0);
  if (expected !== fdCount)
    throw new IpcError(`${fdCount} file descriptors came with a value that has ${expected}`);
  return decoded;
}

/**
 * Opens the GPU objects of a value. The file descriptors are taken over in every case.
 *
 * @throws IpcError for the first that cannot be opened; then none is
 */
export function openValue(
  { root, slots }: DecodedValue,
  fds: readonly number[],
  session: ParcelSession,
): ReceivedValue {
  const objects: object[] = [];
  let used = 0;
  try {
    for (const { holder, key, descriptor, fdCount } of slots) {
      const own = fds.slice(used, used + fdCount);
      used += fdCount;
      const object = unpack(descriptor, own, session);
      objects.push(object);
      holder[key] = object;
    }
  } catch (error) {
    fds.slice(used).forEach(closeFd);
    closeObjects(objects);
    throw error;
  }
  return { value: root.value, objects };
}

/** Closes what was opened for nobody. */
export function closeObjects(objects: readonly object[]): void {
  for (const object of objects)
    if (Symbol.dispose in object) releaseQuietly(() => (object as Disposable)[Symbol.dispose]());
}

class Decoder {
  readonly #from: ByteReader;
  readonly #slots: Slot[] = [];
  #parts = 0;
  #isInParcel = false;

  constructor(bytes: Uint8Array) {
    this.#from = new ByteReader(bytes);
  }

  decode(): DecodedValue {
    const root = { value: undefined };
    this.#readInto(root, 'value', 0);
    if (this.#from.left > 0) throw new IpcError(`${this.#from.left} bytes follow the value`);
    return { root, slots: this.#slots };
  }

  #readInto(holder: Record<PropertyKey, unknown>, key: string | number, depth: number): void {
    const tag = this.#from.uint8();
    this.#parts += 1;
    if (this.#parts > MAX_VALUE_PARTS)
      throw new IpcError(`the value has more than ${MAX_VALUE_PARTS} parts`);
    if (tag === Tag.parcel) this.#slot(holder, key, depth);
    else holder[key] = this.#read(tag, depth);
  }

  #read(tag: number, depth: number): unknown {
    switch (tag) {
      case Tag.undefined:
        return undefined;
      case Tag.null:
        return null;
      case Tag.false:
        return false;
      case Tag.true:
        return true;
      case Tag.int32:
        return this.#from.int32();
      case Tag.float64:
        return this.#from.float64();
      case Tag.latin1:
        return this.#from.latin1();
      case Tag.utf16:
        return this.#from.utf16();
      case Tag.bigint64:
        return this.#from.bigint64();
      case Tag.bigint:
        return this.#bigint();
      case Tag.array:
        return this.#array(depth);
      case Tag.object:
        return this.#object(depth);
      case Tag.binary:
        return this.#binary();
      default:
        throw new IpcError(`the byte ${tag} begins no part of a value`);
    }
  }

  #bigint(): bigint {
    const isNegative = this.#from.uint8() === 1;
    const digits = this.#from.latin1();
    if (!/^[0-9a-f]+$/.test(digits)) throw new IpcError('a bigint has other than digits');
    const magnitude = BigInt(`0x${digits}`);
    return isNegative ? -magnitude : magnitude;
  }

  #array(depth: number): unknown[] {
    checkDepth(depth);
    const count = this.#from.length();
    const items: unknown[] = [];
    for (let i = 0; i < count; i++)
      this.#readInto(items as unknown as Record<number, unknown>, i, depth + 1);
    return items;
  }

  #object(depth: number): Record<string, unknown> {
    checkDepth(depth);
    // A key and a value have a byte at least, and a key its length.
    const count = this.#from.length(3);
    const object: Record<string, unknown> = {};
    for (let i = 0; i < count; i++) {
      const key = this.#key();
      if (key === '__proto__' || Object.hasOwn(object, key))
        throw new IpcError(`the name ${JSON.stringify(key.slice(0, 60))} is not allowed there`);
      this.#readInto(object, key, depth + 1);
    }
    return object;
  }

  #key(): string {
    const tag = this.#from.uint8();
    if (tag === Tag.latin1) return this.#from.latin1();
    if (tag === Tag.utf16) return this.#from.utf16();
    throw new IpcError('an object has a name that is no string');
  }

  #binary(): ArrayBufferView | ArrayBuffer {
    const found = binaryTypes[this.#from.uint8()];
    if (!found) throw new IpcError('binary data is of an unknown type');
    const [name, Type] = found;
    const buffer = this.#from.bytes();
    if (!Type) return buffer;
    const { BYTES_PER_ELEMENT: size = 1 } = Type as { BYTES_PER_ELEMENT?: number };
    if (buffer.byteLength % size !== 0)
      throw new IpcError(`a ${name} cannot have ${buffer.byteLength} bytes`);
    return new Type(buffer);
  }

  #slot(holder: Record<PropertyKey, unknown>, key: string | number, depth: number): void {
    if (this.#isInParcel) throw new IpcError('a GPU object is named inside another');
    if (this.#slots.length >= MAX_VALUE_OBJECTS)
      throw new IpcError(`the value has more than ${MAX_VALUE_OBJECTS} GPU objects`);
    const fdCount = this.#from.length(0);
    this.#isInParcel = true;
    const described: { descriptor?: unknown } = {};
    this.#readInto(described, 'descriptor', depth);
    this.#isInParcel = false;
    // Keeps the name in its place among the others.
    holder[key] = undefined;
    this.#slots.push({ holder, key, descriptor: described.descriptor, fdCount });
  }
}

function checkDepth(depth: number): void {
  if (depth >= MAX_VALUE_DEPTH)
    throw new IpcError(`the value is nested deeper than ${MAX_VALUE_DEPTH} levels`);
}
