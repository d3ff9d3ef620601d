import { IpcError } from '../../errors.ts';
import type { IpcDescriptor } from '../descriptor.ts';
import { decodeDescriptor } from '../descriptor-binary.ts';
import { MAX_DESCRIPTOR_BYTE_LENGTH } from '../descriptor-writer.ts';
import { ByteReader } from './byte-reader.ts';
import {
  MAX_BIGINT_DIGITS,
  MAX_KNOWN_DESCRIPTORS,
  MAX_TAIL_BYTE_LENGTH,
  MAX_VALUE_BINARIES,
  MAX_VALUE_BYTE_LENGTH,
  MAX_VALUE_DEPTH,
  MAX_VALUE_OBJECTS,
  MAX_VALUE_PARTS,
} from './limits.ts';
import { binaryTypes, Tag } from './tags.ts';
import { readTail, type Tail } from './tail.ts';

/** A GPU object of a value that is still to be opened. */
export interface Slot {
  /** Or why it cannot be opened. */
  readonly descriptor: IpcDescriptor | IpcError;
  readonly fdCount: number;
}

/** A value that was checked: nothing of it was built, and nothing opened. */
export interface ScannedValue {
  readonly contents: Contents;
  /** Its GPU objects, in their order. */
  readonly slots: readonly Slot[];
  readonly tail: Tail;
}

/** Descriptors by their bytes: the same buffer comes again and again, and is read once. */
export type KnownDescriptors = Map<string, IpcDescriptor>;

/** How long a value is checked, or built, at a time: then the event loop turns. */
const SLICE_MS = 4;

/** How many parts, or bytes, take less time than it is worth to look at the clock. */
const BETWEEN = { scannedParts: 2048, builtParts: 128, bytes: 1 << 16 } as const;

// What is open, while a value is checked and while it is built: twice how many parts are left, and one
// more for an object.
const IS_OBJECT = 1;
const ONE = 2;

/**
 * The check of a value of another process, which finds its GPU objects and what is said with it.
 * It costs no memory but for those: a byte on its way can be half a KiB once it is built.
 */
export class ValueScan {
  readonly #from: ByteReader;
  readonly #known: KnownDescriptors;
  readonly #slots: Slot[] = [];
  readonly #open: number[] = [];
  #unsound: IpcError | undefined;
  #parts = 0;
  #binaries = 0;

  /** @param known the descriptors that came before on the same connection */
  constructor(bytes: Uint8Array, known: KnownDescriptors) {
    this.#from = new ByteReader(bytes);
    this.#known = known;
  }

  /**
   * Checks for a few milliseconds at most: call it again, in a later turn of the loop, until it
   * returns true.
   *
   * @throws IpcError for anything but one whole value
   */
  step(): boolean {
    const open = this.#open;
    const from = this.#from;
    let [end, at] = [0, from.at];
    if (this.#parts === 0) this.#part();
    while (open.length > 0) {
      const top = open.length - 1;
      const left = open[top] as number;
      if (left < ONE) {
        open.pop();
        continue;
      }
      open[top] = left - ONE;
      if (left & IS_OBJECT) this.#key();
      this.#part();
      if (this.#parts % BETWEEN.scannedParts > 0 && from.at - at < BETWEEN.bytes) continue;
      at = from.at;
      const now = performance.now();
      end ||= now + SLICE_MS;
      if (now >= end) return false;
    }
    return true;
  }

  /**
   * The value, once all of it was checked.
   *
   * @param fdCount how many file descriptors came with it
   * @throws IpcError as {@link step}
   */
  end(fdCount: number): ScannedValue {
    const slots = this.#slots;
    const from = this.#from;
    const byteLength = from.at;
    if (byteLength > MAX_VALUE_BYTE_LENGTH || from.left > MAX_TAIL_BYTE_LENGTH)
      throw new IpcError(
        `a value of ${byteLength} bytes came with ${from.left} more: they may be ` +
          `${MAX_VALUE_BYTE_LENGTH} and ${MAX_TAIL_BYTE_LENGTH}`,
      );
    const tail = readTail(from);
    const expected = slots.reduce((sum, slot) => sum + slot.fdCount, 0);
    const { hasPage, isClosing, isDone, adopt, kept, leases } = tail;
    if (hasPage || isClosing || isDone || adopt.length > 0)
      throw new IpcError('news that comes by itself came with a value');
    if (kept.some((slot, at) => slot >= slots.length || slot <= (kept[at - 1] ?? -1)))
      throw new IpcError('a link came for an object that the value does not have');
    if ((leases?.count ?? 0) !== slots.length)
      throw new IpcError(
        `${leases?.count ?? 0} leases came with a value that has ${slots.length} GPU objects`,
      );
    if (expected + kept.length !== fdCount)
      throw new IpcError(
        `${fdCount} file descriptors came with a value that has ${expected + kept.length}`,
      );
    return { contents: new Contents(from, byteLength), slots, tail };
  }

  #part(): void {
    this.#parts += 1;
    if (this.#parts > MAX_VALUE_PARTS)
      throw new IpcError(`the value has more than ${MAX_VALUE_PARTS} parts`);
    const from = this.#from;
    const tag = from.uint8();
    if (tag <= Tag.true) return;
    if (tag === Tag.int32) from.skip(4);
    else if (tag === Tag.float64 || tag === Tag.bigint64) from.skip(8);
    else if (tag === Tag.latin1) from.skip(from.length());
    else if (tag === Tag.utf16) from.skip(evenLength(from));
    else if (tag === Tag.bigint) this.#bigint();
    else if (tag === Tag.array || tag === Tag.object) this.#begin(tag === Tag.object);
    else if (tag === Tag.binary) this.#binary();
    else if (tag === Tag.parcel) this.#slot();
    else throw new IpcError(`the byte ${tag} begins no part of a value`);
  }

  #begin(isObject: boolean): void {
    if (this.#open.length >= MAX_VALUE_DEPTH)
      throw new IpcError(`the value is nested deeper than ${MAX_VALUE_DEPTH} levels`);
    // A name and its value have a byte at least each, and a name its length.
    const count = this.#from.length(isObject ? 3 : 1);
    if (count > 0) this.#open.push(count * ONE + (isObject ? IS_OBJECT : 0));
  }

  #key(): void {
    const from = this.#from;
    const tag = from.uint8();
    if (tag !== Tag.latin1 && tag !== Tag.utf16)
      throw new IpcError('an object has a name that is no string');
    const byteLength = tag === Tag.latin1 ? from.length() : evenLength(from);
    const isAsLong = byteLength === (tag === Tag.latin1 ? 1 : 2) * PROTO.length;
    if (!isAsLong) from.skip(byteLength);
    else if (from.view(byteLength).toString(tag === Tag.latin1 ? 'latin1' : 'utf16le') === PROTO)
      throw forbidden(PROTO);
  }

  #bigint(): void {
    this.#from.skip(1);
    const count = this.#from.length();
    if (count > MAX_BIGINT_DIGITS)
      throw new IpcError(`a bigint of ${count} hexadecimal digits is too long`);
    if (!this.#from.skipDigits(count)) throw new IpcError('a bigint has other than digits');
  }

  #binary(): void {
    this.#binaries += 1;
    if (this.#binaries > MAX_VALUE_BINARIES)
      throw new IpcError(`the value has more than ${MAX_VALUE_BINARIES} parts of binary data`);
    const found = binaryTypes[this.#from.uint8()];
    if (!found) throw new IpcError('binary data is of an unknown type');
    const [name, type] = found;
    const { BYTES_PER_ELEMENT: size = 1 } = (type ?? {}) as { BYTES_PER_ELEMENT?: number };
    const byteLength = this.#from.length();
    if (byteLength % size !== 0) throw new IpcError(`a ${name} cannot have ${byteLength} bytes`);
    this.#from.skip(byteLength);
  }

  #slot(): void {
    if (this.#slots.length >= MAX_VALUE_OBJECTS)
      throw new IpcError(`the value has more than ${MAX_VALUE_OBJECTS} GPU objects`);
    const fdCount = this.#from.length(0);
    const byteLength = this.#from.length();
    if (byteLength > MAX_DESCRIPTOR_BYTE_LENGTH)
      throw new IpcError(`a descriptor of ${byteLength} bytes is too long`);
    this.#slots.push({ descriptor: this.#descriptor(this.#from.view(byteLength)), fdCount });
  }

  /** A descriptor that is not sound fails its value alone, when that is opened. */
  #descriptor(bytes: Buffer): IpcDescriptor | IpcError {
    // Nothing of the value is opened: an error for each would cost more than the descriptors.
    if (this.#unsound) return this.#unsound;
    const known = this.#known;
    const text = bytes.toString('latin1');
    const existing = known.get(text);
    if (existing !== undefined) return existing;
    try {
      const descriptor = decodeDescriptor(bytes);
      if (known.size >= MAX_KNOWN_DESCRIPTORS) known.clear();
      known.set(text, descriptor);
      return descriptor;
    } catch (error) {
      if (!(error instanceof IpcError)) throw error;
      this.#unsound = error;
      return error;
    }
  }
}

/** The plain data of a value that was scanned: bytes until it is built, when someone takes it. */
export class Contents {
  readonly #byteLength: number;
  #builder: Builder | undefined;
  #value: unknown;
  #failure: unknown;

  /** @param from what begins with the value: there until the next message but for {@link keep} */
  constructor(from: ByteReader, byteLength: number) {
    this.#byteLength = byteLength;
    from.rewind();
    this.#builder = new Builder(from);
  }

  /** Of the value on its way. */
  get byteLength(): number {
    return this.#byteLength;
  }

  /** The value, once it is whole. */
  get value(): unknown {
    return this.#value;
  }

  /** Copies the bytes of what was not built yet. */
  keep(): void {
    this.#builder?.keep(this.#byteLength);
  }

  /**
   * Builds the value, for a few milliseconds at most: call it again, in a later turn of the loop,
   * until it returns true.
   *
   * @param objects what goes in the places of the GPU objects
   * @throws IpcError for a name that an object has twice
   */
  build(objects: readonly unknown[]): boolean {
    if (this.#failure) throw this.#failure;
    if (!this.#builder) return true;
    try {
      if (!this.#builder.build(objects)) return false;
      this.#value = this.#builder.root;
    } catch (error) {
      this.#failure = error;
      this.#builder = undefined;
      throw error;
    }
    this.#builder = undefined;
    return true;
  }

  /** As {@link build}, at once: for what is short. */
  buildAll(objects: readonly unknown[]): unknown {
    while (!this.build(objects));
    return this.#value;
  }
}

/** The name by which an object would get another prototype. */
const PROTO = '__proto__';

const forbidden = (key: string): IpcError =>
  new IpcError(`the name ${JSON.stringify(key.slice(0, 60))} is not allowed there`);

function evenLength(from: ByteReader): number {
  const byteLength = from.length();
  if (byteLength % 2 !== 0)
    throw new IpcError(`a string of ${byteLength} bytes ends in half a character`);
  return byteLength;
}

/** Builds a value that was scanned, part after part. */
class Builder {
  root: unknown;
  #from: ByteReader;
  readonly #holders: (unknown[] | Record<string, unknown>)[] = [];
  readonly #left: number[] = [];
  #objects = 0;

  constructor(from: ByteReader) {
    this.#from = from;
  }

  /** As {@link Contents.keep}. */
  keep(byteLength: number): void {
    this.#from = this.#from.copied(byteLength);
  }

  /** As {@link Contents.build}. */
  build(objects: readonly unknown[]): boolean {
    if (this.#from.at === 0) this.root = this.#part(objects);
    const holders = this.#holders;
    const lefts = this.#left;
    const from = this.#from;
    let [end, at] = [0, from.at];
    for (let parts = 1; holders.length > 0; parts++) {
      const top = holders.length - 1;
      const left = lefts[top] as number;
      if (left < ONE) {
        holders.pop();
        lefts.pop();
        continue;
      }
      lefts[top] = left - ONE;
      const holder = holders[top] as unknown[] | Record<string, unknown>;
      if (left & IS_OBJECT) {
        const record = holder as Record<string, unknown>;
        const key = this.#key();
        if (Object.hasOwn(record, key)) throw forbidden(key);
        record[key] = this.#part(objects);
      } else (holder as unknown[]).push(this.#part(objects));
      if (parts % BETWEEN.builtParts > 0 && from.at - at < BETWEEN.bytes) continue;
      at = from.at;
      const now = performance.now();
      end ||= now + SLICE_MS;
      if (now >= end) return false;
    }
    return true;
  }

  #part(objects: readonly unknown[]): unknown {
    const from = this.#from;
    const tag = from.uint8();
    switch (tag) {
      case Tag.null:
        return null;
      case Tag.false:
        return false;
      case Tag.true:
        return true;
      case Tag.int32:
        return from.int32();
      case Tag.float64:
        return from.float64();
      case Tag.latin1:
        return from.latin1();
      case Tag.utf16:
        return from.utf16();
      case Tag.bigint64:
        return from.bigint64();
      case Tag.bigint:
        return this.#bigint();
      case Tag.array:
        return this.#begin([], from.length() * ONE);
      case Tag.object:
        return this.#begin({}, from.length() * ONE + IS_OBJECT);
      case Tag.binary:
        return this.#binary();
      case Tag.parcel:
        return this.#object(objects);
      default:
        return undefined;
    }
  }

  #begin<H extends unknown[] | Record<string, unknown>>(holder: H, left: number): H {
    if (left >= ONE) {
      this.#holders.push(holder);
      this.#left.push(left);
    }
    return holder;
  }

  #key(): string {
    return this.#from.uint8() === Tag.latin1 ? this.#from.latin1() : this.#from.utf16();
  }

  #bigint(): bigint {
    const isNegative = this.#from.uint8() === 1;
    const magnitude = BigInt(`0x${this.#from.latin1()}`);
    return isNegative ? -magnitude : magnitude;
  }

  #binary(): ArrayBufferView | ArrayBuffer {
    const type = binaryTypes[this.#from.uint8()]?.[1];
    const buffer = this.#from.bytes();
    return type ? new type(buffer) : buffer;
  }

  #object(objects: readonly unknown[]): unknown {
    this.#from.length(0);
    this.#from.skip(this.#from.length());
    this.#objects += 1;
    return objects[this.#objects - 1];
  }
}
