import { IpcError } from '../../errors.ts';
import { openAlias } from '../alias.ts';
import { type IpcDescriptor, parseDescriptor } from '../descriptor.ts';
import { exportIpc, type Shareable } from '../export.ts';
import { isOwn } from '../here.ts';
import type { ScannedValue } from './decode.ts';
import type { Recipient } from './delivery.ts';
import { MAX_QUESTION_BYTE_LENGTH } from './limits.ts';

/** One who asked the other end for what a descriptor names. */
export interface Asker extends Recipient {
  readonly descriptor: IpcDescriptor;
}

/** More than a program asks at a time: a hostile end must not have answers pile up here. */
const MAX_QUESTIONS = 1024;

/** The questions of this end that have no answer yet, by number. */
export class Questions {
  readonly #open = new Map<number, Asker>();
  #next = 0;

  /** Whether there are any. */
  get isEmpty(): boolean {
    return this.#open.size === 0;
  }

  /** Notes a question; answers with its number. @throws IpcError for too many */
  ask(asker: Asker): number {
    if (this.#open.size >= MAX_QUESTIONS)
      throw new IpcError(`${MAX_QUESTIONS} descriptors wait to be confirmed already`);
    const number = this.#next;
    this.#next = (number + 1) | 0;
    this.#open.set(number, asker);
    return number;
  }

  /** The one who asked, once. @throws IpcError for an answer that nobody asked for */
  take(number: number): Asker {
    const asker = this.#open.get(number);
    if (!asker) throw new IpcError('an answer came that nobody asked for');
    this.#open.delete(number);
    return asker;
  }

  /** Nobody answers any more. */
  rejectAll(reason: unknown): void {
    for (const { reject } of this.#open.values()) reject(reason);
    this.#open.clear();
  }
}

/** A question: its number, and the descriptor that it is about. @throws IpcError for anything else */
export function readQuestion(question: ScannedValue): readonly [number: number, about: unknown] {
  if (question.slots.length > 0) throw new IpcError('a question came with GPU objects');
  const [number, about] = pairOf(question, 'a question');
  if (!Number.isInteger(number)) throw malformed('a question');
  return [number as number, about];
}

/**
 * An answer: the number of the question, and the descriptor of the object that it carries, or why
 * there is no object. Nothing is opened.
 *
 * @throws IpcError for anything else
 */
export function readAnswer(
  answer: ScannedValue,
): readonly [number: number, named: IpcDescriptor | IpcError | string] {
  const { slots } = answer;
  const [number, about] = pairOf(answer, 'an answer');
  if (!Number.isInteger(number)) throw malformed('an answer');
  const [slot] = slots;
  if (!slot && typeof about === 'string') return [number as number, about];
  // In its place stands the slot itself.
  if (!slot || slots.length > 1 || about !== slot) throw malformed('an answer');
  return [number as number, slot.descriptor];
}

type Asked = 'a question' | 'an answer';

function pairOf({ contents, slots }: ScannedValue, what: Asked): readonly unknown[] {
  const { byteLength } = contents;
  if (byteLength > MAX_QUESTION_BYTE_LENGTH)
    throw new IpcError(
      `the other end sent ${what} of ${byteLength} bytes: it may have ${MAX_QUESTION_BYTE_LENGTH}`,
    );
  const value = contents.buildAll(slots);
  return Array.isArray(value) && value.length === 2 ? value : [];
}

const malformed = (what: Asked): IpcError =>
  new IpcError(`the other end sent ${what} that is not one`);

/** Fields that say how an object is used, or follow from others: not which object it is. */
const NOT_IDENTITY: ReadonlySet<string> = new Set(['checksum', 'access', 'layout', 'readyEvent']);

/** Where a descriptor names another object than the one asked about; undefined for the same one. */
function differenceFrom(asked: IpcDescriptor, found: IpcDescriptor): string | undefined {
  if (found.kind !== asked.kind) return `its kind is ${found.kind}, not ${asked.kind}`;
  const values = found as unknown as Readonly<Record<string, unknown>>;
  for (const [name, value] of Object.entries(asked)) {
    if (NOT_IDENTITY.has(name)) continue;
    const other = values[name];
    // Lists of numbers as well.
    if (value === other || JSON.stringify(value) === JSON.stringify(other)) continue;
    return typeof value === 'number' && typeof other === 'number'
      ? `its ${name} is ${other}, not ${value}`
      : `its ${name} differs`;
  }
  return undefined;
}

/**
 * What is wrong with the object of an answer: it must be the bytes, the event or the pool that was
 * asked about, and be as large. Less access than was asked about is allowed, and more is not.
 */
export function wrongAnswer(asked: IpcDescriptor, found: IpcDescriptor): string | undefined {
  const difference = differenceFrom(asked, found);
  if (difference || asked.kind === 'event' || found.kind === 'event') return difference;
  // The descriptor that was asked about says how an array lies in the bytes.
  if (found.layout) return 'it is an array, not bytes';
  return asked.access === 'read' && found.access !== 'read'
    ? `its access is ${found.access}, not read`
    : undefined;
}

/**
 * What a descriptor names, if this process made it and it is still the same; or why it is not to be
 * had, in words.
 */
export function confirmed(message: unknown): Shareable | string {
  try {
    const descriptor = parseDescriptor(message);
    if (!isOwn(descriptor)) return 'it was made by another process';
    const object = openAlias(descriptor) as Shareable;
    // A handle alone is no name: the driver may give the same one to what comes after.
    return differenceFrom(descriptor, exportIpc(object).descriptor)
      ? 'what it names is another one now'
      : object;
  } catch (error) {
    return error instanceof Error ? error.message : String(error);
  }
}
