/** Checks of the caller's arguments, before the driver is called: TypeError and RangeError. */
import { types } from 'node:util';
import { bufferOfView, bytesOfView } from './typed-array.ts';

/** Returns the name of a class, for messages. Run from its source by tsx, a class may be called `_Name`. */
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

/** As {@link checkOptions}, for the names only: no option is read. */
export function checkOptionNames(options: object, known: readonly string[], call: string): void {
  const prototype: unknown =
    typeof options === 'object' && options !== null ? Object.getPrototypeOf(options) : undefined;
  if (prototype !== Object.prototype && prototype !== null)
    throw new TypeError(`${call}: options must be a plain object, not ${formatValue(options)}`);
  for (const name in options) {
    if (!known.includes(name))
      throw new TypeError(
        `${call}: unknown option '${name}'; known: ${known.length > 0 ? known.join(', ') : 'none'}`,
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
      `${name} must be a typed array, DataView, ArrayBuffer or Buffer, not ${formatValue(value)}`,
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

const resizableOf = Object.getOwnPropertyDescriptor(ArrayBuffer.prototype, 'resizable')?.get;

const isResizable = (buffer: ArrayBufferLike): boolean =>
  !(buffer instanceof SharedArrayBuffer) && resizableOf?.call(buffer) === true;
