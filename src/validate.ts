/** Checks of the caller's arguments, before the driver is called: TypeError and RangeError. */
import { types } from 'node:util';
import { bufferOfView, bytesOfView, typedArrayKind } from './typed-array.ts';

/** Returns the name of a class, for messages. Bundlers call a class that refers to itself `_Name`. */
export function className(type: unknown): string {
  const name: unknown = typeof type === 'function' ? type.name : undefined;
  return typeof name === 'string' && name !== '' ? name.replace(/^_/, '').slice(0, 60) : 'object';
}

/** Returns the name of an object's class, for messages. Never throws, whatever the object's properties. */
export function classNameOf(object: object): string {
  try {
    return className(object.constructor);
  } catch {
    return 'object';
  }
}

/** Returns a class's name with its article, for messages. */
export const withArticle = (name: string): string =>
  `${/^[AEIOo]/.test(name) ? 'an' : 'a'} ${name}`;

/** A class with instances of T. Not a constructor type: most classes here have private constructors. */
// biome-ignore lint/complexity/noBannedTypes: what instanceof takes
export type ClassOf<T> = Function & { readonly prototype: T };

/** Describes a value in a few words, for messages. */
export const formatValue = (value: unknown): string => {
  if (typeof value === 'string') return JSON.stringify(value.slice(0, 60));
  if (typeof value === 'object' && value !== null) return withArticle(classNameOf(value));
  if (typeof value === 'function') return 'a function';
  return typeof value === 'bigint' ? `${value}n` : String(value);
};

/**
 * Whether a value is a plain object: of `{}`, `Object.create(null)` or JSON, in this realm or another
 * one. A vm context has a realm of its own, and so have the tests of Jest; `instanceof` and the
 * prototypes of this realm do not know its objects.
 */
export function isPlainObject(value: unknown): value is object {
  if (typeof value !== 'object' || value === null) return false;
  const prototype: object | null = Object.getPrototypeOf(value);
  return (
    prototype === Object.prototype ||
    prototype === null ||
    isBuiltinPrototype(prototype, objectSource)
  );
}

/** Whether a value is an error, of this realm or another one. */
export function isError(value: unknown): value is Error {
  if (types.isNativeError(value) || value instanceof Error) return true;
  if (typeof value !== 'object' || value === null) return false;
  // A DOMException of another realm inherits from the prototype of that realm's errors.
  for (let each = Object.getPrototypeOf(value); each !== null; each = Object.getPrototypeOf(each))
    if (isBuiltinPrototype(each, errorSource)) return true;
  return false;
}

/** Returns the message of an error, or anything else that was thrown as text. */
export const messageOf = (thrown: unknown): string =>
  isError(thrown) ? thrown.message : String(thrown);

const objectSource = /^function Object\(\)\s*\{\s*\[native code\]\s*\}$/;
const errorSource = /^function Error\(\)\s*\{\s*\[native code\]\s*\}$/;

/** Whether it is the prototype of a realm's own constructor: only that one has native source with its name. */
function isBuiltinPrototype(prototype: object, source: RegExp): boolean {
  const builtin: unknown = Object.getOwnPropertyDescriptor(prototype, 'constructor')?.value;
  return (
    typeof builtin === 'function' &&
    source.test(Function.prototype.toString.call(builtin)) &&
    builtin.prototype === prototype
  );
}

/**
 * Returns a copy of the options of a call, or `{}`. Each option is read once: a getter that returns another
 * value the second time, and changes during the call, have no effect.
 *
 * @throws TypeError for anything but a plain options object, and for an option not in `known`
 */
export function checkOptions<T extends object>(
  options: T | undefined,
  known: readonly (keyof T & string)[],
  call: string,
): Partial<T> {
  if (options === undefined) return {};
  checkOptionNames(options, known, call);
  const copy: Partial<T> = {};
  for (const name of known) {
    const value = options[name];
    if (value !== undefined) copy[name] = value;
  }
  return copy;
}

/** Returns ` (did you mean 'nonBlocking'?)` if one of the names is near the one that was given. */
export function didYouMean(given: string, known: readonly string[]): string {
  const found = nearest(given, known);
  return found === undefined ? '' : ` (did you mean '${found}'?)`;
}

/** Returns the name that differs the least, if it differs by little. */
function nearest(given: string, known: readonly string[]): string | undefined {
  const wanted = given.toLowerCase();
  const distances = known.map((name) => {
    const other = name.toLowerCase();
    const isPart = wanted.length > 2 && (other.startsWith(wanted) || wanted.startsWith(other));
    return { name, distance: isPart ? 0.5 : editDistance(wanted, other) };
  });
  const [best] = distances.sort((a, b) => a.distance - b.distance);
  return best && best.distance <= Math.max(1, given.length / 4) ? best.name : undefined;
}

/** How many characters must be inserted, removed or replaced to make one of the other. */
function editDistance(a: string, b: string): number {
  let row = Array.from({ length: b.length + 1 }, (_, at) => at);
  for (const [i, char] of [...a].entries()) {
    const next = [i + 1];
    for (let j = 0; j < b.length; j++)
      next.push(
        Math.min(
          (row[j + 1] as number) + 1,
          (next[j] as number) + 1,
          (row[j] as number) + (char === b[j] ? 0 : 1),
        ),
      );
    row = next;
  }
  return row[b.length] as number;
}

/** As {@link checkOptions}, for the names only: no option is read. */
export function checkOptionNames(options: object, known: readonly string[], call: string): void {
  if (!isPlainObject(options))
    throw new TypeError(`${call}: options must be a plain object, not ${formatValue(options)}`);
  for (const name in options) {
    if (!known.includes(name))
      throw new TypeError(
        `${call}: unknown option '${name}'${didYouMean(name, known)}; ` +
          `known: ${known.length > 0 ? known.join(', ') : 'none'}`,
      );
  }
}

/** @throws TypeError unless a number, RangeError unless an integer in `min`..`max` */
export function checkInteger(
  value: unknown,
  name: string,
  min = 0,
  max = Number.MAX_SAFE_INTEGER,
): number {
  if (typeof value !== 'number')
    throw new TypeError(`${name} must be a number, not ${formatValue(value)}`);
  if (!Number.isSafeInteger(value) || value < min || value > max)
    throw new RangeError(
      `${name} must be an integer ${max === Number.MAX_SAFE_INTEGER ? `of at least ${min}` : `from ${min} to ${max}`}, not ${value}`,
    );
  return value;
}

/** @throws TypeError unless a boolean or undefined */
export function checkBoolean(value: unknown, name: string, fallback: boolean): boolean {
  if (value === undefined) return fallback;
  if (typeof value !== 'boolean')
    throw new TypeError(`${name} must be true or false, not ${formatValue(value)}`);
  return value;
}

/** @throws TypeError unless it is a string without a NUL character, where C would end it */
export function checkString(value: unknown, name: string): string {
  if (typeof value !== 'string')
    throw new TypeError(`${name} must be a string, not ${formatValue(value)}`);
  if (value.includes('\0')) throw new TypeError(`${name} contains a NUL character`);
  return value;
}

/** @throws TypeError unless an array of strings, as {@link checkString} */
export function checkStrings(values: unknown, name: string): readonly string[] {
  if (!Array.isArray(values))
    throw new TypeError(`${name} must be an array of strings, not ${formatValue(values)}`);
  return Array.from(values, (value, n) => checkString(value, `${name}[${n}]`));
}

/** @throws TypeError unless `value` is an instance of `type` */
export function checkInstance<T>(value: unknown, type: ClassOf<T>, name: string): T {
  if (!(value instanceof type))
    throw new TypeError(
      `${name} must be ${withArticle(className(type))}, not ${formatValue(value)}`,
    );
  return value as T;
}

/** @throws TypeError unless a Uint8Array, such as a Buffer, of any realm */
export function checkUint8Array(value: unknown, name: string): Uint8Array {
  if (typedArrayKind(value) !== 'Uint8Array')
    throw new TypeError(`${name} must be a Uint8Array, not ${formatValue(value)}`);
  return value as Uint8Array;
}

/**
 * For constructors that only cuffi itself calls.
 *
 * @throws TypeError unless `part`, which cuffi passes, is an instance of `type`
 */
export function assertInternal<T>(
  part: unknown,
  type: ClassOf<T>,
  kind: string,
  how: string,
): void {
  if (!(part instanceof type))
    throw new TypeError(`${withArticle(kind)} cannot be created with new: use ${how}`);
}

/** Host memory that a copy reads or writes. */
export type HostMemory = ArrayBufferView | ArrayBufferLike;

/**
 * Returns host memory as bytes, without copying.
 *
 * @throws TypeError for anything but a typed array, DataView, ArrayBuffer or SharedArrayBuffer, and if
 * the buffer is resizable or detached
 */
export function checkHostMemory(value: unknown, name: string): Uint8Array {
  const isView = ArrayBuffer.isView(value);
  if (!isView && !types.isAnyArrayBuffer(value))
    throw new TypeError(
      `${name} must be a typed array, DataView, ArrayBuffer or Buffer, not ${formatHostValue(value)}`,
    );
  const buffer = isView ? bufferOfView(value) : value;
  if (isResizable(buffer))
    throw new TypeError(`${name} is resizable: its memory may move during the copy`);
  try {
    return isView ? bytesOfView(value) : new Uint8Array(buffer);
  } catch (error) {
    throw new TypeError(`${name} is detached: its memory was transferred to another owner`, {
      cause: error,
    });
  }
}

/** As {@link formatValue}, with what to do about common mistakes. */
export function formatHostValue(value: unknown): string {
  if (Array.isArray(value))
    return 'an Array: put numbers into one, such as Float32Array.from(numbers)';
  return isTypedArrayClass(value)
    ? `the class ${value.name}: pass an instance, new ${value.name}(length)`
    : formatValue(value);
}

const isTypedArrayClass = (value: unknown): value is { readonly name: string } =>
  typeof value === 'function' &&
  typedArrayKind(value.prototype) === undefined &&
  'BYTES_PER_ELEMENT' in value;

const KIB = 1024;

/** Writes a number of bytes, for messages: `65536 bytes (64 KiB)`. */
export function formatBytes(byteLength: number): string {
  const units = ['KiB', 'MiB', 'GiB', 'TiB'];
  let size = byteLength;
  let unit = '';
  while (Math.abs(size) >= KIB && units.length > 0) {
    size /= KIB;
    unit = units.shift() as string;
  }
  const exact = `${byteLength} ${byteLength === 1 ? 'byte' : 'bytes'}`;
  return unit === '' ? exact : `${exact} (${Number(size.toPrecision(4))} ${unit})`;
}

const resizableOf = Object.getOwnPropertyDescriptor(ArrayBuffer.prototype, 'resizable')?.get;

const isResizable = (buffer: ArrayBufferLike): boolean =>
  types.isArrayBuffer(buffer) && resizableOf?.call(buffer) === true;
