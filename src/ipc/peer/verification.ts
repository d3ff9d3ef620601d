import { discardFds } from '../../../ffi/linux/close-fd.ts';
import { type ClosedError, IpcError, type PeerGoneError } from '../../errors.ts';
import type { IpcDescriptor } from '../descriptor.ts';
import { parseDescriptor } from '../descriptor-codec.ts';
import { isFromThisProcess } from '../identity.ts';
import type { Shareable } from '../shareable.ts';
import { openAlias } from '../sharing/alias.ts';
import { asArray } from '../sharing/array.ts';
import { exportIpc } from '../sharing/export.ts';
import { FrameKind } from '../wire/frames.ts';
import { MAX_REQUEST_BYTE_LENGTH } from '../wire/limits.ts';
import type { ScannedValue } from '../wire/value-decoder.ts';
import type { PeerState } from './peer-state.ts';
import {
  closeObjects,
  openArrival,
  type ReceivedValue,
  type Recipient,
  type ValueReceiver,
} from './receive.ts';
import type { ValueSender } from './send.ts';

/** What the two ends ask each other: whether what a descriptor names is still there. */
export class DescriptorVerifier {
  readonly #peerName: string;
  readonly #state: PeerState;
  readonly #sender: ValueSender;
  readonly #receiver: ValueReceiver;
  readonly #pending = new PendingRequests();
  /** Of each answer that came, and that the host must wait with: gives it back, as of the end. */
  readonly #waiting = new Set<() => void>();
  #end: ClosedError | PeerGoneError | IpcError | undefined;

  /** @param peerName who is at the other end, in words */
  constructor(peerName: string, state: PeerState, sender: ValueSender, receiver: ValueReceiver) {
    this.#peerName = peerName;
    this.#state = state;
    this.#sender = sender;
    this.#receiver = receiver;
  }

  /** Whether someone waits for an answer. */
  get isAwaited(): boolean {
    return !this.#pending.isEmpty;
  }

  /**
   * Asks the other end for what a descriptor of it names.
   *
   * @throws IpcError for too many at a time; as {@link ValueSender.send}
   */
  request(request: VerificationRequest): void {
    const number = this.#pending.add(request);
    try {
      const question = [number, { ...request.descriptor }];
      this.#sender.send(question, undefined, FrameKind.question)?.catch(() => {});
    } catch (error) {
      this.#pending.take(number);
      throw error;
    }
  }

  /** Answers a question: by what the descriptor names, or by why it is not to be had. */
  respond(scanned: ScannedValue, fds: readonly number[]): void {
    discardFds(fds);
    const [number, message] = parseRequest(scanned);
    const named = verifyExport(message);
    // Where too much waits, as the other end does not read, it ends by this.
    this.#sender.send([number, named], undefined, FrameKind.answer)?.catch(() => {});
  }

  /**
   * Gives an answer to the one who asked.
   *
   * @throws IpcError for anything but an answer to a question; then who asked waits for the end
   */
  receiveResponse(scanned: ScannedValue, fds: readonly number[]): void {
    let request: VerificationRequest;
    let named: ReturnType<typeof parseResponse>[1];
    try {
      const [number, about] = parseResponse(scanned);
      named = about;
      request = this.#pending.take(number);
    } catch (error) {
      discardFds(fds);
      throw error;
    }
    const arrival = openArrival(scanned, fds, this.#state, this.#refusal(request, named));
    if ('error' in arrival) request.reject(arrival.error);
    else this.#deliver(arrival, request);
  }

  /** Why an answer is not opened; what the other end says is not believed. */
  #refusal(
    { descriptor }: VerificationRequest,
    named: IpcDescriptor | IpcError | string,
  ): IpcError | undefined {
    if (named instanceof IpcError) return undefined;
    if (typeof named === 'string')
      return new IpcError(
        `${this.#peerName} does not confirm this descriptor: ${sanitize(named)}`,
        undefined,
        'exporter-gone',
      );
    const difference = mismatch(descriptor, named);
    return difference
      ? new IpcError(
          `${this.#peerName} answered with another object than the one that the descriptor names: ` +
            `${difference}. It was not opened: do not trust this process, or have it send the ` +
            'object itself',
        )
      : undefined;
  }

  #deliver(arrival: ReceivedValue, request: VerificationRequest): void {
    let received: ReceivedValue;
    try {
      const value = asArray(arrival.objects[0], request.descriptor);
      received = { ...arrival, contents: { value, build: () => true } };
    } catch (error) {
      closeObjects(arrival.objects);
      request.reject(error);
      return;
    }
    const cancel = (): void => {
      closeObjects(received.objects);
      request.reject(this.#end);
    };
    const isGiven = this.#receiver.deliver(received, request, () => {
      if (this.#waiting.delete(cancel)) this.#receiver.deliver(received, request);
    });
    if (!isGiven) this.#waiting.add(cancel);
  }

  /** Nobody answers any more. */
  end(reason: ClosedError | PeerGoneError | IpcError): void {
    this.#end ??= reason;
    this.#pending.rejectAll(reason);
    const heldUp = [...this.#waiting];
    this.#waiting.clear();
    for (const giveUp of heldUp) giveUp();
  }
}

/** Text of another process that goes into an error: short, and without control characters. */
const sanitize = (text: string): string => text.slice(0, 500).replace(/\p{Cc}+/gu, ' ');

/** One who asked the other end for what a descriptor names. */
export interface VerificationRequest extends Recipient {
  readonly descriptor: IpcDescriptor;
}

/** More than a program asks at a time: a hostile end must not have answers pile up here. */
const MAX_PENDING_REQUESTS = 1024;

/** The questions of this end that have no answer yet, by number. */
class PendingRequests {
  readonly #requests = new Map<number, VerificationRequest>();
  #next = 0;

  /** Whether there are any. */
  get isEmpty(): boolean {
    return this.#requests.size === 0;
  }

  /** Notes a question; answers with its number. @throws IpcError for too many */
  add(request: VerificationRequest): number {
    if (this.#requests.size >= MAX_PENDING_REQUESTS)
      throw new IpcError(`${MAX_PENDING_REQUESTS} descriptors wait to be confirmed already`);
    const number = this.#next;
    this.#next = (number + 1) | 0;
    this.#requests.set(number, request);
    return number;
  }

  /** The one who asked, once. @throws IpcError for an answer that nobody asked for */
  take(number: number): VerificationRequest {
    const request = this.#requests.get(number);
    if (!request) throw new IpcError('an answer came that nobody asked for');
    this.#requests.delete(number);
    return request;
  }

  /** Nobody answers any more. */
  rejectAll(reason: unknown): void {
    for (const { reject } of this.#requests.values()) reject(reason);
    this.#requests.clear();
  }
}

/** A question: its number, and the descriptor that it is about. @throws IpcError for anything else */
function parseRequest(question: ScannedValue): readonly [number: number, about: unknown] {
  if (question.encodedObjects.length > 0) throw new IpcError('a question came with GPU objects');
  const [number, about] = parsePair(question, 'a question');
  if (!Number.isInteger(number)) throw malformedError('a question');
  return [number as number, about];
}

/**
 * An answer: the number of the question, and the descriptor of the object that it carries, or why
 * there is no object. Nothing is opened.
 *
 * @throws IpcError for anything else
 */
function parseResponse(
  answer: ScannedValue,
): readonly [number: number, named: IpcDescriptor | IpcError | string] {
  const { encodedObjects } = answer;
  const [number, about] = parsePair(answer, 'an answer');
  if (!Number.isInteger(number)) throw malformedError('an answer');
  const [slot] = encodedObjects;
  if (!slot && typeof about === 'string') return [number as number, about];
  // In its place stands the slot itself.
  if (!slot || encodedObjects.length > 1 || about !== slot) throw malformedError('an answer');
  return [number as number, slot.descriptor];
}

type MessageName = 'a question' | 'an answer';

function parsePair(
  { contents, encodedObjects }: ScannedValue,
  what: MessageName,
): readonly unknown[] {
  const { byteLength } = contents;
  if (byteLength > MAX_REQUEST_BYTE_LENGTH)
    throw new IpcError(
      `the other end sent ${what} of ${byteLength} bytes: it may have ${MAX_REQUEST_BYTE_LENGTH}`,
    );
  const value = contents.buildAll(encodedObjects);
  return Array.isArray(value) && value.length === 2 ? value : [];
}

const malformedError = (what: MessageName): IpcError =>
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
function mismatch(asked: IpcDescriptor, found: IpcDescriptor): string | undefined {
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
function verifyExport(message: unknown): Shareable | string {
  try {
    const descriptor = parseDescriptor(message);
    if (!isFromThisProcess(descriptor)) return 'it was made by another process';
    const object = openAlias(descriptor) as Shareable;
    // A handle alone is no name: the driver may give the same one to what comes after.
    return differenceFrom(descriptor, exportIpc(object).descriptor)
      ? 'what it names is another one now'
      : object;
  } catch (error) {
    return error instanceof Error ? error.message : String(error);
  }
}
