import { closeFd, duplicateFd, SystemError } from '../../../ffi/linux/libc.ts';
import { isGone, sendMessage } from '../../../ffi/linux/message.ts';
import { IpcError } from '../../errors.ts';
import { type FrameHeader, FrameKind, writeHeader } from './frames.ts';
import {
  FRAGMENT_BYTE_LENGTH,
  HEADER_BYTE_LENGTH,
  MAX_UNSENT_BYTE_LENGTH,
  MAX_UNSENT_VALUES,
} from './limits.ts';

/** The messages for which the kernel has no room yet, in order. */
export class SendQueue {
  readonly #queued: QueuedMessage[] = [];
  #byteLength = 0;
  #sequence = 0;

  #isShortOfFds = false;
  #isBroken = false;

  get isEmpty(): boolean {
    return this.#queued.length === 0;
  }

  /** Whether the first message waits for an acknowledgement. The socket itself may have room. */
  get isAwaitingAck(): boolean {
    return this.#queued[0]?.isAwaitingAck === true;
  }

  /** Whether this user has too many descriptors in flight. The socket itself has room. */
  get isShortOfFds(): boolean {
    return this.#isShortOfFds;
  }

  /**
   * Whether the peer has closed its socket. Queued messages stay until the peer's last messages
   * tell why.
   */
  get isBroken(): boolean {
    return this.#isBroken;
  }

  /** @throws IpcError if too much is queued already */
  checkCapacity(): void {
    if (this.#queued.length < MAX_UNSENT_VALUES && this.#byteLength < MAX_UNSENT_BYTE_LENGTH)
      return;
    throw new IpcError(
      `${this.#queued.length} values (${this.#byteLength} bytes) wait to be sent already: ` +
        'await send() before the next one',
    );
  }

  /**
   * Sends a message at once and returns undefined, or queues a copy and returns a promise.
   *
   * @param type what is sent
   * @param bytes with room for a header in front; free to reuse after the call
   * @param fds remain the caller's
   * @param onDropped called if the message is never sent, unless this call throws
   * @param acknowledged the message, and those after it, wait for this promise
   * @throws SystemError as sendMessage, except when the peer has closed; IpcError if there are no
   * descriptors left for copies of `fds`
   */
  post(
    socket: number,
    { kind, request }: MessageType,
    bytes: Buffer,
    fds: readonly number[],
    onDropped?: () => void,
    acknowledged?: Promise<unknown>,
  ): Promise<void> | undefined {
    const value: UnsentMessage = {
      kind,
      request,
      bytes,
      fds,
      onDropped,
      isAwaitingAck: acknowledged !== undefined,
      offset: 0,
    };
    if (acknowledged) return this.#enqueue(value, acknowledged);
    const isSent = this.isEmpty && !this.#isBroken && this.#send(socket, value);
    return isSent ? undefined : this.#enqueue(value);
  }

  /** Sends what the kernel has room for. @throws SystemError as sendMessage */
  flush(socket: number): void {
    for (;;) {
      const first = this.#queued[0];
      if (!first || first.isAwaitingAck || this.#isBroken || !this.#send(socket, first)) return;
      this.#remove(first).resolve();
    }
  }

  /** Drops everything that is queued. */
  rejectAll(error: unknown): void {
    this.#drop([...this.#queued], error);
    this.#isShortOfFds = false;
  }

  /** Drops the values, requests and responses of which nothing was sent. Control messages stay. */
  rejectUnstarted(error: unknown): void {
    const unstarted = this.#queued.filter(
      ({ kind, offset }) => kind !== FrameKind.control && offset === 0,
    );
    this.#drop(unstarted, error);
    if (!unstarted.every(({ fds }) => fds.length === 0)) this.#isShortOfFds = false;
  }

  #send(socket: number, value: UnsentMessage): boolean {
    this.#isShortOfFds = false;
    try {
      if (!sendFrames(socket, value, this.#sequence)) return false;
      this.#sequence = (this.#sequence + 1) >>> 0;
      return true;
    } catch (error) {
      if (!(error instanceof SystemError)) throw error;
      if (error.code === 'ETOOMANYREFS') this.#isShortOfFds = true;
      else if (isGone(error)) this.#isBroken = true;
      else throw error;
      return false;
    }
  }

  #enqueue({ bytes, fds, ...rest }: UnsentMessage, acknowledged?: Promise<unknown>): Promise<void> {
    // The owners may close theirs before there is room. Descriptors that were sent need no copy.
    const duplicates = rest.offset > 0 ? [] : duplicateAll(fds);
    this.#byteLength += bytes.byteLength;
    return new Promise((resolve, reject) => {
      const queued = { ...rest, bytes: Buffer.from(bytes), fds: duplicates, resolve, reject };
      this.#queued.push(queued);
      void acknowledged?.then(() => {
        queued.isAwaitingAck = false;
      });
    });
  }

  /**
   * Calls `onDropped` for the newest first, so that older control entries end up in front of newer
   * ones.
   */
  #drop(dropped: readonly QueuedMessage[], error: unknown): void {
    for (const each of dropped) this.#remove(each).reject(error);
    for (const each of dropped.toReversed()) each.onDropped?.();
  }

  #remove(value: QueuedMessage): QueuedMessage {
    this.#queued.splice(this.#queued.indexOf(value), 1);
    this.#byteLength -= value.bytes.byteLength;
    value.fds.forEach(closeFd);
    return value;
  }
}

// ---- Messages, and how they are sent ----

/** The kind of a message, and its number if it is a request or a response. */
export type MessageType = Pick<FrameHeader, 'kind' | 'request'>;

/** A message that is being sent. */
interface UnsentMessage extends MessageType {
  /** With room for a header in front. Later headers overwrite bytes that were already sent. */
  readonly bytes: Buffer;
  readonly fds: readonly number[];
  /** Called if the message is never sent. */
  readonly onDropped: (() => void) | undefined;
  /** Whether owners of forwarded objects must still acknowledge before it is sent. */
  isAwaitingAck: boolean;
  /** How many bytes the kernel has taken. */
  offset: number;
}

interface QueuedMessage extends UnsentMessage {
  resolve(): void;
  reject(error: unknown): void;
}

/** Sends as much as the kernel takes. Returns whether that was everything. */
function sendFrames(socket: number, value: UnsentMessage, sequence: number): boolean {
  const byteLength = value.bytes.byteLength - HEADER_BYTE_LENGTH;
  while (value.offset < byteLength) {
    const { kind, request, bytes, offset } = value;
    const part = Math.min(FRAGMENT_BYTE_LENGTH, byteLength - offset);
    writeHeader(bytes, offset, { kind, sequence, byteLength, offset, request });
    const end = offset + HEADER_BYTE_LENGTH + part;
    const isWhole = offset === 0 && end === bytes.byteLength;
    const frame = isWhole ? bytes : bytes.subarray(offset, end);
    if (!sendMessage(socket, frame, offset === 0 ? value.fds : [])) return false;
    value.offset += part;
  }
  return true;
}

function duplicateAll(fds: readonly number[]): number[] {
  const copies: number[] = [];
  try {
    for (const fd of fds) copies.push(duplicateFd(fd));
    return copies;
  } catch (error) {
    copies.forEach(closeFd);
    if (!(error instanceof SystemError)) throw error;
    throw new IpcError(
      'cannot queue the value: there are not enough descriptors to duplicate its file descriptors',
      error,
    );
  }
}
