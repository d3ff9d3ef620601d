import { CuffiError } from '../../errors.ts';
import { IpcHandle } from '../../memory/manager/ipc-handle.ts';
import { typedArrayKind } from '../../typed-array.ts';
import { checkHostMemory, classNameOf, withArticle } from '../../validate.ts';
import type { ByteWriter } from '../bytes.ts';
import { IpcArrayHandle, IpcMemoryHandle } from '../sharing/handle.ts';
import { isShareable, type Shareable } from '../sharing/kinds.ts';
import {
  type EncodedExport,
  exportForAnyPeer,
  prepareForPeer,
  type SharingSession,
} from '../sharing/marshal.ts';
import { ReadyExport } from '../sharing/ready.ts';
import {
  MAX_BIGINT_DIGITS,
  MAX_VALUE_BINARIES,
  MAX_VALUE_BYTE_LENGTH,
  MAX_VALUE_DEPTH,
  MAX_VALUE_FDS,
  MAX_VALUE_OBJECTS,
  MAX_VALUE_PARTS,
} from '../wire/limits.ts';
import { binaryTypes, Tag } from '../wire/value-tags.ts';

const SENDABLE_TYPES =
  'only plain objects, arrays, binary data, device arrays, buffers, pools and events are';

/** Returns what to send instead of an object that cannot be sent. */
function alternativeFor(object: object): string {
  if (object instanceof Promise) return 'await it first';
  if (object instanceof IpcMemoryHandle)
    return (
      `send the ${object instanceof IpcArrayHandle ? 'array' : 'buffer'} itself, or toJSON() of ` +
      'this as data, which peer.open() opens there'
    );
  if (object instanceof ReadyExport) return 'send the memory itself, with { stream }';
  return object instanceof IpcHandle ? 'send the buffer itself' : SENDABLE_TYPES;
}

/** What is sent together with an encoded value. */
export interface Encoded {
  /** They remain the objects' own. */
  readonly fds: readonly number[];
  /** The GPU objects in the value, in order. */
  readonly objects: readonly Shareable[];
}

/**
 * Encodes a value, and calls `use` with what is sent together with it.
 *
 * @throws TypeError for what cannot be sent, with its path in the value
 * @throws RangeError for what is too large or too deep
 * @throws IpcError for GPU objects that cannot be shared
 */
export function encodeValue<T>(
  writer: ByteWriter,
  value: unknown,
  session: SharingSession,
  use: (encoded: Encoded) => T,
): T {
  writer.limit(
    MAX_VALUE_BYTE_LENGTH,
    () =>
      new RangeError(
        `a value may have ${MAX_VALUE_BYTE_LENGTH} bytes, and this one has more: send large data ` +
          'as a DeviceBuffer, or in parts',
      ),
  );
  const encoder = new ValueEncoder(writer);
  // Getters of the value and memory managers run during this call. They may send on this connection
  // too, and what they send goes out first.
  encoder.write(value);
  const sentBefore = session.sentPools.size;
  try {
    return use(encoder.finish(session));
  } catch (error) {
    // What was exported before the failure is never sent.
    for (const [pool, unsubscribe] of [...session.sentPools].slice(sentBefore)) {
      unsubscribe();
      session.sentPools.delete(pool);
    }
    throw error;
  }
}

const typeCodes = new Map(binaryTypes.map(([name], code) => [name, code]));
const INT64_LIMIT = 1n << 63n;

class ValueEncoder {
  readonly #to: ByteWriter;
  readonly #path: (string | number)[] = [];
  #parts = 0;
  #binaries = 0;
  readonly #objects: Shareable[] = [];
  /** The exported objects, as if none had been sent before. */
  readonly #exported: EncodedExport[] = [];
  /** The offset of each object's file descriptor count. */
  readonly #fdCountOffsets: number[] = [];

  constructor(to: ByteWriter) {
    this.#to = to;
  }

  /**
   * Returns what is sent together with the value. The peer may already have the pools of some
   * objects, so nothing else may be sent between this call and the value.
   */
  finish(session: SharingSession): Encoded {
    const objects = this.#objects;
    const all: number[] = [];
    for (let at = 0; at < objects.length; at += 1) {
      const packed = this.#exported[at] as EncodedExport;
      const { fds } = prepareForPeer(session, objects[at] as Shareable, packed);
      // Both counts take one byte: a pool has one descriptor, or none if the peer has it.
      if (fds.length !== packed.fds.length)
        this.#to.rewrite(this.#fdCountOffsets[at] as number, fds.length);
      for (const fd of fds) all.push(fd);
    }
    if (all.length > MAX_VALUE_FDS)
      throw new RangeError(
        `the value has ${all.length} file descriptors for its GPU objects: it may have ${MAX_VALUE_FDS}`,
      );
    return { fds: all, objects };
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
    else this.#writeGpuObject(object);
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

  #writeGpuObject(object: object): void {
    if (!isShareable(object))
      throw new TypeError(
        `${this.#currentPath} is ${withArticle(classNameOf(object))}, which cannot be sent: ` +
          alternativeFor(object),
      );
    if (this.#objects.length === MAX_VALUE_OBJECTS)
      throw new RangeError(
        `${this.#currentPath} is one too many: a value may have ${MAX_VALUE_OBJECTS} GPU objects`,
      );
    const packed = this.#export(object);
    this.#objects.push(object);
    this.#exported.push(packed);
    this.#to.uint8(Tag.gpuObject);
    this.#fdCountOffsets.push(this.#to.offset);
    this.#to.length(packed.fds.length);
    this.#to.length(packed.bytes.byteLength);
    this.#to.bytes(packed.bytes);
  }

  #export(object: Shareable): EncodedExport {
    try {
      return exportForAnyPeer(object);
    } catch (error) {
      if (error instanceof CuffiError) error.message = `${this.#currentPath}: ${error.message}`;
      throw error;
    }
  }

  /** The path of the current part in the value, e.g. `value.model.layers[3]`. */
  get #currentPath(): string {
    return this.#path.reduce<string>((path, key) => {
      if (typeof key === 'number') return `${path}[${key}]`;
      return /^[\p{L}_$][\p{L}\p{N}_$]*$/u.test(key)
        ? `${path}.${key}`
        : `${path}[${JSON.stringify(key)}]`;
    }, 'value');
  }
}
