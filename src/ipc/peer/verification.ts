import { discardFds } from '../../../ffi/linux/close-fd.ts';
import { type ClosedError, IpcError, type PeerGoneError } from '../../errors.ts';
import { formatBytes, messageOf } from '../../validate.ts';
import {
  type AnyFields,
  type DescriptorFields,
  type IpcDescriptor,
  isHostFields,
} from '../descriptor.ts';
import { parseDescriptor } from '../descriptor-codec.ts';
import { isFromThisProcess } from '../identity.ts';
import { FrameKind, MAX_VERIFICATION_BYTE_LENGTH } from '../protocol.ts';
import { openAlias } from '../sharing/alias.ts';
import { asArray } from '../sharing/array.ts';
import { exportIpc } from '../sharing/export.ts';
import type { Shareable } from '../sharing/kinds.ts';
import type { ValueMessage } from '../wire/value-message.ts';
import { closeObjects, openArrival, type ReceivedValue } from './arrival.ts';
import { deliverOrdered, type Recipient } from './receive-queue.ts';
import { PendingRequests } from './requests.ts';
import type { Session } from './session.ts';

/** Sends a request or a response. @throws as `peer.send` */
type SendNumbered = (value: unknown, kind: FrameKind, request: number) => void;

/** Verifies with the peer that the object of a descriptor still exists. */
export class DescriptorVerifier {
  readonly #peerName: string;
  readonly #session: Session;
  readonly #send: SendNumbered;
  readonly #pending = new PendingRequests<VerificationRequest>('descriptors wait to be confirmed');
  /** For each response that the host must wait with, a function that cancels it at the end. */
  readonly #waiting = new Set<() => void>();
  #end: ClosedError | PeerGoneError | IpcError | undefined;

  /** @param peerName the peer in words */
  constructor(peerName: string, session: Session, send: SendNumbered) {
    this.#peerName = peerName;
    this.#session = session;
    this.#send = send;
  }

  /** Whether a request waits for its response. */
  get isAwaited(): boolean {
    return !this.#pending.isEmpty;
  }

  /**
   * Asks the peer for the object of one of its descriptors.
   *
   * @throws IpcError if too many requests are pending; as `peer.send`
   */
  request(request: VerificationRequest): void {
    const number = this.#pending.add(request);
    try {
      this.#send({ ...request.descriptor }, FrameKind.verification, number);
    } catch (error) {
      this.#pending.take(number);
      throw error;
    }
  }

  /** Responds to a request with the object of the descriptor, or with the reason why not. */
  respond(number: number, question: ValueMessage, fds: readonly number[]): void {
    discardFds(fds);
    if (question.objects.entries.length > 0) throw new IpcError('a question came with GPU objects');
    checkLength(question, 'a question');
    // If the send queue is full because the peer does not read, this ends the connection.
    this.#send(verifyExport(question.value.buildAll([])), FrameKind.confirmation, number);
  }

  /**
   * Delivers a response to its caller.
   *
   * @throws IpcError for anything but the response to a pending request; that caller waits for the
   * end
   */
  receiveResponse(
    number: number,
    answer: ValueMessage,
    fds: readonly number[],
    shortage?: IpcError,
  ): void {
    let request: VerificationRequest;
    let reason: string | undefined;
    try {
      reason = reasonIn(answer);
      request = this.#pending.take(number);
    } catch (error) {
      discardFds(fds);
      throw error;
    }
    const refusal =
      shortage ??
      (reason === undefined ? this.#mismatchError(request, answer) : this.#refusalError(reason));
    const arrival = openArrival(answer, fds, this.#session, refusal);
    if ('error' in arrival) request.reject(arrival.error);
    else this.#deliver(arrival, request);
  }

  #refusalError(reason: string): IpcError {
    return new IpcError(
      `${this.#peerName} does not confirm this descriptor: ${sanitize(reason)}`,
      undefined,
      'exporter-gone',
    );
  }

  /** Returns why the object of a response is not opened. The peer's claims are not trusted. */
  #mismatchError({ descriptor }: VerificationRequest, answer: ValueMessage): IpcError | undefined {
    let named: AnyFields;
    try {
      named = this.#session.decodeDescriptor(answer.objects.entries[0]?.bytes as Uint8Array);
    } catch {
      // Opening it fails in the same way.
      return undefined;
    }
    const difference = isHostFields(named) ? `it is a ${named.kind}` : mismatch(descriptor, named);
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
    if (deliverOrdered(this.#session, received, request)) return;
    const cancel = (): void => {
      closeObjects(received.objects);
      request.reject(this.#end);
    };
    this.#waiting.add(cancel);
    void this.#session.whenReached(received.points).then(() => {
      if (this.#waiting.delete(cancel)) deliverOrdered(this.#session, received, request);
    });
  }

  /** Rejects all requests, because responses stop. */
  end(reason: ClosedError | PeerGoneError | IpcError): void {
    this.#end ??= reason;
    for (const { reject } of this.#pending.takeAll()) reject(reason);
    const waiting = [...this.#waiting];
    this.#waiting.clear();
    for (const cancel of waiting) cancel();
  }
}

/** Cleans up text of another process for an error message: short, without control characters. */
const sanitize = (text: string): string => text.slice(0, 500).replace(/\p{Cc}+/gu, ' ');

/** A caller that asked the peer for the object of a descriptor. */
export interface VerificationRequest extends Recipient {
  readonly descriptor: IpcDescriptor;
}

/**
 * Returns the reason of a refusal; undefined for an object. Opens nothing.
 *
 * @throws IpcError for anything else
 */
function reasonIn(answer: ValueMessage): string | undefined {
  checkLength(answer, 'an answer');
  const { entries } = answer.objects;
  const value = answer.value.buildAll(entries);
  if (entries.length === 0 && typeof value === 'string') return value;
  // The place of the object holds its entry.
  if (entries.length === 1 && value === entries[0]) return undefined;
  throw new IpcError('the other end sent an answer that is not one');
}

function checkLength({ value }: ValueMessage, what: 'a question' | 'an answer'): void {
  if (value.byteLength > MAX_VERIFICATION_BYTE_LENGTH)
    throw new IpcError(
      `the other end sent ${what} of ${formatBytes(value.byteLength)}: it may have ${MAX_VERIFICATION_BYTE_LENGTH}`,
    );
}

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
    return messageOf(error);
  }
}
