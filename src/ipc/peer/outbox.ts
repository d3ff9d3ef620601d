import { closeFd, duplicateFd, SystemError } from '../../../ffi/libc.ts';
import { sendMessage } from '../../../ffi/message.ts';
import { IpcError } from '../../errors.ts';
import {
  FRAGMENT_BYTE_LENGTH,
  HEADER_BYTE_LENGTH,
  MAX_UNSENT_BYTE_LENGTH,
  MAX_UNSENT_VALUES,
} from './limits.ts';
import { PacketKind, writeHeader } from './packet.ts';

/** A value, or news, on its way out. */
interface Unsent {
  readonly kind: PacketKind;
  /** With room for a header before; behind what is sent, the headers overwrite it. */
  readonly bytes: Buffer;
  readonly fds: readonly number[];
  /** Called where it never goes out. */
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
   * @throws SystemError as sendMessage
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
    const isSent = this.isEmpty && this.#send(socket, value);
    return isSent ? undefined : this.#keep(value);
  }

  /** Sends what there is room for. @throws SystemError as sendMessage */
  flush(socket: number): void {
    for (;;) {
      const first = this.#waiting[0];
      if (!first || first.isHeld || !this.#send(socket, first)) return;
      this.#remove(first).resolve();
    }
  }

  /** Gives up all that waits. */
  rejectAll(error: unknown): void {
    for (const each of [...this.#waiting]) this.#drop(each, error);
    this.#isShortOfFds = false;
  }

  /** Gives up all values; answers whether none was begun, so that news can still go out. */
  rejectValues(error: unknown): boolean {
    const values = this.#waiting.filter(({ kind }) => kind === PacketKind.value);
    for (const value of values) this.#drop(value, error);
    return values.every(({ offset }) => offset === 0);
  }

  #send(socket: number, value: Unsent): boolean {
    this.#isShortOfFds = false;
    try {
      if (!sendPackets(socket, value, this.#sequence)) return false;
      this.#sequence = (this.#sequence + 1) >>> 0;
      return true;
    } catch (error) {
      if (!(error instanceof SystemError) || error.code !== 'ETOOMANYREFS') throw error;
      this.#isShortOfFds = true;
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

  #drop(each: Waiting, error: unknown): void {
    this.#remove(each).reject(error);
    each.dropped?.();
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
    throw error;
  }
}
