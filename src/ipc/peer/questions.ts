import { IpcError } from '../../errors.ts';
import { openAlias } from '../alias.ts';
import { type IpcDescriptor, parseDescriptor } from '../descriptor.ts';
import { exportIpc, type Shareable } from '../export.ts';
import { isOwn } from '../here.ts';
import type { Recipient } from './delivery.ts';

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
  take(number: unknown): Asker {
    const asker = this.#open.get(number as number);
    if (!asker) throw new IpcError('an answer came that nobody asked for');
    this.#open.delete(number as number);
    return asker;
  }

  /** Nobody answers any more. */
  rejectAll(reason: unknown): void {
    for (const { reject } of this.#open.values()) reject(reason);
    this.#open.clear();
  }
}

/** A question or an answer: its number, and what it is about. @throws IpcError for anything else */
export function numbered(value: unknown): readonly [number: number, about: unknown] {
  if (!Array.isArray(value) || value.length !== 2 || !Number.isInteger(value[0]))
    throw new IpcError('a question, or an answer, is none');
  return value as unknown as readonly [number, unknown];
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
    const {
      layout: _,
      readyEvent: __,
      ...asked
    } = descriptor as IpcDescriptor & {
      layout?: unknown;
      readyEvent?: unknown;
    };
    const now = exportIpc(object).descriptor as unknown as Readonly<Record<string, unknown>>;
    const isSame = Object.entries(asked).every(
      ([name, value]) =>
        name === 'checksum' ||
        name === 'access' ||
        JSON.stringify(now[name]) === JSON.stringify(value),
    );
    return isSame ? object : 'what it names is another one now';
  } catch (error) {
    return error instanceof Error ? error.message : String(error);
  }
}
