/**
 * Decodes the values of another process: first checks all of a value, then builds it. A byte on the
 * wire can take half a KiB once it is built.
 */

import { IpcError } from '../../errors.ts';
import type { ByteReader } from '../bytes.ts';
import {
  ErrorField,
  MAX_BIGINT_DIGITS,
  MAX_NAME_LENGTH,
  MAX_UNCOUNTED_KEYS,
  MAX_VALUE_BINARIES,
  MAX_VALUE_COLLECTIONS,
  MAX_VALUE_DEPTH,
  MAX_VALUE_OBJECTS,
  MAX_VALUE_PARTS,
  Tag,
} from '../protocol.ts';
import { HashCollisions } from './hash-collisions.ts';
import { limitExceeded } from './limits.ts';
import { AGGREGATE_ERROR, binaryTypes, errorTypes } from './value-tags.ts';

/** A value of another process. A long one stays encoded until a caller takes it. */
export class EncodedValue {
  #reader: ValueReader;
  /** Where to build from. Undefined once the value is built. */
  #from: ByteReader | undefined;
  #byteLength = 0;

  /**
   * @param from begins with the value. Its bytes are valid until the next message; see
   * {@link copyBytes}
   */
  constructor(from: ByteReader) {
    this.#from = from;
    this.#reader = new ValueReader(from, from.remaining <= MAX_SHORT_BYTE_LENGTH);
  }

  /**
   * Checks for at most a few milliseconds. Call it again, in a later turn of the event loop, until
   * it returns true. Then the reader stands behind the value.
   *
   * @throws IpcError for anything but one whole value
   */
  check(): boolean {
    const from = this.#from as ByteReader;
    if (!this.#reader.step()) return false;
    this.#byteLength = from.offset;
    if (this.#reader.isBuilding) this.#from = undefined;
    return true;
  }

  /** The encoded length. */
  get byteLength(): number {
    return this.#byteLength;
  }

  /** How many objects have a place in the value. */
  get objectCount(): number {
    return this.#reader.objectCount;
  }

  /** The built value. */
  get value(): unknown {
    return this.#reader.root;
  }

  /** Copies the bytes of a value that is not built yet. */
  copyBytes(): void {
    this.#from &&= this.#from.copyOfFirst(this.#byteLength);
  }

  /**
   * Builds the value for at most a few milliseconds. Call it again, in a later turn of the event
   * loop, until it returns true.
   *
   * @param objects the objects to insert at their places
   * @throws IpcError if an object has the same name twice, a Map or Set the same key, or too many
   * keys of one hash
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
    return this.#reader.insertObjects(objects);
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

/** The kind of an open container, in the low bits of its number of remaining parts. */
const Kind = { array: 0, object: 1, map: 2, set: 3, error: 4, largeObject: 5 } as const;
type Kind = (typeof Kind)[keyof typeof Kind];
const KIND_BITS = 7;
const ITEM = 8;

/**
 * Values up to this length are built while they are checked; the number of queued values limits
 * their memory. A longer value takes only its bytes until a caller takes it.
 */
const MAX_SHORT_BYTE_LENGTH = 1024;

/** Assigning to this name would change an object's prototype. */
const PROTO = '__proto__';

/** Stands for an object until it is inserted. */
const OBJECT_PLACEHOLDER = Symbol('object');

/** Stands for an index of an array that has no item. */
const HOLE = Symbol('hole');

type Container = unknown[] | Record<string, unknown> | LargeObject | Collection | Error;

/** An object with many names that is being built. */
class LargeObject {
  readonly target: Record<string, unknown>;
  #highest = -1;
  #jumps = 0;

  constructor(target: Record<string, unknown>) {
    this.target = target;
  }

  /**
   * Notes a name before it is added. V8 copies all items of an object from an array to a dictionary
   * when an index is far above the others, and back once they are dense enough. Another process can
   * choose names that make it do so again and again.
   */
  note(name: string): void {
    const index = INDEX.test(name) ? Number(name) : -1;
    if (index <= this.#highest) return;
    if (index > this.#highest + LARGE_GAP && ++this.#jumps === MAX_JUMPS)
      keepDictionary(this.target);
    this.#highest = index;
  }
}

/** From how many names on an object is large. */
const MANY_NAMES = 1024;
/** The name of an item: V8 has no other names whose order it changes. */
const INDEX = /^(0|[1-9]\d{0,9})$/;
/** V8 changes to a dictionary for no smaller gap. */
const LARGE_GAP = 1024;
const MAX_JUMPS = 16;
const MAX_INDEX = 2 ** 32 - 2;

/** Once an object had its highest possible index, V8 keeps its items in a dictionary. */
function keepDictionary(object: Record<string, unknown>): void {
  if (Object.hasOwn(object, MAX_INDEX)) return;
  object[MAX_INDEX] = undefined;
  delete object[MAX_INDEX];
}

/** A Map or Set that is being built. */
class Collection {
  readonly target: Map<unknown, unknown> | Set<unknown>;
  /** The key whose value comes next. */
  key: unknown;
  /**
   * Keys and values in turn, or members, from the first GPU object among the keys or members on.
   * They are added when all objects are inserted, so that the order stays.
   */
  deferred: unknown[] | undefined;
  /** How much of that was added. */
  added = 0;
  readonly #collisions: HashCollisions | undefined;

  /** @param size how many entries or members it will have */
  constructor(target: Map<unknown, unknown> | Set<unknown>, size: number) {
    this.target = target;
    this.#collisions = size > MAX_UNCOUNTED_KEYS ? new HashCollisions() : undefined;
  }

  /** Whether the keys, including this one, do not collide too often. */
  accepts(key: unknown): boolean {
    return this.#collisions?.add(key) ?? true;
  }

  /** Adds a member, or a key with its value. Returns false if it is there already. */
  add(key: unknown, value: unknown): boolean {
    const { target } = this;
    const { size } = target;
    if (target instanceof Map) target.set(key, value);
    else target.add(key);
    return target.size > size;
  }

  /** Adds the next of what was deferred. Returns false if it is there already. */
  addDeferred(): boolean {
    const items = this.deferred as unknown[];
    const key = items[this.added++];
    if (this.target instanceof Map) return this.add(key, items[this.added++]);
    // Two members of the sender may be one GPU object here, where they came from.
    return this.add(key, undefined) || typeof key === 'object';
  }

  get isComplete(): boolean {
    return this.added >= (this.deferred as unknown[]).length;
  }
}

/** Reads a value part by part. Checks all of it, and builds it if asked to. */
class ValueReader {
  readonly isBuilding: boolean;
  /** How many objects have a place. */
  objectCount = 0;
  /** The built value. */
  root: unknown;
  readonly #from: ByteReader;
  /** The open containers: {@link ITEM} times the number of remaining parts, plus the kind. */
  readonly #open: number[] = [];
  /** What was built of each open container. */
  readonly #containers: Container[] = [];
  /** Where to insert each object. */
  readonly #places: { readonly holder: object; readonly key: unknown }[] = [];
  /** The Maps and Sets that wait for GPU objects. */
  readonly #deferred: Collection[] = [];
  /** Why the value cannot be taken, although all of its bytes are valid. */
  #refusal: IpcError | undefined;
  #parts = 0;
  #binaries = 0;
  #collections = 0;

  constructor(from: ByteReader, isBuilding: boolean) {
    this.#from = from;
    this.isBuilding = isBuilding;
  }

  /** As {@link EncodedValue.check}. */
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
      const kind = (left & KIND_BITS) as Kind;
      if (this.isBuilding) this.#readItem(this.#containers[top] as Container, kind, left);
      else {
        if (kind === Kind.object) this.#readString(OBJECT_NAME);
        this.#readPart(kind === Kind.array);
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
   * Inserts the objects at their places, for at most a few milliseconds. Returns whether all is
   * done; if not, call it again, in a later turn of the event loop.
   *
   * @throws IpcError if an object has the same name twice, a Map or Set the same key, or too many
   * keys of one hash
   */
  insertObjects(objects: readonly unknown[]): boolean {
    if (this.#refusal) throw this.#refusal;
    for (const [at, { holder, key }] of this.#places.entries())
      if (holder instanceof Map) holder.set(key, objects[at]);
      else (holder as Record<string | number, unknown>)[key as string | number] = objects[at];
    return this.#deferred.length === 0 || this.#addDeferred();
  }

  #addDeferred(): boolean {
    const end = performance.now() + SLICE_MS;
    for (let n = 1; ; n++) {
      const collection = this.#deferred.at(-1);
      if (!collection) return true;
      if (!collection.addDeferred()) {
        this.#refusal = repeatedKeyError();
        throw this.#refusal;
      }
      if (collection.isComplete) this.#deferred.pop();
      if (n % CLOCK_INTERVAL.builtParts === 0 && performance.now() >= end) return false;
    }
  }

  #readRoot(): void {
    this.root = this.#readPart(false);
    if (this.root === OBJECT_PLACEHOLDER) this.#places.push({ holder: this, key: 'root' });
  }

  /** Builds one part of a container. @param left how many parts remained before, and the kind */
  #readItem(container: Container, kind: Kind, left: number): void {
    if (kind === Kind.array) this.#readArrayItem(container as unknown[]);
    else if (kind === Kind.object) this.#readProperty(container as Record<string, unknown>);
    else if (kind === Kind.largeObject) this.#readLargeProperty(container as LargeObject);
    else if (kind === Kind.error) this.#assign(container, 'cause', this.#readPart(false));
    else if (kind === Kind.set)
      this.#addToCollection(container as Collection, this.#readPart(false), undefined);
    else this.#readEntry(container as Collection, (left & ITEM) === 0);
  }

  /** Reads one half of an entry of a Map. The number of remaining parts is even before a key. */
  #readEntry(map: Collection, isKey: boolean): void {
    const part = this.#readPart(false);
    if (isKey) map.key = part;
    else this.#addToCollection(map, map.key, part);
  }

  #readArrayItem(items: unknown[]): void {
    const part = this.#readPart(true);
    if (part === HOLE) items.length += 1;
    else this.#assign(items, items.length, part);
  }

  #readLargeProperty(object: LargeObject): void {
    const key = this.#readString(OBJECT_NAME);
    object.note(key);
    this.#readProperty(object.target, key);
  }

  #readProperty(object: Record<string, unknown>, key = this.#readString(OBJECT_NAME)): void {
    if (Object.hasOwn(object, key)) this.#refusal ??= forbiddenKeyError(key);
    this.#assign(object, key, this.#readPart(false));
  }

  #assign(holder: object, key: string | number, part: unknown): void {
    if (part === OBJECT_PLACEHOLDER) this.#places.push({ holder, key });
    (holder as Record<string | number, unknown>)[key] = part;
  }

  #addToCollection(collection: Collection, key: unknown, value: unknown): void {
    if (!collection.accepts(key)) {
      this.#refusal ??= collidingKeysError();
      return;
    }
    if (key === OBJECT_PLACEHOLDER && !collection.deferred) {
      collection.deferred = [];
      this.#deferred.push(collection);
    }
    const { deferred, target } = collection;
    if (deferred) {
      this.#assign(deferred, deferred.length, key);
      if (target instanceof Map) this.#assign(deferred, deferred.length, value);
      return;
    }
    if (value === OBJECT_PLACEHOLDER) this.#places.push({ holder: target, key });
    if (!collection.add(key, value)) this.#refusal ??= repeatedKeyError();
  }

  /** @param mayBeHole whether the part is an item of an array */
  #readPart(mayBeHole: boolean): unknown {
    this.#parts += 1;
    if (this.#parts > MAX_VALUE_PARTS)
      throw limitExceeded(`the value has more than ${MAX_VALUE_PARTS} parts`);
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
        return this.#openArray();
      case Tag.object:
        return this.#openObject();
      case Tag.binary:
        return this.#readBinary();
      case Tag.gpuObject:
        return this.#readPlace();
      case Tag.hole:
        if (!mayBeHole) throw new IpcError('a hole is outside an array');
        return HOLE;
      case Tag.date:
        return isBuilding ? new Date(from.float64()) : from.skip(8);
      case Tag.map:
        return this.#openCollection(Kind.map);
      case Tag.set:
        return this.#openCollection(Kind.set);
      case Tag.error:
        return this.#readError();
      default:
        throw new IpcError(`unknown value tag ${tag}`);
    }
  }

  #openArray(): unknown[] {
    const items: unknown[] = [];
    this.#push(items, this.#from.length(), Kind.array);
    return items;
  }

  #openObject(): Record<string, unknown> {
    const object = {};
    // A name takes at least two bytes (tag and length), and its value one.
    const count = this.#from.length(3);
    if (count <= MANY_NAMES || !this.isBuilding) this.#push(object, count, Kind.object);
    else this.#push(new LargeObject(object), count, Kind.largeObject);
    return object;
  }

  #openCollection(kind: typeof Kind.map | typeof Kind.set): Collection['target'] {
    this.#countCollection();
    const target = kind === Kind.map ? new Map() : new Set();
    const size = this.#from.length(kind === Kind.map ? 2 : 1);
    this.#push(new Collection(target, size), kind === Kind.map ? 2 * size : size, kind);
    return target;
  }

  #push(container: Container, count: number, kind: Kind): void {
    if (this.#open.length >= MAX_VALUE_DEPTH)
      throw limitExceeded(`the value is nested deeper than ${MAX_VALUE_DEPTH} levels`);
    // The errors of an error are a level below it, also if it has no cause.
    if (count === 0 && kind !== Kind.error) return;
    this.#open.push(count * ITEM + kind);
    if (this.isBuilding) this.#containers.push(container);
  }

  #countCollection(): void {
    this.#collections += 1;
    if (this.#collections > MAX_VALUE_COLLECTIONS)
      throw limitExceeded(`the value has more than ${MAX_VALUE_COLLECTIONS} Maps, Sets and errors`);
  }

  #readError(): Error {
    this.#countCollection();
    const from = this.#from;
    const type = from.uint8();
    const fields = from.uint8();
    const Type = errorTypes[type];
    if (!Type || fields >= 2 * ErrorField.cause)
      throw new IpcError(`an error has an unknown type or unknown fields: ${type}, ${fields}`);
    const read = (field: number): string | undefined =>
      (fields & field) === 0 ? undefined : this.#readString(ERROR_TEXT);
    const texts = {
      name: read(ErrorField.name),
      message: read(ErrorField.message),
      stack: read(ErrorField.stack),
    };
    const code = read(ErrorField.code);
    const error = this.isBuilding ? makeError(Type, texts) : placeholderError;
    if (this.isBuilding && code !== undefined) Object.assign(error, { code });
    const hasCause = (fields & ErrorField.cause) !== 0;
    if (hasCause && this.isBuilding) defineHidden(error, 'cause', undefined);
    // The container that is opened last is read first.
    this.#push(error, hasCause ? 1 : 0, Kind.error);
    if (type === AGGREGATE_ERROR) {
      const errors = this.#openArray();
      if (this.isBuilding) defineHidden(error, 'errors', errors);
    }
    return error;
  }

  /** Returns a string, or an empty one when not building. */
  #readString(what: typeof OBJECT_NAME | typeof ERROR_TEXT): string {
    const from = this.#from;
    const tag = from.uint8();
    if (tag !== Tag.latin1 && tag !== Tag.utf16) throw new IpcError(`${what} is not a string`);
    if (this.isBuilding) {
      const text = tag === Tag.latin1 ? from.latin1() : from.utf16();
      // The length of a long name was checked before.
      if (what === OBJECT_NAME && text === PROTO) throw forbiddenKeyError(PROTO);
      return text;
    }
    const byteLength = tag === Tag.latin1 ? from.length() : evenLength(from);
    const length = tag === Tag.latin1 ? byteLength : byteLength / 2;
    if (what === OBJECT_NAME && length > MAX_NAME_LENGTH) throw longNameError(length);
    if (what !== OBJECT_NAME || length !== PROTO.length) from.skip(byteLength);
    else if (from.view(byteLength).toString(tag === Tag.latin1 ? 'latin1' : 'utf16le') === PROTO)
      throw forbiddenKeyError(PROTO);
    return '';
  }

  #readBigint(): bigint | undefined {
    const from = this.#from;
    const sign = from.uint8();
    if (sign > 1) throw new IpcError(`a bigint has the sign ${sign}: it must be 0 or 1`);
    const count = from.length();
    if (count > MAX_BIGINT_DIGITS)
      throw limitExceeded(`a bigint of ${count} hexadecimal digits is too long`);
    const digits = from.hexDigits(count);
    if (!digits) throw new IpcError('a bigint has characters other than hexadecimal digits');
    if (!this.isBuilding) return undefined;
    const magnitude = BigInt(`0x${digits.toString('latin1')}`);
    return sign === 1 ? -magnitude : magnitude;
  }

  #readBinary(): ArrayBufferView | ArrayBuffer | undefined {
    this.#binaries += 1;
    if (this.#binaries > MAX_VALUE_BINARIES)
      throw limitExceeded(`the value has more than ${MAX_VALUE_BINARIES} parts of binary data`);
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

  #readPlace(): typeof OBJECT_PLACEHOLDER {
    this.objectCount += 1;
    if (this.objectCount > MAX_VALUE_OBJECTS)
      throw limitExceeded(`the value has more than ${MAX_VALUE_OBJECTS} GPU objects`);
    return OBJECT_PLACEHOLDER;
  }
}

const OBJECT_NAME = 'the name of a property';
const ERROR_TEXT = 'a text of an error';

/** Stands for the errors of a value that is only checked. */
const placeholderError = new Error('unused');

/** Makes an error that has only what was sent: no stack of this process either. */
function makeError(
  Type: ErrorConstructor,
  texts: Readonly<Record<'name' | 'message' | 'stack', string | undefined>>,
): Error {
  const { stackTraceLimit } = Error;
  // A stack of this process would be captured only to be replaced. This returns false if Error is
  // frozen.
  Reflect.set(Error, 'stackTraceLimit', 0);
  const error = Type === errorTypes[AGGREGATE_ERROR] ? new AggregateError([]) : new Type();
  Reflect.set(Error, 'stackTraceLimit', stackTraceLimit);
  for (const name of ['name', 'message'] as const)
    if (texts[name] !== undefined) defineHidden(error, name, texts[name]);
  defineHidden(error, 'stack', texts.stack);
  return error;
}

/** Defines a property as those of errors are: not enumerable. */
function defineHidden(error: Error, name: string, value: unknown): void {
  Object.defineProperty(error, name, { value, writable: true, configurable: true });
}

const repeatedKeyError = (): IpcError =>
  new IpcError('a Map or Set has the same key or member twice');

const collidingKeysError = (): IpcError =>
  limitExceeded(
    'a Map or Set has too many keys or members with the same hash: the sender can send an array of ' +
      'them, or strings in their place',
  );

const longNameError = (length: number): IpcError =>
  limitExceeded(
    `a name of ${length} characters is too long: at most ${MAX_NAME_LENGTH} are allowed`,
  );

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
