/** What the types of binary data and the classes of errors of the protocol are in JavaScript. */
import { binaryTypeFacts, errorTypeNames } from '../protocol.ts';

type BinaryType = new (buffer: ArrayBuffer) => ArrayBufferView;

/** The types of binary data, by their number. Undefined is the ArrayBuffer itself. */
export const binaryTypes: readonly (readonly [name: string, type: BinaryType | undefined])[] =
  binaryTypeFacts.map(([name]) => [name, name === 'ArrayBuffer' ? undefined : globalThis[name]]);

/** The classes that an error arrives as, by their number. AggregateError is made without arguments, too. */
export const errorTypes: readonly ErrorConstructor[] = errorTypeNames.map(
  (name) => globalThis[name] as unknown as ErrorConstructor,
);
export const AGGREGATE_ERROR: number = errorTypeNames.indexOf('AggregateError');
