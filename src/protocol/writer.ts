/**
 * A plain writer of the protocol, for the test vectors: it follows docs/protocol.md and protocol.json,
 * and shares nothing with src/ipc. Bytes are hexadecimal text.
 */
import { crc32 } from 'node:zlib';
import { type Facts, fieldsOf } from './facts.ts';

/** JSON, and the tags of test/protocol/README.md for what JSON lacks. */
export type Json =
  | null
  | boolean
  | number
  | string
  | readonly Json[]
  | { readonly [name: string]: Json };

/** Bytes as vectors state them: hexadecimal digits, or a list of those and of repetitions. */
export type Bytes =
  | string
  | readonly (string | { readonly repeat: string; readonly times: number })[];

/** A field of a descriptor: text, a number (also one that is not allowed), a list, an object. */
export type Fields = { readonly [name: string]: unknown };

// ---- Numbers and text ----

/** Writes an integer, little-endian. */
export const integer = (value: number | bigint, byteLength: number): string => {
  const digits = BigInt.asUintN(8 * byteLength, BigInt(value)).toString(16);
  return reversed(digits.padStart(2 * byteLength, '0'));
};

const reversed = (hex: string): string => (hex.match(/../g) ?? []).reverse().join('');

export const byte = (value: number): string => integer(value, 1);

/** Writes a number in eight bytes. */
export function number(value: number): string {
  const view = new DataView(new ArrayBuffer(8));
  view.setFloat64(0, value);
  return reversed(view.getBigUint64(0).toString(16).padStart(16, '0'));
}

/** Writes a length: seven bits a byte. */
export function length(value: number): string {
  return value < 128 ? byte(value) : byte((value % 128) + 128) + length(Math.floor(value / 128));
}

export const latin1 = (text: string): string => Buffer.from(text, 'latin1').toString('hex');
const utf8 = (text: string): string => Buffer.from(text, 'utf8').toString('hex');
export const utf16 = (text: string): string => Buffer.from(text, 'utf16le').toString('hex');

/** Writes the table of objects behind a value. */
export const table = (
  first: number,
  entries: readonly { readonly fds: number; readonly link?: boolean; readonly hex: string }[],
): string =>
  number(first) +
  entries
    .map(({ fds, link, hex }) => length(fds) + byte(link ? 1 : 0) + length(hex.length / 2) + hex)
    .join('');

// ---- What follows the facts ----

/** A test vector. Each has a name. */
export type Vector = { readonly name: string } & { readonly [field: string]: unknown };

/** Writes values, control blocks, descriptors and frames. */
export class PlainWriter {
  readonly facts: Facts;
  readonly version: number;
  readonly tag: Readonly<Record<string, number>>;
  readonly frame: Readonly<Record<string, number>>;
  readonly control: Readonly<Record<string, number>>;

  constructor(facts: Facts) {
    this.facts = facts;
    this.version = facts.version.max;
    this.tag = this.members('Tag');
    this.frame = this.members('FrameKind');
    this.control = this.members('ControlField');
  }

  /** The members of an enumeration, by their names. */
  members(name: string): Readonly<Record<string, number>> {
    const found = this.facts.enumerations.find((one) => one.name === name);
    return Object.fromEntries(found?.members.map((one) => [one.name, one.value]) ?? []);
  }

  limit(name: string): number {
    return this.facts.limits.find((one) => one.name === name)?.value as number;
  }

  constant(name: string): number {
    return this.facts.constants.find((one) => one.name === name)?.value as number;
  }

  // ---- Values ----

  /** Writes the tag of a part of a value, then the rest. */
  tagged(name: string, ...rest: readonly string[]): string {
    return byte(this.tag[name] as number) + rest.join('');
  }

  /** Writes a string as Latin-1 if all is ASCII, and else as UTF-16. */
  string(text: string): string {
    const isAscii = [...text].every((character) => character < '\x80');
    return isAscii
      ? this.tagged('latin1', length(text.length), latin1(text))
      : this.tagged('utf16', length(2 * text.length), utf16(text));
  }

  value(json: Json): string {
    if (json === null) return this.tagged('null');
    if (typeof json === 'boolean') return this.tagged(String(json));
    if (typeof json === 'number')
      return Number.isInteger(json) && Math.abs(json + 0.5) < 2 ** 31
        ? this.tagged('int32', integer(json, 4))
        : this.tagged('float64', number(json));
    if (typeof json === 'string') return this.string(json);
    if (Array.isArray(json)) return this.tagged('array', this.#list(json as readonly Json[]));
    return this.#object(json as { readonly [name: string]: Json });
  }

  #list(items: readonly Json[]): string {
    return length(items.length) + items.map((item) => this.value(item)).join('');
  }

  #object(json: { readonly [name: string]: Json }): string {
    const [name] = Object.keys(json);
    switch (name) {
      case '$undefined':
        return this.tagged('undefined');
      case '$hole':
        return this.tagged('hole');
      case '$object':
        return this.tagged('gpuObject');
      case '$number':
        return this.tagged('float64', number(Number(json[name])));
      case '$bigint':
        return this.#bigint(BigInt(json[name] as string));
      case '$date':
        return this.tagged('date', number((json[name] as number | null) ?? Number.NaN));
      case '$binary': {
        const type = this.facts.binaryTypes.findIndex((one) => one.name === json[name]);
        const hex = json['hex'] as string;
        return this.tagged('binary', byte(type), length(hex.length / 2), hex);
      }
      case '$set':
        return this.tagged('set', this.#list(json[name] as readonly Json[]));
      case '$map': {
        const entries = json[name] as readonly (readonly Json[])[];
        return this.tagged(
          'map',
          length(entries.length),
          ...entries.flat().map((one) => this.value(one)),
        );
      }
      case '$error':
        return this.#error(json[name] as { readonly [name: string]: Json });
      default: {
        const entries = Object.entries(json);
        const parts = entries.flatMap(([key, item]) => [this.string(key), this.value(item)]);
        return this.tagged('object', length(entries.length), ...parts);
      }
    }
  }

  #bigint(value: bigint): string {
    if (value === BigInt.asIntN(64, value)) return this.tagged('bigint64', integer(value, 8));
    const digits = (value < 0n ? -value : value).toString(16);
    return this.tagged('bigint', byte(value < 0n ? 1 : 0), length(digits.length), latin1(digits));
  }

  #error(json: { readonly [name: string]: Json }): string {
    const bits = Object.entries(this.members('ErrorField')).filter(([name]) => name in json);
    const texts = bits.filter(([name]) => name !== 'cause');
    return this.tagged(
      'error',
      byte(this.facts.errorTypes.indexOf(json['type'] as string)),
      byte(bits.reduce((sum, [, bit]) => sum + bit, 0)),
      ...texts.map(([name]) => this.string(json[name] as string)),
      'errors' in json ? this.#list(json['errors'] as readonly Json[]) : '',
      'cause' in json ? this.value(json['cause'] as Json) : '',
    );
  }

  // ---- Control blocks ----

  points(points: readonly (readonly [index: number, count: number])[]): string {
    return (
      length(points.length) + points.map(([index, count]) => length(index) + number(count)).join('')
    );
  }

  /** Writes a field of a control block, then the rest. */
  field(name: string, ...rest: readonly string[]): string {
    return byte(this.control[name] as number) + rest.join('');
  }

  // ---- Descriptors ----

  /**
   * Writes the fields of an object, with its kind in front.
   *
   * @param raw the bytes of those that are to be wrong
   */
  object(fields: Fields, raw: Readonly<Record<string, string>> = {}): string {
    const kind = this.facts.kinds.find(({ name }) => name === fields['kind']);
    return byte(kind?.code as number) + this.fields(fields, raw);
  }

  /** As {@link object}, without the kind. */
  fields(fields: Fields, raw: Readonly<Record<string, string>> = {}): string {
    const kind = this.facts.kinds.find(({ name }) => name === fields['kind']);
    if (!kind) throw new Error(`there is no kind ${fields['kind']}`);
    const exporter = this.facts.exporterFields.map(({ name, type }) => [name, type] as const);
    return [...(kind.hasExporter ? exporter : []), ...fieldsOf(kind, this.facts)]
      .map(([name, type]) => raw[name] ?? this.#field(type, fields[name]))
      .join('');
  }

  #field(type: string, value: unknown): string {
    const width = this.facts.numbers.find(({ name }) => name === type);
    if (width) return integer(value as number | bigint, width.byteLength);
    const isHere = value !== undefined && value !== null;
    if (type.endsWith('?') && type !== 'layout?')
      return byte(isHere ? 1 : 0) + (isHere ? this.#field(type.slice(0, -1), value) : '');
    switch (type) {
      case 'access':
        return byte(this.facts.access.indexOf(value as string));
      case 'device': {
        const text = value as string;
        const prefix = this.facts.devicePrefixes.findIndex((one) => text.startsWith(one));
        return byte(prefix) + this.#field('uuid', text.slice(4));
      }
      case 'event':
      case 'virtual':
        return this.fields(value as Fields);
      case 'handle':
        return Buffer.from(value as string, 'base64').toString('hex');
      case 'id':
      case 'uuid':
        return (value as string).replaceAll('-', '');
      case 'layout?':
        return isHere ? this.#layout(value as Layout) : byte(0);
      case 'pieces': {
        const sizes = value as readonly (number | bigint)[];
        return byte(sizes.length) + sizes.map((size) => integer(size, 8)).join('');
      }
      default:
        throw new Error(`there is no type ${type}`);
    }
  }

  #layout({ dtype, shape, strides }: Layout): string {
    return [
      byte(dtype.length),
      latin1(dtype),
      byte(shape.length),
      ...[...shape, ...strides].map((each) => integer(each, 8)),
    ].join('');
  }

  /** The checksum of a descriptor. */
  checksum(fields: string, version: number = this.version): number {
    return crc32(Buffer.from(byte(version) + fields, 'hex'));
  }

  /** Writes the form of a descriptor as bytes that a program passes on. */
  descriptor(
    fields: string,
    version: number = this.version,
    checksum: number = this.checksum(fields, version),
  ): string {
    const magic = this.facts.constants.find(({ name }) => name === 'descriptorMagic')?.value;
    return latin1(magic as string) + byte(version) + integer(checksum, 4) + fields;
  }

  /** Returns the form of a descriptor as JSON. */
  message(fields: Fields): Fields {
    const { readyEvent } = fields as { readonly readyEvent?: Fields };
    return {
      ...fields,
      ...(readyEvent && { readyEvent: this.message(readyEvent) }),
      version: this.version,
      checksum: this.checksum(this.object(fields)),
    };
  }

  // ---- Records ----

  /** Writes the record of a message of a channel, up to its last byte that is not zero. */
  record(record: MessageRecord): string {
    const at = this.members('RecordOffset') as Record<keyof typeof put, number>;
    const bits = this.members('RecordFlag');
    const { skipped, layout, meta = '', metaHex = utf8(meta), ndim, metaByteLength } = record;
    const flags = (skipped ? bits['skipped'] : 0) as number;
    const put = {
      flags: integer(flags + ((layout ? bits['layout'] : 0) as number), 4),
      metaByteLength: integer(metaByteLength ?? metaHex.length / 2, 4),
      ndim: integer(ndim ?? layout?.shape.length ?? 0, 4),
      dtype: latin1(layout?.dtype ?? ''),
      shape: layout?.shape.map((each) => integer(each, 8)).join('') ?? '',
      meta: metaHex,
    };
    const bytes = Buffer.alloc(this.constant('recordByteLength'));
    for (const [name, hex] of Object.entries(put))
      bytes.write(hex, at[name as keyof typeof put], 'hex');
    return bytes.toString('hex').replace(/(00)+$/, '');
  }

  // ---- Frames ----

  /** Writes the header of a frame. What is not given is that of the whole first message of a value. */
  header({
    kind = 'value',
    code = this.frame[kind] as number,
    version = this.version,
    magic = 'cu',
    sequence = 0,
    byteLength,
    offset = 0,
    request = 0,
  }: Header): string {
    return [
      latin1(magic),
      byte(version),
      byte(code),
      ...[sequence, byteLength, offset, request].map((each) => integer(each, 4)),
    ].join('');
  }

  /** Writes the first frame of an end. */
  hello(min: number, max: number, text: string): string {
    return this.wholeFrame(byte(min) + byte(max) + utf8(text), { kind: 'hello', version: max });
  }

  /** Writes a message of one frame. */
  wholeFrame(body: string, header: Omit<Header, 'byteLength'> = {}): string {
    return this.header({ ...header, byteLength: body.length / 2 }) + body;
  }
}

/** What a header may differ in. */
interface Header {
  readonly kind?: string;
  /** The number of the kind. */
  readonly code?: number;
  readonly version?: number;
  readonly magic?: string;
  readonly sequence?: number;
  readonly byteLength: number;
  readonly offset?: number;
  readonly request?: number;
}

/** What the record of a message has. `meta` is JSON as text. The other fields are for wrong ones. */
export interface MessageRecord {
  readonly skipped?: boolean;
  readonly layout?: { readonly dtype: string; readonly shape: readonly (number | bigint)[] };
  readonly meta?: string;
  readonly metaHex?: string;
  readonly metaByteLength?: number;
  readonly ndim?: number;
}

interface Layout {
  readonly dtype: string;
  readonly shape: readonly (number | bigint)[];
  readonly strides: readonly (number | bigint)[];
}
