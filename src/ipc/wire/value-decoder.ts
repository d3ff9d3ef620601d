import { IpcError } from '../../errors.ts';
import type { IpcDescriptor } from '../descriptor.ts';
import { decodeDescriptor, MAX_DESCRIPTOR_BYTE_LENGTH } from '../descriptor-codec.ts';
import { ByteReader } from './bytes.ts';
import { readTail, type Tail } from './control-block.ts';
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
import { binaryTypes, Tag } from './value-tags.ts';

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

const IS_OBJECT = 1;
const ONE = 2;

/**
 * A value up to this length is built as it is checked: what that costs in memory is bounded by how
 * many values may wait. A longer one costs nothing but its bytes until someone takes it.
 */
const MAX_SHORT_BYTE_LENGTH = 1024;

/**
 * The check of a value of another process, which finds its GPU objects and what is said with it.
 * A byte on its way can be half a KiB once it is built.
 */
export class ValueScan {
  readonly #from: ByteReader;
  readonly #reader: ValueReader;

  /** @param known the descriptors that came before on the same connection */
  constructor(bytes: Uint8Array, known: KnownDescriptors) {
    this.#from = new ByteReader(bytes);
    this.#reader = new ValueReader(this.#from, bytes.byteLength <= MAX_SHORT_BYTE_LENGTH, known);
  }

  /**
   * Checks for a few milliseconds at most: call it again, in a later turn of the loop, until it
   * returns true.
   *
   * @throws IpcError for anything but one whole value
   */
  step(): boolean {
    return this.#reader.step();
  }

  /**
   * The value, once all of it was checked.
   *
   * @param fdCount how many file descriptors came with it
   * @throws IpcError as {@link step}
   */
  end(fdCount: number): ScannedValue {
    const { slots } = this.#reader;
    const from = this.#from;
    const byteLength = from.at;
    if (byteLength > MAX_VALUE_BYTE_LENGTH || from.left > MAX_TAIL_BYTE_LENGTH)
      throw new IpcError(
        `a value of ${byteLength} bytes came with ${from.left} more: they may be ` +
          `${MAX_VALUE_BYTE_LENGTH} and ${MAX_TAIL_BYTE_LENGTH}`,
      );
    const tail = readTail(from);
    let expected = 0;
    for (const slot of slots) expected += slot.fdCount;
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
    return { contents: new Contents(this.#reader, from, byteLength), slots, tail };
  }
}

/** The plain data of a value that was checked: of a long one bytes, until someone takes it. */
export class Contents {
  /** Of the value on its way. */
  readonly byteLength: number;
  #reader: ValueReader;
  /** Where it is to be built from. */
  #from: ByteReader | undefined;

  /** @param from what begins with the value: there until the next message but for {@link keep} */
  constructor(reader: ValueReader, from: ByteReader, byteLength: number) {
    this.byteLength = byteLength;
    this.#reader = reader;
    if (!reader.builds) this.#from = from;
  }

  /** The value, once it is whole. */
  get value(): unknown {
    return this.#reader.root;
  }

  /** Copies the bytes of what was not built yet. */
  keep(): void {
    this.#from &&= this.#from.copied(this.byteLength);
  }

  /**
   * Builds the value, for a few milliseconds at most: call it again, in a later turn of the loop,
   * until it returns true.
   *
   * @param objects what goes in the places of the GPU objects
   * @throws IpcError for a name that an object has twice
   */
  build(objects: readonly unknown[]): boolean {
    if (this.#from) {
      if (!this.#reader.builds) {
        this.#from.rewind();
        this.#reader = new ValueReader(this.#from, true);
      }
      if (!this.#reader.step()) return false;
      this.#from = undefined;
    }
    this.#reader.fill(objects);
    return true;
  }

  /** As {@link build}, at once: for what is short. */
  buildAll(objects: readonly unknown[]): unknown {
    while (!this.build(objects));
    return this.value;
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

type Holder = unknown[] | Record<string, unknown>;

/** A GPU object, until it is there. */
const OBJECT = Symbol('object');

/** Reads a value part after part: checks all of it, and builds it where that is asked for. */
class ValueReader {
  readonly builds: boolean;
  /** The GPU objects, in their order. */
  readonly slots: Slot[] = [];
  /** What was built. */
  root: unknown;
  readonly #from: ByteReader;
  /** Undefined where the descriptors were read before. */
  readonly #known: KnownDescriptors | undefined;
  /** What is open: twice how many parts are left, and one more for an object. */
  readonly #open: number[] = [];
  /** Of what is open, what is built of it. */
  readonly #holders: Holder[] = [];
  /** Where each GPU object goes. */
  readonly #places: { readonly holder: object; readonly key: string | number }[] = [];
  #unsound: IpcError | undefined;
  #twice: string | undefined;
  #parts = 0;
  #binaries = 0;

  constructor(from: ByteReader, builds: boolean, known?: KnownDescriptors) {
    this.#from = from;
    this.builds = builds;
    this.#known = known;
  }

  /** As {@link ValueScan.step}. */
  step(): boolean {
    const open = this.#open;
    const from = this.#from;
    const between = this.builds ? BETWEEN.builtParts : BETWEEN.scannedParts;
    let [end, at] = [0, from.at];
    if (this.#parts === 0) this.#begun();
    while (open.length > 0) {
      const top = open.length - 1;
      const left = open[top] as number;
      if (left < ONE) {
        open.pop();
        this.#holders.pop();
        continue;
      }
      open[top] = left - ONE;
      if (this.builds) this.#inner(this.#holders[top] as Holder, (left & IS_OBJECT) !== 0);
      else {
        if (left & IS_OBJECT) this.#key();
        this.#part();
      }
      if (this.#parts % between > 0 && from.at - at < BETWEEN.bytes) continue;
      at = from.at;
      const now = performance.now();
      end ||= now + SLICE_MS;
      if (now >= end) return false;
    }
    return true;
  }

  /**
   * Puts the GPU objects into their places.
   *
   * @throws IpcError for a name that an object has twice
   */
  fill(objects: readonly unknown[]): void {
    if (this.#twice !== undefined) throw forbidden(this.#twice);
    for (const [at, { holder, key }] of this.#places.entries())
      (holder as Record<string | number, unknown>)[key] = objects[at];
  }

  #begun(): void {
    this.root = this.#part();
    if (this.root === OBJECT) this.#places.push({ holder: this, key: 'root' });
  }

  /** Builds one part of an array or object. */
  #inner(holder: Holder, isObject: boolean): void {
    const key = isObject ? this.#key() : (holder as unknown[]).length;
    if (isObject && Object.hasOwn(holder, key)) this.#twice ??= key as string;
    const part = this.#part();
    if (part === OBJECT) this.#places.push({ holder, key });
    (holder as Record<string | number, unknown>)[key] = part;
  }

  #part(): unknown {
    this.#parts += 1;
    if (this.#parts > MAX_VALUE_PARTS)
      throw new IpcError(`the value has more than ${MAX_VALUE_PARTS} parts`);
    const from = this.#from;
    const { builds } = this;
    const tag = from.uint8();
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
        return builds ? from.int32() : from.skip(4);
      case Tag.float64:
        return builds ? from.float64() : from.skip(8);
      case Tag.latin1:
        return builds ? from.latin1() : from.skip(from.length());
      case Tag.utf16:
        return builds ? from.utf16() : from.skip(evenLength(from));
      case Tag.bigint64:
        return builds ? from.bigint64() : from.skip(8);
      case Tag.bigint:
        return this.#bigint();
      case Tag.array:
        return this.#begin([], 0);
      case Tag.object:
        return this.#begin({}, IS_OBJECT);
      case Tag.binary:
        return this.#binary();
      case Tag.parcel:
        return this.#object();
      default:
        throw new IpcError(`the byte ${tag} begins no part of a value`);
    }
  }

  #begin(holder: Holder, isObject: number): Holder {
    if (this.#open.length >= MAX_VALUE_DEPTH)
      throw new IpcError(`the value is nested deeper than ${MAX_VALUE_DEPTH} levels`);
    // A name and its value have a byte at least each, and a name its length.
    const count = this.#from.length(isObject ? 3 : 1);
    if (count === 0) return holder;
    this.#open.push(count * ONE + isObject);
    if (this.builds) this.#holders.push(holder);
    return holder;
  }

  /** The name of a part, where it is built. */
  #key(): string {
    const from = this.#from;
    const tag = from.uint8();
    if (tag !== Tag.latin1 && tag !== Tag.utf16)
      throw new IpcError('an object has a name that is no string');
    if (this.builds) {
      const key = tag === Tag.latin1 ? from.latin1() : from.utf16();
      if (key === PROTO) throw forbidden(PROTO);
      return key;
    }
    const byteLength = tag === Tag.latin1 ? from.length() : evenLength(from);
    const isAsLong = byteLength === (tag === Tag.latin1 ? 1 : 2) * PROTO.length;
    if (!isAsLong) from.skip(byteLength);
    else if (from.view(byteLength).toString(tag === Tag.latin1 ? 'latin1' : 'utf16le') === PROTO)
      throw forbidden(PROTO);
    return '';
  }

  #bigint(): bigint | undefined {
    const from = this.#from;
    const isNegative = from.uint8() === 1;
    const count = from.length();
    if (count > MAX_BIGINT_DIGITS)
      throw new IpcError(`a bigint of ${count} hexadecimal digits is too long`);
    const digits = from.digits(count);
    if (!digits) throw new IpcError('a bigint has other than digits');
    if (!this.builds) return undefined;
    const magnitude = BigInt(`0x${digits.toString('latin1')}`);
    return isNegative ? -magnitude : magnitude;
  }

  #binary(): ArrayBufferView | ArrayBuffer | undefined {
    this.#binaries += 1;
    if (this.#binaries > MAX_VALUE_BINARIES)
      throw new IpcError(`the value has more than ${MAX_VALUE_BINARIES} parts of binary data`);
    const from = this.#from;
    const found = binaryTypes[from.uint8()];
    if (!found) throw new IpcError('binary data is of an unknown type');
    const [name, type] = found;
    const { BYTES_PER_ELEMENT: size = 1 } = (type ?? {}) as { BYTES_PER_ELEMENT?: number };
    const byteLength = from.length();
    if (byteLength % size !== 0) throw new IpcError(`a ${name} cannot have ${byteLength} bytes`);
    if (!this.builds) {
      from.skip(byteLength);
      return undefined;
    }
    const buffer = from.bytes(byteLength);
    return type ? new type(buffer) : buffer;
  }

  #object(): typeof OBJECT {
    const from = this.#from;
    const fdCount = from.length(0);
    const byteLength = from.length();
    if (!this.#known) {
      from.skip(byteLength);
      return OBJECT;
    }
    if (this.slots.length >= MAX_VALUE_OBJECTS)
      throw new IpcError(`the value has more than ${MAX_VALUE_OBJECTS} GPU objects`);
    if (byteLength > MAX_DESCRIPTOR_BYTE_LENGTH)
      throw new IpcError(`a descriptor of ${byteLength} bytes is too long`);
    const descriptor = this.#descriptor(from.view(byteLength), this.#known);
    this.slots.push({ descriptor, fdCount });
    return OBJECT;
  }

  /** A descriptor that is not sound fails its value alone, when that is opened. */
  #descriptor(bytes: Buffer, known: KnownDescriptors): IpcDescriptor | IpcError {
    // Nothing of the value is opened: an error for each would cost more than the descriptors.
    if (this.#unsound) return this.#unsound;
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
