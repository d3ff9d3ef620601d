import { discardFds } from '../../../ffi/linux/close-fd.ts';
import { type ClosedError, IpcError } from '../../errors.ts';
import { type IpcDescriptor, parseDescriptor } from '../descriptor.ts';
import { isOwn } from '../identity.ts';
import { openAlias } from '../sharing/alias.ts';
import { asArray } from '../sharing/array.ts';
import { exportIpc, type Shareable } from '../sharing/export.ts';
import { PacketKind } from '../wire/frames.ts';
import { MAX_QUESTION_BYTE_LENGTH } from '../wire/limits.ts';
import type { ScannedValue } from '../wire/value-decoder.ts';
import type { Session } from './peer-state.ts';
import {
  closeObjects,
  type Delivery,
  openArrival,
  type ReceivedValue,
  type Recipient,
} from './receive.ts';
import type { Sending } from './send.ts';

/** What the two ends ask each other: whether what a descriptor names is still there. */
export class Enquiry {
  readonly #other: string;
  readonly #session: Session;
  readonly #sending: Sending;
  readonly #delivery: Delivery;
  readonly #questions = new Questions();
  /** Of each answer that came, and that the host must wait with: gives it back, as of the end. */
  readonly #heldUp = new Set<() => void>();
  #end: ClosedError | IpcError | undefined;

  /** @param other who is at the other end, in words */
  constructor(other: string, session: Session, sending: Sending, delivery: Delivery) {
    this.#other = other;
    this.#session = session;
    this.#sending = sending;
    this.#delivery = delivery;
  }

  /** Whether someone waits for an answer. */
  get isAwaited(): boolean {
    return !this.#questions.isEmpty;
  }

  /**
   * Asks the other end for what a descriptor of it names.
   *
   * @throws IpcError for too many at a time; as {@link Sending.post}
   */
  ask(asker: Asker): void {
    const number = this.#questions.ask(asker);
    try {
      const question = [number, { ...asker.descriptor }];
      this.#sending.post(question, undefined, PacketKind.question)?.catch(() => {});
    } catch (error) {
      this.#questions.take(number);
      throw error;
    }
  }

  /** Answers a question: by what the descriptor names, or by why it is not to be had. */
  answer(scanned: ScannedValue, fds: readonly number[]): void {
    discardFds(fds);
    const [number, message] = readQuestion(scanned);
    const named = confirmed(message);
    // Where too much waits, as the other end does not read, it ends by this.
    this.#sending.post([number, named], undefined, PacketKind.answer)?.catch(() => {});
  }

  /**
   * Gives an answer to the one who asked.
   *
   * @throws IpcError for anything but an answer to a question; then who asked waits for the end
   */
  answered(scanned: ScannedValue, fds: readonly number[]): void {
    let asker: Asker;
    let named: ReturnType<typeof readAnswer>[1];
    try {
      const [number, about] = readAnswer(scanned);
      named = about;
      asker = this.#questions.take(number);
    } catch (error) {
      discardFds(fds);
      throw error;
    }
    const arrival = openArrival(scanned, fds, this.#session, this.#refusal(asker, named));
    if ('error' in arrival) asker.reject(arrival.error);
    else this.#give(arrival, asker);
  }

  /** Why an answer is not opened; what the other end says is not believed. */
  #refusal({ descriptor }: Asker, named: IpcDescriptor | IpcError | string): IpcError | undefined {
    if (named instanceof IpcError) return undefined;
    if (typeof named === 'string')
      return new IpcError(
        `${this.#other} does not confirm this descriptor: ${readable(named)}`,
        undefined,
        'exporter-gone',
      );
    const difference = wrongAnswer(descriptor, named);
    return difference
      ? new IpcError(
          `${this.#other} answered with another object than the one that the descriptor names: ` +
            `${difference}. It was not opened: do not trust this process, or have it send the ` +
            'object itself',
        )
      : undefined;
  }

  #give(arrival: ReceivedValue, asker: Asker): void {
    let received: ReceivedValue;
    try {
      const value = asArray(arrival.objects[0], asker.descriptor);
      received = { ...arrival, contents: { value, build: () => true } };
    } catch (error) {
      closeObjects(arrival.objects);
      asker.reject(error);
      return;
    }
    const giveUp = (): void => {
      closeObjects(received.objects);
      asker.reject(this.#end);
    };
    const isGiven = this.#delivery.give(received, asker, () => {
      if (this.#heldUp.delete(giveUp)) this.#delivery.give(received, asker);
    });
    if (!isGiven) this.#heldUp.add(giveUp);
  }

  /** Nobody answers any more. */
  end(reason: ClosedError | IpcError): void {
    this.#end ??= reason;
    this.#questions.rejectAll(reason);
    const heldUp = [...this.#heldUp];
    this.#heldUp.clear();
    for (const giveUp of heldUp) giveUp();
  }
}

/** Text of another process that goes into an error: short, and without control characters. */
const readable = (text: string): string => text.slice(0, 500).replace(/\p{Cc}+/gu, ' ');

/** One who asked the other end for what a descriptor names. */
export interface Asker extends Recipient {
  readonly descriptor: IpcDescriptor;
}

/** More than a program asks at a time: a hostile end must not have answers pile up here. */
const MAX_QUESTIONS = 1024;

/** The questions of this end that have no answer yet, by number. */
class Questions {
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
function readQuestion(question: ScannedValue): readonly [number: number, about: unknown] {
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
function readAnswer(
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
function wrongAnswer(asked: IpcDescriptor, found: IpcDescriptor): string | undefined {
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
function confirmed(message: unknown): Shareable | string {
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
