/** Encodes a value. GPU objects leave a place in it, and are returned, as by `structuredClone`. */

import { typedArrayKind } from '../../typed-array.ts';
import { checkHostMemory, classNameOf, withArticle } from '../../validate.ts';
import type { ByteWriter } from '../bytes.ts';
import {
  MAX_BIGINT_DIGITS,
  MAX_VALUE_BINARIES,
  MAX_VALUE_BYTE_LENGTH,
  MAX_VALUE_DEPTH,
  MAX_VALUE_OBJECTS,
  MAX_VALUE_PARTS,
} from './limits.ts';
import { binaryTypes, Tag } from './value-tags.ts';

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
export type Path = readonly (string | number)[];

/** Writes a path as code does, e.g. `value.model.layers[3]`. */
export const formatPath = (path: Path): string =>
  path.reduce<string>((text, key) => {
    if (typeof key === 'number') return `${text}[${key}]`;
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
  new RangeError(
    `a value may have ${MAX_VALUE_BYTE_LENGTH} bytes, and this one has more: send large data ` +
      'as a DeviceBuffer, or in parts',
  );

const typeCodes = new Map(binaryTypes.map(([name], code) => [name, code]));
const INT64_LIMIT = 1n << 63n;

class ValueEncoder<T extends object> {
  readonly #to: ByteWriter;
  readonly #objects: TransferableObjects<T>;
  readonly #path: (string | number)[] = [];
  #parts = 0;
  #binaries = 0;
  /** The objects found so far. */
  readonly placed: PlacedObject<T>[] = [];

  constructor(to: ByteWriter, objects: TransferableObjects<T>) {
    this.#to = to;
    this.#objects = objects;
  }

  write(value: unknown): void {
    this.#parts += 1;
    if (this.#parts > MAX_VALUE_PARTS)
      throw new RangeError(
        `a value may have ${MAX_VALUE_PARTS} parts, and this one has more: send numbers as typed arrays`,
      );
    if (typeof value === 'string') this.#writeString(value);
    else if (typeof value === 'number') this.#writeNumber(value);
    else if (value === null) this.#to.uint8(Tag.null);
    else if (typeof value === 'object') this.#writeObject(value);
    else if (typeof value === 'boolean') this.#to.uint8(value ? Tag.true : Tag.false);
    else if (value === undefined) this.#to.uint8(Tag.undefined);
    else if (typeof value === 'bigint') this.#writeBigint(value);
    else throw new TypeError(`${this.#currentPath} is a ${typeof value}, which cannot be sent`);
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
      throw new RangeError(
        `${this.#currentPath} is a bigint of ${digits.byteLength} hexadecimal digits: at most ${MAX_BIGINT_DIGITS} can be sent`,
      );
    this.#to.uint8(Tag.bigint);
    this.#to.uint8(value < 0n ? 1 : 0);
    this.#to.length(digits.byteLength);
    this.#to.bytes(digits);
  }

  #writeObject(object: object): void {
    if (this.#path.length >= MAX_VALUE_DEPTH)
      throw new RangeError(
        `${this.#currentPath.slice(0, 100)} is nested deeper than ${MAX_VALUE_DEPTH} levels, or in itself`,
      );
    const prototype: unknown = Object.getPrototypeOf(object);
    if (Array.isArray(object)) this.#writeArray(object);
    else if (prototype === Object.prototype || prototype === null)
      this.#writeRecord(object as Readonly<Record<string, unknown>>);
    else if (ArrayBuffer.isView(object) || object instanceof ArrayBuffer) this.#writeBinary(object);
    else this.#writeTransferable(object);
  }

  #writeArray(items: readonly unknown[]): void {
    const { length } = items;
    this.#to.uint8(Tag.array);
    this.#to.length(length);
    for (let i = 0; i < length; i++) {
      this.#path.push(i);
      this.write(items[i]);
      this.#path.pop();
    }
  }

  #writeRecord(record: Readonly<Record<string, unknown>>): void {
    const keys = Object.keys(record);
    this.#to.uint8(Tag.object);
    this.#to.length(keys.length);
    for (const key of keys) {
      this.#path.push(key);
      if (key === '__proto__')
        throw new TypeError(`${this.#currentPath} has a name that cannot be sent`);
      this.#writeString(key);
      this.write(record[key]);
      this.#path.pop();
    }
  }

  #writeBinary(data: ArrayBufferView | ArrayBuffer): void {
    // The engine's own name is independent of subclasses: a Buffer is a Uint8Array.
    const name = typedArrayKind(data) ?? (ArrayBuffer.isView(data) ? 'DataView' : 'ArrayBuffer');
    const code = typeCodes.get(name);
    if (code === undefined)
      throw new TypeError(`${this.#currentPath} is a ${name}, which cannot be sent`);
    this.#binaries += 1;
    if (this.#binaries > MAX_VALUE_BINARIES)
      throw new RangeError(
        `a value may have ${MAX_VALUE_BINARIES} typed arrays, and this one has more: send fewer, larger ones`,
      );
    const bytes = checkHostMemory(data, this.#currentPath);
    this.#to.uint8(Tag.binary);
    this.#to.uint8(code);
    this.#to.length(bytes.byteLength);
    this.#to.bytes(bytes);
  }

  #writeTransferable(object: object): void {
    if (!this.#objects.includes(object))
      throw new TypeError(
        `${this.#currentPath} is ${withArticle(classNameOf(object))}, which cannot be sent: ` +
          this.#objects.alternativeTo(object),
      );
    if (this.placed.length === MAX_VALUE_OBJECTS)
      throw new RangeError(
        `${this.#currentPath} is one too many: a value may have ${MAX_VALUE_OBJECTS} GPU objects`,
      );
    this.placed.push({ object, path: this.#path.slice() });
    this.#to.uint8(Tag.gpuObject);
  }

  get #currentPath(): string {
    return formatPath(this.#path);
  }
}
