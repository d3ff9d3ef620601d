import { closeFd, duplicateFd, SystemError } from '../../../ffi/linux/libc.ts';
import { isGone, sendMessage } from '../../../ffi/linux/message.ts';
import { IpcError } from '../../errors.ts';
import { FrameKind, writeHeader } from './frames.ts';
import {
  FRAGMENT_BYTE_LENGTH,
  HEADER_BYTE_LENGTH,
  MAX_UNSENT_BYTE_LENGTH,
  MAX_UNSENT_VALUES,
} from './limits.ts';

/** A value, or news, on its way out. */
interface UnsentMessage {
  readonly kind: FrameKind;
  /** With room for a header before; behind what is sent, the headers overwrite it. */
  readonly bytes: Buffer;
  readonly fds: readonly number[];
  /** Called if it never goes out. */
  readonly onDropped: (() => void) | undefined;
  /** Whether others are to agree before it goes out. */
  isAwaitingAck: boolean;
  /** How much of it is with the kernel. */
  offset: number;
}

interface QueuedMessage extends UnsentMessage {
  resolve(): void;
  reject(error: unknown): void;
}

/** The values that the kernel has no room for yet, in their order. */
export class SendQueue {
  readonly #queued: QueuedMessage[] = [];
  #byteLength = 0;
  #sequence = 0;

  #isShortOfFds = false;
  #isBroken = false;

  get isEmpty(): boolean {
    return this.#queued.length === 0;
  }

  /** Whether what is first waits for others to agree: the socket may have room. */
  get isAwaitingAck(): boolean {
    return this.#queued[0]?.isAwaitingAck === true;
  }

  /** Whether too many descriptors of this user are on their way: the socket itself has room. */
  get isShortOfFds(): boolean {
    return this.#isShortOfFds;
  }

  /**
   * Whether the other end has closed its socket. What waits stays, until what the other end had sent
   * before tells why it closed.
   */
  get isBroken(): boolean {
    return this.#isBroken;
  }

  /** @throws IpcError where too much waits already */
  checkCapacity(): void {
    if (this.#queued.length < MAX_UNSENT_VALUES && this.#byteLength < MAX_UNSENT_BYTE_LENGTH)
      return;
    throw new IpcError(
      `${this.#queued.length} values (${this.#byteLength} bytes) wait to be sent already: ` +
        'await send() before the next one',
    );
  }

  /**
   * Sends a value at once, or keeps a copy until there is room: then it answers with a promise.
   *
   * @param bytes with room for a header before; free again after the call
   * @param fds still the caller's
   * @param onDropped called where it does not go out, unless this throws
   * @param acknowledged what it waits for before it, and what comes after it, goes out
   * @throws SystemError as sendMessage, but for the end of the other end; IpcError if no descriptor
   * is left to keep a copy of `fds`
   */
  post(
    socket: number,
    kind: FrameKind,
    bytes: Buffer,
    fds: readonly number[],
    onDropped?: () => void,
    acknowledged?: Promise<unknown>,
  ): Promise<void> | undefined {
    const value: UnsentMessage = {
      kind,
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

  /** Sends what there is room for. @throws SystemError as sendMessage */
  flush(socket: number): void {
    for (;;) {
      const first = this.#queued[0];
      if (!first || first.isAwaitingAck || this.#isBroken || !this.#send(socket, first)) return;
      this.#remove(first).resolve();
    }
  }

  /** Drops all that waits. */
  rejectAll(error: unknown): void {
    this.#drop([...this.#queued], error);
    this.#isShortOfFds = false;
  }

  /** Drops values, questions and answers of which nothing went out; control messages stay. */
  rejectUnstarted(error: unknown): void {
    const unstarted = this.#queued.filter(
      ({ kind, offset }) => kind !== FrameKind.news && offset === 0,
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
    // Their owners may close theirs before there is room. What went out already needs none.
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

  /** The newest first: each takes back what was to be told with it, before what came after. */
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

/** Sends as much as the kernel takes; answers whether that was all. */
function sendFrames(socket: number, value: UnsentMessage, sequence: number): boolean {
  const byteLength = value.bytes.byteLength - HEADER_BYTE_LENGTH;
  while (value.offset < byteLength) {
    const { kind, bytes, offset } = value;
    const part = Math.min(FRAGMENT_BYTE_LENGTH, byteLength - offset);
    writeHeader(bytes, offset, { kind, sequence, byteLength, offset });
    const end = offset + HEADER_BYTE_LENGTH + part;
    const isWhole = offset === 0 && end === bytes.byteLength;
    const packet = isWhole ? bytes : bytes.subarray(offset, end);
    if (!sendMessage(socket, packet, offset === 0 ? value.fds : [])) return false;
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
      'the value has to wait for room, and its file descriptors cannot be kept for that',
      error,
    );
  }
}
