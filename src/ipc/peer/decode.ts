import { IpcError } from '../../errors.ts';
import type { IpcDescriptor } from '../descriptor.ts';
import { decodeDescriptor } from '../descriptor-binary.ts';
import { MAX_DESCRIPTOR_BYTE_LENGTH } from '../descriptor-writer.ts';
import { ByteReader } from './byte-reader.ts';
import {
  MAX_KNOWN_DESCRIPTORS,
  MAX_VALUE_DEPTH,
  MAX_VALUE_OBJECTS,
  MAX_VALUE_PARTS,
} from './limits.ts';
import { binaryTypes, Tag } from './tags.ts';
import { readTail, type Tail } from './tail.ts';

/** A GPU object that is still to be opened, and the place in the value where it goes. */
export interface Slot {
  readonly holder: Record<PropertyKey, unknown>;
  readonly key: string | number;
  /** Or why it is none. */
  readonly descriptor: IpcDescriptor | IpcError;
  readonly fdCount: number;
}

/** A value that is sound in itself; nothing of it was opened. */
export interface DecodedValue {
  readonly root: { value: unknown };
  readonly slots: readonly Slot[];
  readonly tail: Tail;
}

/** Descriptors by their bytes: the same buffer comes again and again, and is read once. */
export type KnownDescriptors = Map<string, IpcDescriptor>;

/**
 * Reads a value of another process. Nothing is believed of it, and nothing opened.
 *
 * @param fdCount how many file descriptors came with it
 * @param known the descriptors that came before on the same connection
 * @throws IpcError for anything but one whole value
 */
export function decodeValue(
  bytes: Uint8Array,
  fdCount: number,
  known: KnownDescriptors,
): DecodedValue {
  const decoder = new Decoder(bytes, known);
  const decoded = decoder.decode();
  const expected = decoded.slots.reduce((sum, slot) => sum + slot.fdCount, 0);
  const { hasPage, isClosing, isDone, adopt, kept, leases } = decoded.tail;
  if (hasPage || isClosing || isDone || adopt.length > 0)
    throw new IpcError('news that comes by itself came with a value');
  if (kept.some((slot, at) => slot >= decoded.slots.length || slot <= (kept[at - 1] ?? -1)))
    throw new IpcError('a link came for an object that the value does not have');
  if ((leases?.count ?? 0) !== decoded.slots.length)
    throw new IpcError(
      `${leases?.count ?? 0} leases came with a value that has ${decoded.slots.length} GPU objects`,
    );
  if (expected + kept.length !== fdCount)
    throw new IpcError(
      `${fdCount} file descriptors came with a value that has ${expected + kept.length}`,
    );
  return decoded;
}

class Decoder {
  readonly #from: ByteReader;
  readonly #slots: Slot[] = [];
  readonly #known: KnownDescriptors;
  #parts = 0;

  constructor(bytes: Uint8Array, known: KnownDescriptors) {
    this.#from = new ByteReader(bytes);
    this.#known = known;
  }

  decode(): DecodedValue {
    const root = { value: undefined };
    this.#readInto(root, 'value', 0);
    return { root, slots: this.#slots, tail: readTail(this.#from) };
  }

  #readInto(holder: Record<PropertyKey, unknown>, key: string | number, depth: number): void {
    const tag = this.#from.uint8();
    this.#parts += 1;
    if (this.#parts > MAX_VALUE_PARTS)
      throw new IpcError(`the value has more than ${MAX_VALUE_PARTS} parts`);
    if (tag === Tag.parcel) this.#slot(holder, key);
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

  #slot(holder: Record<PropertyKey, unknown>, key: string | number): void {
    if (this.#slots.length >= MAX_VALUE_OBJECTS)
      throw new IpcError(`the value has more than ${MAX_VALUE_OBJECTS} GPU objects`);
    const fdCount = this.#from.length(0);
    const byteLength = this.#from.length();
    if (byteLength > MAX_DESCRIPTOR_BYTE_LENGTH)
      throw new IpcError(`a descriptor of ${byteLength} bytes is too long`);
    const descriptor = readDescriptor(this.#from.view(byteLength), this.#known);
    // Keeps the name in its place among the others.
    holder[key] = undefined;
    this.#slots.push({ holder, key, descriptor, fdCount });
  }
}

/** One that is not sound fails its value alone, when that is opened. */
function readDescriptor(bytes: Buffer, known: KnownDescriptors): IpcDescriptor | IpcError {
  const text = bytes.toString('latin1');
  const existing = known.get(text);
  if (existing !== undefined) return existing;
  try {
    const descriptor = decodeDescriptor(bytes);
    if (known.size >= MAX_KNOWN_DESCRIPTORS) known.clear();
    known.set(text, descriptor);
    return descriptor;
  } catch (error) {
    if (error instanceof IpcError) return error;
    throw error;
  }
}

function checkDepth(depth: number): void {
  if (depth >= MAX_VALUE_DEPTH)
    throw new IpcError(`the value is nested deeper than ${MAX_VALUE_DEPTH} levels`);
}
