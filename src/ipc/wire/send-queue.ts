import { closeFd, duplicateFd, SystemError } from '../../../ffi/linux/libc.ts';
import { isGone, sendMessage } from '../../../ffi/linux/message.ts';
import { IpcError } from '../../errors.ts';
import { PacketKind, writeHeader } from './frames.ts';
import {
  FRAGMENT_BYTE_LENGTH,
  HEADER_BYTE_LENGTH,
  MAX_UNSENT_BYTE_LENGTH,
  MAX_UNSENT_VALUES,
} from './limits.ts';

/** A value, or news, on its way out. */
interface Unsent {
  readonly kind: PacketKind;
  /** With room for a header before; behind what is sent, the headers overwrite it. */
  readonly bytes: Buffer;
  readonly fds: readonly number[];
  /** Called if it never goes out. */
  readonly dropped: (() => void) | undefined;
  /** Whether others are to agree before it goes out. */
  isHeld: boolean;
  /** How much of it is with the kernel. */
  offset: number;
}

interface Waiting extends Unsent {
  resolve(): void;
  reject(error: unknown): void;
}

/** The values that the kernel has no room for yet, in their order. */
export class Outbox {
  readonly #waiting: Waiting[] = [];
  #byteLength = 0;
  #sequence = 0;

  #isShortOfFds = false;
  #isBroken = false;

  get isEmpty(): boolean {
    return this.#waiting.length === 0;
  }

  /** Whether what is first waits for others to agree: the socket may have room. */
  get isHeld(): boolean {
    return this.#waiting[0]?.isHeld === true;
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
  checkRoom(): void {
    if (this.#waiting.length < MAX_UNSENT_VALUES && this.#byteLength < MAX_UNSENT_BYTE_LENGTH)
      return;
    throw new IpcError(
      `${this.#waiting.length} values (${this.#byteLength} bytes) wait to be sent already: ` +
        'await send() before the next one',
    );
  }

  /**
   * Sends a value at once, or keeps a copy until there is room: then it answers with a promise.
   *
   * @param bytes with room for a header before; free again after the call
   * @param fds still the caller's
   * @param dropped called where it does not go out, unless this throws
   * @param agreed what it waits for before it, and what comes after it, goes out
   * @throws SystemError as sendMessage, but for the end of the other end; IpcError if no descriptor
   * is left to keep a copy of `fds`
   */
  post(
    socket: number,
    kind: PacketKind,
    bytes: Buffer,
    fds: readonly number[],
    dropped?: () => void,
    agreed?: Promise<unknown>,
  ): Promise<void> | undefined {
    const value: Unsent = { kind, bytes, fds, dropped, isHeld: agreed !== undefined, offset: 0 };
    if (agreed) return this.#keep(value, agreed);
    const isSent = this.isEmpty && !this.#isBroken && this.#send(socket, value);
    return isSent ? undefined : this.#keep(value);
  }

  /** Sends what there is room for. @throws SystemError as sendMessage */
  flush(socket: number): void {
    for (;;) {
      const first = this.#waiting[0];
      if (!first || first.isHeld || this.#isBroken || !this.#send(socket, first)) return;
      this.#remove(first).resolve();
    }
  }

  /** Drops all that waits. */
  rejectAll(error: unknown): void {
    this.#drop([...this.#waiting], error);
    this.#isShortOfFds = false;
  }

  /** Drops values, questions and answers of which nothing went out; control messages stay. */
  rejectUnbegun(error: unknown): void {
    const unbegun = this.#waiting.filter(
      ({ kind, offset }) => kind !== PacketKind.news && offset === 0,
    );
    this.#drop(unbegun, error);
    if (!unbegun.every(({ fds }) => fds.length === 0)) this.#isShortOfFds = false;
  }

  #send(socket: number, value: Unsent): boolean {
    this.#isShortOfFds = false;
    try {
      if (!sendPackets(socket, value, this.#sequence)) return false;
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

  #keep({ bytes, fds, ...rest }: Unsent, agreed?: Promise<unknown>): Promise<void> {
    // Their owners may close theirs before there is room. What went out already needs none.
    const kept = rest.offset > 0 ? [] : duplicateAll(fds);
    this.#byteLength += bytes.byteLength;
    return new Promise((resolve, reject) => {
      const waiting = { ...rest, bytes: Buffer.from(bytes), fds: kept, resolve, reject };
      this.#waiting.push(waiting);
      void agreed?.then(() => {
        waiting.isHeld = false;
      });
    });
  }

  /** The newest first: each takes back what was to be told with it, before what came after. */
  #drop(some: readonly Waiting[], error: unknown): void {
    for (const each of some) this.#remove(each).reject(error);
    for (const each of some.toReversed()) each.dropped?.();
  }

  #remove(value: Waiting): Waiting {
    this.#waiting.splice(this.#waiting.indexOf(value), 1);
    this.#byteLength -= value.bytes.byteLength;
    value.fds.forEach(closeFd);
    return value;
  }
}

/** Sends as much as the kernel takes; answers whether that was all. */
function sendPackets(socket: number, value: Unsent, sequence: number): boolean {
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
