/** The test vectors of the protocol, as test/protocol/README.md describes them, and cuffi's own reading of them. */
import assert from 'node:assert/strict';
import { createHash } from 'node:crypto';
import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';

export const vectorFolder: string = fileURLToPath(new URL('../protocol/', import.meta.url));

/** An entry of a file. What else it has depends on the file. */
export interface Vector {
  readonly name: string;
  /** What it is of, in files of several kinds. */
  readonly of?: string;
}

/** The names of the files in a folder, in order. */
const vectorFiles = (folder: string): string[] =>
  readdirSync(folder)
    .filter((name) => name.endsWith('.json'))
    .sort();

/** The entries of a file. */
export const readVectors = (folder: string, file: string): readonly Vector[] =>
  JSON.parse(readFileSync(join(folder, file), 'utf8')).vectors;

/** SHA-256 of all files, one after the other. */
export function vectorHash(folder: string): string {
  const hash = createHash('sha256');
  for (const file of vectorFiles(folder)) hash.update(readFileSync(join(folder, file)));
  return hash.digest('hex');
}

/** Bytes as an entry states them. */
export type Bytes =
  | string
  | readonly (string | { readonly repeat: string; readonly times: number })[];

export function bytesOf(bytes: Bytes): Buffer {
  if (typeof bytes === 'string') return Buffer.from(bytes, 'hex');
  return Buffer.concat(
    bytes.map((part) =>
      typeof part === 'string'
        ? Buffer.from(part, 'hex')
        : Buffer.alloc((part.repeat.length / 2) * part.times, part.repeat, 'hex'),
    ),
  );
}

// ---- Values ----

/** Stands for a GPU object of a value. */
export class Place {
  readonly number: number;

  constructor(number: number) {
    this.number = number;
  }
}

type Tagged = Readonly<Record<string, unknown>>;

/** The value that tagged JSON stands for. */
export function toValue(json: unknown): unknown {
  if (typeof json !== 'object' || json === null) return json;
  if (Array.isArray(json)) return arrayOf(json);
  const tagged = json as Tagged;
  const [tag = ''] = Object.keys(tagged);
  const given = tagged[tag];
  switch (tag) {
    case '$undefined':
      return undefined;
    case '$number':
      return Number(given);
    case '$bigint':
      return BigInt(given as string);
    case '$date':
      return new Date((given as number | null) ?? Number.NaN);
    case '$object':
      return new Place(given as number);
    case '$binary': {
      const { buffer } = new Uint8Array(Buffer.from(tagged['hex'] as string, 'hex'));
      const Type = globalThis[given as 'Uint8Array'];
      return given === 'ArrayBuffer' ? buffer : new Type(buffer as ArrayBuffer);
    }
    case '$set':
      return new Set((given as unknown[]).map(toValue));
    case '$map':
      return new Map((given as [unknown, unknown][]).map((entry) => entry.map(toValue) as never));
    case '$error':
      return errorOf(given as Tagged);
    default:
      return Object.fromEntries(Object.entries(tagged).map(([key, item]) => [key, toValue(item)]));
  }
}

const isHole = (json: unknown): boolean =>
  typeof json === 'object' && json !== null && '$hole' in json;

function arrayOf(json: readonly unknown[]): unknown[] {
  const items: unknown[] = [];
  for (const [at, item] of json.entries()) if (!isHole(item)) items[at] = toValue(item);
  items.length = json.length;
  return items;
}

function errorOf({ type, errors, cause, ...texts }: Tagged): Error {
  const Type = globalThis[type as 'Error'];
  const error: Error & { code?: unknown } =
    type === 'AggregateError' ? new AggregateError(arrayOf(errors as unknown[])) : new Type();
  const define = (name: string, value: unknown): void => {
    Object.defineProperty(error, name, { value, writable: true, configurable: true });
  };
  define('stack', undefined);
  for (const [name, text] of Object.entries(texts))
    if (name === 'code') error.code = text;
    else define(name, text);
  if (cause !== undefined) define('cause', toValue(cause));
  return error;
}

/** What a value is, also in what `deepStrictEqual` ignores: each property of errors, and order. */
function described(value: unknown): unknown {
  if (value instanceof Error) {
    const own = Object.getOwnPropertyNames(value).sort();
    const fields = own.map((name) => [name, described(value[name as keyof Error])]);
    return { class: Object.getPrototypeOf(value).constructor.name, fields };
  }
  if (value instanceof Map) return { map: [...value].map((entry) => entry.map(described)) };
  if (value instanceof Set) return { set: [...value].map(described) };
  if (value instanceof Date) return { date: value.getTime() };
  if (value instanceof Place || ArrayBuffer.isView(value)) return value;
  if (Array.isArray(value)) {
    const items = value.map(described);
    return { items, keys: Object.keys(items) };
  }
  if (typeof value !== 'object' || value === null || value instanceof ArrayBuffer) return value;
  return { entries: Object.entries(value).map(([key, item]) => [key, described(item)]) };
}

/** @throws AssertionError unless the values are the same to the last property */
export const assertSameValue = (actual: unknown, expected: unknown): void =>
  assert.deepStrictEqual(described(actual), described(expected));
