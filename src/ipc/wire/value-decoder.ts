import { IpcError } from '../../errors.ts';
import { ByteReader } from '../bytes.ts';
import type { DescriptorFields } from '../descriptor.ts';
import { decodeFields, MAX_DESCRIPTOR_BYTE_LENGTH } from '../descriptor-bytes.ts';
import { type ControlBlock, readControlBlock } from './control-block.ts';
import {
  MAX_BIGINT_DIGITS,
  MAX_CACHED_DESCRIPTORS,
  MAX_CONTROL_BYTE_LENGTH,
  MAX_VALUE_BINARIES,
  MAX_VALUE_BYTE_LENGTH,
  MAX_VALUE_DEPTH,
  MAX_VALUE_OBJECTS,
  MAX_VALUE_PARTS,
} from './limits.ts';
import { binaryTypes, Tag } from './value-tags.ts';

/** A GPU object of a value that is not opened yet. */
export interface EncodedObject {
  /** Or why the object cannot be opened. */
  readonly descriptor: DescriptorFields | IpcError;
  readonly fdCount: number;
}

/** A checked value. Nothing of it is opened, and long values are not built. */
export interface ScannedValue {
  readonly contents: Contents;
  /** The GPU objects, in order. */
  readonly encodedObjects: readonly EncodedObject[];
  readonly control: ControlBlock;
}

/** Decoded descriptors by their bytes, as the same buffers are sent again and again. */
export type DescriptorCache = Map<string, DescriptorFields>;

/**
 * Checks a value of another process, and finds its GPU objects and its control block. A byte on the
 * wire can take half a KiB once it is built.
 */
export class ValueScan {
  readonly #from: ByteReader;
  readonly #reader: ValueReader;

  /** @param cache the descriptors that this connection has decoded before */
  constructor(bytes: Uint8Array, cache: DescriptorCache) {
    this.#from = new ByteReader(bytes);
    this.#reader = new ValueReader(this.#from, bytes.byteLength <= MAX_SHORT_BYTE_LENGTH, cache);
  }

  /**
   * Checks for at most a few milliseconds. Call it again, in a later turn of the event loop, until
   * it returns true.
   *
   * @throws IpcError for anything but one whole value
   */
  step(): boolean {
    return this.#reader.step();
  }

  /**
   * Returns the value after the check.
   *
   * @param fdCount how many file descriptors came with it
   * @throws IpcError as {@link step}
   */
  end(fdCount: number): ScannedValue {
    const { encodedObjects } = this.#reader;
    const from = this.#from;
    const byteLength = from.offset;
    if (byteLength > MAX_VALUE_BYTE_LENGTH || from.remaining > MAX_CONTROL_BYTE_LENGTH)
      throw new IpcError(
        `a value of ${byteLength} bytes with a control block of ${from.remaining} bytes is too large: at most ` +
          `${MAX_VALUE_BYTE_LENGTH} and ${MAX_CONTROL_BYTE_LENGTH} are allowed`,
      );
    const control = readControlBlock(from);
    let expected = 0;
    for (const object of encodedObjects) expected += object.fdCount;
    const { hasTimelinePage, isClosing, isDone, forwardRequests, linkedObjects, leases } = control;
    if (hasTimelinePage || isClosing || isDone || forwardRequests.length > 0)
      throw new IpcError('received parts of a control message with a value');
    if (
      linkedObjects.some(
        (index, at) => index >= encodedObjects.length || index <= (linkedObjects[at - 1] ?? -1),
      )
    )
      throw new IpcError('received a link for an object that the value does not have');
    if ((leases?.count ?? 0) !== encodedObjects.length)
      throw new IpcError(
        `received ${leases?.count ?? 0} leases with a value that has ${encodedObjects.length} GPU objects`,
      );
    if (expected + linkedObjects.length !== fdCount)
      throw new IpcError(
        `received ${fdCount} file descriptors with a value that has ${expected + linkedObjects.length}`,
      );
    return { contents: new Contents(this.#reader, from, byteLength), encodedObjects, control };
  }
}

/** The plain data of a checked value. A long value stays encoded until a caller takes it. */
export class Contents {
  /** The encoded length. */
  readonly byteLength: number;
  #reader: ValueReader;
  /** Where to build from. Undefined once the value is built. */
  #from: ByteReader | undefined;

  /**
   * @param from begins with the value. Its bytes are valid until the next message; see
   * {@link copyBytes}
   */
  constructor(reader: ValueReader, from: ByteReader, byteLength: number) {
    this.byteLength = byteLength;
    this.#reader = reader;
    if (!reader.isBuilding) this.#from = from;
  }

  /** The built value. */
  get value(): unknown {
    return this.#reader.root;
  }

  /** Copies the bytes of a value that is not built yet. */
  copyBytes(): void {
    this.#from &&= this.#from.copyOfFirst(this.byteLength);
  }

  /**
   * Builds the value for at most a few milliseconds. Call it again, in a later turn of the event
   * loop, until it returns true.
   *
   * @param objects the GPU objects to insert
   * @throws IpcError if an object has the same name twice
   */
  build(objects: readonly unknown[]): boolean {
    if (this.#from) {
      if (!this.#reader.isBuilding) {
        this.#from.rewind();
        this.#reader = new ValueReader(this.#from, true);
      }
      if (!this.#reader.step()) return false;
      this.#from = undefined;
    }
    this.#reader.insertObjects(objects);
    return true;
  }

  /** As {@link build} without turns of the event loop, for short values. */
  buildAll(objects: readonly unknown[]): unknown {
    while (!this.build(objects));
    return this.value;
  }
}

// ---- The reader that checks and builds ----

/** For how long a value is checked or built before the event loop gets a turn. */
const SLICE_MS = 4;

/** After how many parts or bytes the clock is read. */
const CLOCK_INTERVAL = { scannedParts: 2048, builtParts: 128, bytes: 1 << 16 } as const;

const IS_OBJECT = 1;
const ITEM = 2;

/**
 * Values up to this length are built while they are checked; the number of queued values limits
 * their memory. A longer value takes only its bytes until a caller takes it.
 */
const MAX_SHORT_BYTE_LENGTH = 1024;

/** Assigning to this name would change an object's prototype. */
const PROTO = '__proto__';

/** Stands for a GPU object until it is inserted. */
const OBJECT_PLACEHOLDER = Symbol('object');

type Container = unknown[] | Record<string, unknown>;

/** Reads a value part by part. Checks all of it, and builds it if asked to. */
class ValueReader {
  readonly isBuilding: boolean;
  /** The GPU objects, in order. */
  readonly encodedObjects: EncodedObject[] = [];
  /** The built value. */
  root: unknown;
  readonly #from: ByteReader;
  /** Undefined on the second pass, when the descriptors were already read. */
  readonly #descriptorCache: DescriptorCache | undefined;
  /** The open containers: twice the number of remaining parts, plus 1 for an object. */
  readonly #open: number[] = [];
  /** What was built of each open container. */
  readonly #containers: Container[] = [];
  /** Where to insert each GPU object. */
  readonly #places: { readonly holder: object; readonly key: string | number }[] = [];
  #descriptorError: IpcError | undefined;
  #duplicateKey: string | undefined;
  #parts = 0;
  #binaries = 0;

  constructor(from: ByteReader, isBuilding: boolean, cache?: DescriptorCache) {
    this.#from = from;
    this.isBuilding = isBuilding;
    this.#descriptorCache = cache;
  }

  /** As {@link ValueScan.step}. */
  step(): boolean {
    const open = this.#open;
    const from = this.#from;
    const between = this.isBuilding ? CLOCK_INTERVAL.builtParts : CLOCK_INTERVAL.scannedParts;
    let [end, at] = [0, from.offset];
    if (this.#parts === 0) this.#readRoot();
    while (open.length > 0) {
      const top = open.length - 1;
      const left = open[top] as number;
      if (left < ITEM) {
        open.pop();
        this.#containers.pop();
        continue;
      }
      open[top] = left - ITEM;
      if (this.isBuilding)
        this.#readItem(this.#containers[top] as Container, (left & IS_OBJECT) !== 0);
      else {
        if (left & IS_OBJECT) this.#readKey();
        this.#readPart();
      }
      if (this.#parts % between > 0 && from.offset - at < CLOCK_INTERVAL.bytes) continue;
      at = from.offset;
      const now = performance.now();
      end ||= now + SLICE_MS;
      if (now >= end) return false;
    }
    return true;
  }

  /**
   * Inserts the GPU objects.
   *
   * @throws IpcError if an object has the same name twice
   */
  insertObjects(objects: readonly unknown[]): void {
    if (this.#duplicateKey !== undefined) throw forbiddenKeyError(this.#duplicateKey);
    for (const [at, { holder, key }] of this.#places.entries())
      (holder as Record<string | number, unknown>)[key] = objects[at];
  }

  #readRoot(): void {
    this.root = this.#readPart();
    if (this.root === OBJECT_PLACEHOLDER) this.#places.push({ holder: this, key: 'root' });
  }

  /** Builds one part of an array or object. */
  #readItem(container: Container, isObject: boolean): void {
    const key = isObject ? this.#readKey() : (container as unknown[]).length;
    if (isObject && Object.hasOwn(container, key)) this.#duplicateKey ??= key as string;
    const part = this.#readPart();
    if (part === OBJECT_PLACEHOLDER) this.#places.push({ holder: container, key });
    (container as Record<string | number, unknown>)[key] = part;
  }

  #readPart(): unknown {
    this.#parts += 1;
    if (this.#parts > MAX_VALUE_PARTS)
      throw new IpcError(`the value has more than ${MAX_VALUE_PARTS} parts`);
    const from = this.#from;
    const { isBuilding } = this;
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
        return isBuilding ? from.int32() : from.skip(4);
      case Tag.float64:
        return isBuilding ? from.float64() : from.skip(8);
      case Tag.latin1:
        return isBuilding ? from.latin1() : from.skip(from.length());
      case Tag.utf16:
        return isBuilding ? from.utf16() : from.skip(evenLength(from));
      case Tag.bigint64:
        return isBuilding ? from.bigint64() : from.skip(8);
      case Tag.bigint:
        return this.#readBigint();
      case Tag.array:
        return this.#openContainer([], 0);
      case Tag.object:
        return this.#openContainer({}, IS_OBJECT);
      case Tag.binary:
        return this.#readBinary();
      case Tag.gpuObject:
        return this.#readObject();
      default:
        throw new IpcError(`unknown value tag ${tag}`);
    }
  }

  #openContainer(container: Container, isObject: number): Container {
    if (this.#open.length >= MAX_VALUE_DEPTH)
      throw new IpcError(`the value is nested deeper than ${MAX_VALUE_DEPTH} levels`);
    // A name takes at least two bytes (tag and length), and its value one.
    const count = this.#from.length(isObject ? 3 : 1);
    if (count === 0) return container;
    this.#open.push(count * ITEM + isObject);
    if (this.isBuilding) this.#containers.push(container);
    return container;
  }

  /** Returns the name of a part, or an empty string when not building. */
  #readKey(): string {
    const from = this.#from;
    const tag = from.uint8();
    if (tag !== Tag.latin1 && tag !== Tag.utf16)
      throw new IpcError('an object has a name that is not a string');
    if (this.isBuilding) {
      const key = tag === Tag.latin1 ? from.latin1() : from.utf16();
      if (key === PROTO) throw forbiddenKeyError(PROTO);
      return key;
    }
    const byteLength = tag === Tag.latin1 ? from.length() : evenLength(from);
    const isAsLong = byteLength === (tag === Tag.latin1 ? 1 : 2) * PROTO.length;
    if (!isAsLong) from.skip(byteLength);
    else if (from.view(byteLength).toString(tag === Tag.latin1 ? 'latin1' : 'utf16le') === PROTO)
      throw forbiddenKeyError(PROTO);
    return '';
  }

  #readBigint(): bigint | undefined {
    const from = this.#from;
    const isNegative = from.uint8() === 1;
    const count = from.length();
    if (count > MAX_BIGINT_DIGITS)
      throw new IpcError(`a bigint of ${count} hexadecimal digits is too long`);
    const digits = from.hexDigits(count);
    if (!digits) throw new IpcError('a bigint has characters other than hexadecimal digits');
    if (!this.isBuilding) return undefined;
    const magnitude = BigInt(`0x${digits.toString('latin1')}`);
    return isNegative ? -magnitude : magnitude;
  }

  #readBinary(): ArrayBufferView | ArrayBuffer | undefined {
    this.#binaries += 1;
    if (this.#binaries > MAX_VALUE_BINARIES)
      throw new IpcError(`the value has more than ${MAX_VALUE_BINARIES} parts of binary data`);
    const from = this.#from;
    const found = binaryTypes[from.uint8()];
    if (!found) throw new IpcError('binary data has an unknown type');
    const [name, type] = found;
    const { BYTES_PER_ELEMENT: size = 1 } = (type ?? {}) as { BYTES_PER_ELEMENT?: number };
    const byteLength = from.length();
    if (byteLength % size !== 0) throw new IpcError(`a ${name} cannot have ${byteLength} bytes`);
    if (!this.isBuilding) {
      from.skip(byteLength);
      return undefined;
    }
    const buffer = from.bytes(byteLength);
    return type ? new type(buffer) : buffer;
  }

  #readObject(): typeof OBJECT_PLACEHOLDER {
    const from = this.#from;
    const fdCount = from.length(0);
    const byteLength = from.length();
    if (!this.#descriptorCache) {
      from.skip(byteLength);
      return OBJECT_PLACEHOLDER;
    }
    if (this.encodedObjects.length >= MAX_VALUE_OBJECTS)
      throw new IpcError(`the value has more than ${MAX_VALUE_OBJECTS} GPU objects`);
    if (byteLength > MAX_DESCRIPTOR_BYTE_LENGTH)
      throw new IpcError(`a descriptor of ${byteLength} bytes is too long`);
    const descriptor = this.#readDescriptor(from.view(byteLength), this.#descriptorCache);
    this.encodedObjects.push({ descriptor, fdCount });
    return OBJECT_PLACEHOLDER;
  }

  /** An invalid descriptor fails only its own value, when that is opened. */
  #readDescriptor(bytes: Buffer, cache: DescriptorCache): DescriptorFields | IpcError {
    // Nothing of the value is opened. One error is enough: one for each would cost more than the
    // descriptors.
    if (this.#descriptorError) return this.#descriptorError;
    const text = bytes.toString('latin1');
    const existing = cache.get(text);
    if (existing !== undefined) return existing;
    try {
      const descriptor = decodeFields(bytes);
      if (cache.size >= MAX_CACHED_DESCRIPTORS) cache.clear();
      cache.set(text, descriptor);
      return descriptor;
    } catch (error) {
      if (!(error instanceof IpcError)) throw error;
      this.#descriptorError = error;
      return error;
    }
  }
}

const forbiddenKeyError = (key: string): IpcError =>
  new IpcError(
    `the name ${JSON.stringify(key.slice(0, 60))} is not allowed: it is repeated or reserved`,
  );

function evenLength(from: ByteReader): number {
  const byteLength = from.length();
  if (byteLength % 2 !== 0)
    throw new IpcError(`a string of ${byteLength} bytes ends in half a character`);
  return byteLength;
}
