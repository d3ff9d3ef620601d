import { discardFds } from '../../../ffi/linux/close-fd.ts';
import { type ClosedError, IpcError, type PeerGoneError } from '../../errors.ts';
import type { DescriptorFields, IpcDescriptor } from '../descriptor.ts';
import { parseDescriptor } from '../descriptor-codec.ts';
import { isFromThisProcess } from '../identity.ts';
import { openAlias } from '../sharing/alias.ts';
import { asArray } from '../sharing/array.ts';
import { exportIpc } from '../sharing/export.ts';
import type { Shareable } from '../sharing/kinds.ts';
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

/** Verifies with the peer that the object of a descriptor still exists. */
export class DescriptorVerifier {
  readonly #peerName: string;
  readonly #state: PeerState;
  readonly #sender: ValueSender;
  readonly #receiver: ValueReceiver;
  readonly #pending = new PendingRequests();
  /** For each response that the host must wait with, a function that cancels it at the end. */
  readonly #waiting = new Set<() => void>();
  #end: ClosedError | PeerGoneError | IpcError | undefined;

  /** @param peerName the peer in words */
  constructor(peerName: string, state: PeerState, sender: ValueSender, receiver: ValueReceiver) {
    this.#peerName = peerName;
    this.#state = state;
    this.#sender = sender;
    this.#receiver = receiver;
  }

  /** Whether a request waits for its response. */
  get isAwaited(): boolean {
    return !this.#pending.isEmpty;
  }

  /**
   * Asks the peer for the object of one of its descriptors.
   *
   * @throws IpcError if too many requests are pending; as {@link ValueSender.send}
   */
  request(request: VerificationRequest): void {
    const number = this.#pending.add(request);
    try {
      const question = [number, { ...request.descriptor }];
      this.#sender.send(question, undefined, FrameKind.request)?.catch(() => {});
    } catch (error) {
      this.#pending.take(number);
      throw error;
    }
  }

  /** Responds to a request with the object of the descriptor, or with the reason why not. */
  respond(scanned: ScannedValue, fds: readonly number[]): void {
    discardFds(fds);
    const [number, message] = parseRequest(scanned);
    const named = verifyExport(message);
    // If the send queue is full because the peer does not read, this ends the connection.
    this.#sender.send([number, named], undefined, FrameKind.response)?.catch(() => {});
  }

  /**
   * Delivers a response to its caller.
   *
   * @throws IpcError for anything but the response to a pending request; that caller waits for the
   * end
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

  /** Returns why the object of a response is not opened. The peer's claims are not trusted. */
  #refusal(
    { descriptor }: VerificationRequest,
    named: DescriptorFields | IpcError | string,
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

  /** Rejects all requests, because responses stop. */
  end(reason: ClosedError | PeerGoneError | IpcError): void {
    this.#end ??= reason;
    this.#pending.rejectAll(reason);
    const heldUp = [...this.#waiting];
    this.#waiting.clear();
    for (const giveUp of heldUp) giveUp();
  }
}

/** Cleans up text of another process for an error message: short, without control characters. */
const sanitize = (text: string): string => text.slice(0, 500).replace(/\p{Cc}+/gu, ' ');

/** A caller that asked the peer for the object of a descriptor. */
export interface VerificationRequest extends Recipient {
  readonly descriptor: IpcDescriptor;
}

/** More than any program needs. It bounds what a hostile peer can make pile up here. */
const MAX_PENDING_REQUESTS = 1024;

/** The requests without a response, by number. */
class PendingRequests {
  readonly #requests = new Map<number, VerificationRequest>();
  #next = 0;

  /** Whether no request is open. */
  get isEmpty(): boolean {
    return this.#requests.size === 0;
  }

  /** Adds a request and returns its number. @throws IpcError for too many */
  add(request: VerificationRequest): number {
    if (this.#requests.size >= MAX_PENDING_REQUESTS)
      throw new IpcError(`${MAX_PENDING_REQUESTS} descriptors wait to be confirmed already`);
    const number = this.#next;
    this.#next = (number + 1) | 0;
    this.#requests.set(number, request);
    return number;
  }

  /** Removes a request. @throws IpcError for a response that nobody requested */
  take(number: number): VerificationRequest {
    const request = this.#requests.get(number);
    if (!request) throw new IpcError('an answer came that nobody asked for');
    this.#requests.delete(number);
    return request;
  }

  /** Rejects all requests. */
  rejectAll(reason: unknown): void {
    for (const { reject } of this.#requests.values()) reject(reason);
    this.#requests.clear();
  }
}

/** Parses a request: its number and the descriptor. @throws IpcError for anything else */
function parseRequest(question: ScannedValue): readonly [number: number, about: unknown] {
  if (question.encodedObjects.length > 0) throw new IpcError('a question came with GPU objects');
  const [number, about] = parsePair(question, 'a question');
  if (!Number.isInteger(number)) throw malformedError('a question');
  return [number as number, about];
}

/**
 * Parses a response: the number of the request, and the descriptor of the object that it carries or
 * the reason why the request is refused. Opens nothing.
 *
 * @throws IpcError for anything else
 */
function parseResponse(
  answer: ScannedValue,
): readonly [number: number, named: DescriptorFields | IpcError | string] {
  const { encodedObjects } = answer;
  const [number, about] = parsePair(answer, 'an answer');
  if (!Number.isInteger(number)) throw malformedError('an answer');
  const [slot] = encodedObjects;
  if (!slot && typeof about === 'string') return [number as number, about];
  // The place of the object holds its encoded form.
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

/** Fields that do not identify the object: how it is used, or what follows from other fields. */
const NOT_IDENTITY: ReadonlySet<string> = new Set([
  'version',
  'checksum',
  'access',
  'layout',
  'readyEvent',
]);

/**
 * Describes how a descriptor's object differs from the requested one; undefined for the same
 * object.
 */
function differenceFrom(asked: IpcDescriptor, found: DescriptorFields): string | undefined {
  if (found.kind !== asked.kind) return `its kind is ${found.kind}, not ${asked.kind}`;
  const values = found as unknown as Readonly<Record<string, unknown>>;
  for (const [name, value] of Object.entries(asked)) {
    if (NOT_IDENTITY.has(name)) continue;
    const other = values[name];
    // Compares lists of numbers as well.
    if (value === other || JSON.stringify(value) === JSON.stringify(other)) continue;
    return typeof value === 'number' && typeof other === 'number'
      ? `its ${name} is ${other}, not ${value}`
      : `its ${name} differs`;
  }
  return undefined;
}

/**
 * Describes what is wrong with the object of a response. It must be the requested memory, event or
 * pool, with the same size. Less access than requested is allowed, more is not.
 */
function mismatch(asked: IpcDescriptor, found: DescriptorFields): string | undefined {
  const difference = differenceFrom(asked, found);
  if (difference || asked.kind === 'event' || found.kind === 'event') return difference;
  // The requested descriptor tells how an array lies in the bytes.
  if (found.layout) return 'it is an array, not bytes';
  return asked.access === 'read' && found.access !== 'read'
    ? `its access is ${found.access}, not read`
    : undefined;
}

/**
 * Returns the object of a descriptor if this process made it and it is still the same. Otherwise
 * returns the reason in words.
 */
function verifyExport(message: unknown): Shareable | string {
  try {
    const descriptor = parseDescriptor(message);
    if (!isFromThisProcess(descriptor)) return 'it was made by another process';
    const object = openAlias(descriptor) as Shareable;
    // A handle alone does not identify an object: the driver may reuse it.
    return differenceFrom(descriptor, exportIpc(object).descriptor)
      ? 'what it names is another one now'
      : object;
  } catch (error) {
    return error instanceof Error ? error.message : String(error);
  }
}
