/** Encodes a value. GPU objects leave a place in it, and are returned, as by `structuredClone`. */

import { types } from 'node:util';
import { thrownFrom } from '../../errors.ts';
import { typedArrayKind } from '../../typed-array.ts';
import {
  checkHostMemory,
  classNameOf,
  formatBytes,
  formatValue,
  isError,
  isPlainObject,
  withArticle,
} from '../../validate.ts';
import type { ByteWriter } from '../bytes.ts';
import {
  ErrorField,
  MAX_BIGINT_DIGITS,
  MAX_NAME_LENGTH,
  MAX_UNCOUNTED_KEYS,
  MAX_VALUE_BINARIES,
  MAX_VALUE_BYTE_LENGTH,
  MAX_VALUE_COLLECTIONS,
  MAX_VALUE_DEPTH,
  MAX_VALUE_OBJECTS,
  MAX_VALUE_PARTS,
  Tag,
} from '../protocol.ts';
import { HashCollisions } from './hash-collisions.ts';
import { AGGREGATE_ERROR, binaryTypes, errorTypes } from './value-tags.ts';

/** The objects that may stand in a value besides plain data. */
export interface TransferableObjects<T extends object> {
  includes(object: object): object is T;
  /** Returns what to send instead of an object that is not included. */
  alternativeTo(object: object): string;
}

/** An object of a value. */
export interface PlacedObject<T extends object> {
  readonly object: T;
  /** Its path in the value, for error messages. */
  readonly path: Path;
}

/** The keys on the way to a part of a value. */
export type Path = readonly PathStep[];
type PathStep = string | number | CollectionStep;

/** The step to a value of a Map (by its key), or to a key or member (by its number). */
export interface CollectionStep {
  readonly call: 'get' | 'keys' | 'values';
  readonly key: unknown;
}

/** Writes a path as code does, e.g. `value.model.layers[3]` or `value.get("model").values()[0]`. */
export const formatPath = (path: Path): string =>
  path.reduce<string>((text, key) => {
    if (typeof key === 'number') return `${text}[${key}]`;
    if (typeof key === 'object')
      return key.call === 'get'
        ? `${text}.get(${formatValue(key.key)})`
        : `${text}.${key.call}()[${key.key}]`;
    return /^[\p{L}_$][\p{L}\p{N}_$]*$/u.test(key)
      ? `${text}.${key}`
      : `${text}[${JSON.stringify(key)}]`;
  }, 'value');

/**
 * Encodes a value and returns its objects in order. Getters of the value run during this call.
 *
 * @throws TypeError for what cannot be sent, with its path in the value
 * @throws RangeError for what is too large or too deep
 */
export function encodeValue<T extends object>(
  writer: ByteWriter,
  value: unknown,
  objects: TransferableObjects<T>,
): readonly PlacedObject<T>[] {
  writer.limit(MAX_VALUE_BYTE_LENGTH, tooLarge);
  const encoder = new ValueEncoder(writer, objects);
  encoder.write(value);
  return encoder.placed;
}

const tooLarge = (): RangeError =>
  thrownFrom(
    encodeValue,
    new RangeError(
      `the value has more than ${formatBytes(MAX_VALUE_BYTE_LENGTH)}: send large data as a DeviceBuffer, or in parts`,
    ),
  );

const typeCodes = new Map(binaryTypes.map(([name], code) => [name, code]));
const errorCodes = new Map(errorTypes.map(({ name }, code) => [name, code]));
const INT64_LIMIT = 1n << 63n;

class ValueEncoder<T extends object> {
  readonly #to: ByteWriter;
  readonly #objects: TransferableObjects<T>;
  readonly #path: PathStep[] = [];
  /** The container in which each step of the path is. */
  readonly #ancestors: object[] = [];
  #parts = 0;
  #binaries = 0;
  #collections = 0;
  /** The objects found so far. */
  readonly placed: PlacedObject<T>[] = [];

  constructor(to: ByteWriter, objects: TransferableObjects<T>) {
    this.#to = to;
    this.#objects = objects;
  }

  write(value: unknown): void {
    this.#countPart();
    if (typeof value === 'string') this.#writeString(value);
    else if (typeof value === 'number') this.#writeNumber(value);
    else if (value === null) this.#to.uint8(Tag.null);
    else if (typeof value === 'object') this.#writeObject(value);
    else if (typeof value === 'boolean') this.#to.uint8(value ? Tag.true : Tag.false);
    else if (value === undefined) this.#to.uint8(Tag.undefined);
    else if (typeof value === 'bigint') this.#writeBigint(value);
    else
      throw thrownFrom(
        encodeValue,
        new TypeError(`${this.#currentPath} is a ${typeof value}, which cannot be sent`),
      );
  }

  #writeString(text: string): void {
    if (this.#to.ascii(Tag.latin1, text)) return;
    this.#to.uint8(Tag.utf16);
    this.#to.utf16(text);
  }

  #writeNumber(value: number): void {
    if ((value | 0) === value && !Object.is(value, -0)) {
      this.#to.uint8(Tag.int32);
      this.#to.int32(value);
    } else {
      this.#to.uint8(Tag.float64);
      this.#to.float64(value);
    }
  }

  #writeBigint(value: bigint): void {
    if (value >= -INT64_LIMIT && value < INT64_LIMIT) {
      this.#to.uint8(Tag.bigint64);
      this.#to.bigint64(value);
      return;
    }
    const digits = Buffer.from((value < 0n ? -value : value).toString(16), 'latin1');
    if (digits.byteLength > MAX_BIGINT_DIGITS)
      throw thrownFrom(
        encodeValue,
        new RangeError(
          `${this.#currentPath} is a bigint of ${digits.byteLength} hexadecimal digits: at most ${MAX_BIGINT_DIGITS} can be sent`,
        ),
      );
    this.#to.uint8(Tag.bigint);
    this.#to.uint8(value < 0n ? 1 : 0);
    this.#to.length(digits.byteLength);
    this.#to.bytes(digits);
  }

  #writeObject(object: object): void {
    const prototype: unknown = Object.getPrototypeOf(object);
    if (Array.isArray(object)) this.#writeContainer(object, this.#writeArray);
    else if (prototype === Object.prototype || prototype === null)
      this.#writeContainer(object as Readonly<Record<string, unknown>>, this.#writeRecord);
    else if (ArrayBuffer.isView(object) || types.isArrayBuffer(object)) this.#writeBinary(object);
    else if (this.#objects.includes(object)) this.#placeObject(object);
    // The engine's own checks are independent of subclasses, as those of binary data.
    else if (types.isMap(object)) this.#writeContainer(object, this.#writeMap);
    else if (types.isSet(object)) this.#writeContainer(object, this.#writeSet);
    else if (types.isDate(object)) this.#writeDate(object);
    // Only here, as it costs more: most plain objects are of this realm.
    else if (isPlainObject(object))
      this.#writeContainer(object as Readonly<Record<string, unknown>>, this.#writeRecord);
    else if (isError(object)) this.#writeContainer(object, this.#writeError);
    else
      throw thrownFrom(
        encodeValue,
        new TypeError(
          `${this.#currentPath} is ${withArticle(classNameOf(object))}, which cannot be sent: ` +
            this.#objects.alternativeTo(object),
        ),
      );
  }

  /** Writes what may contain other parts. @throws TypeError for a cycle, RangeError for a deep one */
  #writeContainer<C extends object>(container: C, write: (container: C) => void): void {
    const ancestors = this.#ancestors;
    const at = ancestors.indexOf(container);
    if (at >= 0)
      throw thrownFrom(
        encodeValue,
        new TypeError(
          `${this.#currentPath} is a cycle, which cannot be sent: it is ` +
            `${formatPath(this.#path.slice(0, at))} again. Send an id in its place`,
        ),
      );
    this.#checkDepth();
    ancestors.push(container);
    write.call(this, container);
    ancestors.pop();
  }

  #checkDepth(): void {
    if (this.#path.length >= MAX_VALUE_DEPTH)
      throw thrownFrom(
        encodeValue,
        new RangeError(
          `${this.#currentPath.slice(0, 100)} is nested deeper than ${MAX_VALUE_DEPTH} levels`,
        ),
      );
  }

  #writePart(step: PathStep, part: unknown): void {
    this.#path.push(step);
    this.write(part);
    this.#path.pop();
  }

  #writeArray(items: readonly unknown[]): void {
    const { length } = items;
    this.#to.uint8(Tag.array);
    this.#writeItems(items, length);
  }

  #writeItems(items: readonly unknown[], length: number): void {
    this.#to.length(length);
    for (let i = 0; i < length; i++) {
      const item = items[i];
      if (item === undefined && !Object.hasOwn(items, i)) this.#writeHole();
      else this.#writePart(i, item);
    }
  }

  #writeHole(): void {
    this.#countPart();
    this.#to.uint8(Tag.hole);
  }

  #writeRecord(record: Readonly<Record<string, unknown>>): void {
    const keys = Object.keys(record);
    this.#to.uint8(Tag.object);
    this.#to.length(keys.length);
    for (const key of keys) {
      this.#path.push(key);
      if (key === '__proto__')
        throw thrownFrom(
          encodeValue,
          new TypeError(`${this.#currentPath} has a name that cannot be sent`),
        );
      if (key.length > MAX_NAME_LENGTH) this.#refuseLongName(key);
      this.#writeString(key);
      this.write(record[key]);
      this.#path.pop();
    }
  }

  #refuseLongName(name: string): never {
    this.#path.pop();
    throw thrownFrom(
      encodeValue,
      new RangeError(
        `${this.#currentPath} has a name of ${name.length} characters: at most ${MAX_NAME_LENGTH} can be ` +
          'sent. Send a Map',
      ),
    );
  }

  #writeMap(map: ReadonlyMap<unknown, unknown>): void {
    this.#countCollection();
    // A getter in the value may change the Map meanwhile.
    const entries = [...Map.prototype.entries.call(map)];
    this.#to.uint8(Tag.map);
    this.#to.length(entries.length);
    if (entries.length > MAX_UNCOUNTED_KEYS)
      this.#checkCollisions(
        entries.map(([key]) => key),
        'keys',
      );
    for (const [at, [key, value]] of entries.entries()) {
      this.#writePart({ call: 'keys', key: at }, key);
      this.#writePart(stepToEntry(key, at), value);
    }
  }

  #writeSet(set: ReadonlySet<unknown>): void {
    this.#countCollection();
    const members = [...Set.prototype.values.call(set)];
    this.#to.uint8(Tag.set);
    this.#to.length(members.length);
    if (members.length > MAX_UNCOUNTED_KEYS) this.#checkCollisions(members, 'members');
    for (const [at, member] of members.entries())
      this.#writePart({ call: 'values', key: at }, member);
  }

  /** @throws RangeError for keys that the receiver would refuse, as each walks past many others */
  #checkCollisions(keys: readonly unknown[], what: 'keys' | 'members'): void {
    const collisions = new HashCollisions();
    for (const key of keys)
      if (!collisions.add(key))
        throw thrownFrom(
          encodeValue,
          new RangeError(
            `${this.#currentPath} has too many ${what} with the same hash, so the receiver's Map or Set ` +
              'would be very slow: send an array of them, or strings in their place',
          ),
        );
  }

  #writeDate(date: Date): void {
    this.#to.uint8(Tag.date);
    this.#to.float64(Date.prototype.getTime.call(date));
  }

  /** Reads each property once, inherited ones included, as the classes of errors define some. */
  #writeError(error: Error): void {
    this.#countCollection();
    const { name, message, stack, code } = error as Error & { readonly code?: unknown };
    const type = errorCodes.get(name) ?? 0;
    const hasCause = 'cause' in error;
    const texts = [
      { bit: ErrorField.name, text: type === 0 && name !== 'Error' ? name : undefined },
      { bit: ErrorField.message, text: message },
      { bit: ErrorField.stack, text: stack },
      { bit: ErrorField.code, text: code },
    ].filter(({ text }) => typeof text === 'string');
    this.#to.uint8(Tag.error);
    this.#to.uint8(type);
    this.#to.uint8(texts.reduce((bits, { bit }) => bits | bit, hasCause ? ErrorField.cause : 0));
    for (const { text } of texts) this.#writeString(text as string);
    if (type === AGGREGATE_ERROR) this.#writeErrors((error as AggregateError).errors);
    if (hasCause) this.#writePart('cause', error.cause);
  }

  #writeErrors(errors: unknown): void {
    const items: readonly unknown[] = Array.isArray(errors) ? errors : [];
    this.#path.push('errors');
    this.#checkDepth();
    this.#ancestors.push(items);
    this.#writeItems(items, items.length);
    this.#ancestors.pop();
    this.#path.pop();
  }

  #writeBinary(data: ArrayBufferView | ArrayBuffer): void {
    // The engine's own name is independent of subclasses: a Buffer is a Uint8Array.
    const name = typedArrayKind(data) ?? (ArrayBuffer.isView(data) ? 'DataView' : 'ArrayBuffer');
    const code = typeCodes.get(name);
    if (code === undefined)
      throw thrownFrom(
        encodeValue,
        new TypeError(`${this.#currentPath} is a ${name}, which cannot be sent`),
      );
    this.#binaries += 1;
    if (this.#binaries > MAX_VALUE_BINARIES)
      throw thrownFrom(
        encodeValue,
        new RangeError(
          `the value has more than ${MAX_VALUE_BINARIES} typed arrays: send fewer, larger ones`,
        ),
      );
    const bytes = checkHostMemory(data, this.#currentPath);
    this.#to.uint8(Tag.binary);
    this.#to.uint8(code);
    this.#to.length(bytes.byteLength);
    this.#to.bytes(bytes);
  }

  #placeObject(object: T): void {
    if (this.placed.length === MAX_VALUE_OBJECTS)
      throw thrownFrom(
        encodeValue,
        new RangeError(
          `${this.#currentPath} cannot be sent: a value may have at most ${MAX_VALUE_OBJECTS} GPU objects`,
        ),
      );
    this.placed.push({ object, path: this.#path.slice() });
    this.#to.uint8(Tag.gpuObject);
  }

  #countPart(): void {
    this.#parts += 1;
    if (this.#parts > MAX_VALUE_PARTS)
      throw thrownFrom(
        encodeValue,
        new RangeError(
          `the value has more than ${MAX_VALUE_PARTS} parts: send numbers as typed arrays`,
        ),
      );
  }

  #countCollection(): void {
    this.#collections += 1;
    if (this.#collections > MAX_VALUE_COLLECTIONS)
      throw thrownFrom(
        encodeValue,
        new RangeError(
          `the value has more than ${MAX_VALUE_COLLECTIONS} Maps, Sets and errors: send plain objects or arrays`,
        ),
      );
  }

  get #currentPath(): string {
    return formatPath(this.#path);
  }
}

/** The step to a value of a Map. Only a primitive key can be named. */
export const stepToEntry = (key: unknown, at: number): CollectionStep =>
  typeof key === 'object' && key !== null ? { call: 'values', key: at } : { call: 'get', key };
