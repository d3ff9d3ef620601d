import { discardFds } from '../../../ffi/discard.ts';
import type { SocketMessage } from '../../../ffi/message.ts';
import { IpcError } from '../../errors.ts';
import {
  FRAGMENT_BYTE_LENGTH,
  HEADER_BYTE_LENGTH,
  MAX_TAIL_BYTE_LENGTH,
  MAX_VALUE_BYTE_LENGTH,
} from './limits.ts';
import { type PacketHeader, PacketKind, readHeader } from './packet.ts';

/** A value, or news, as it arrived: not decoded yet, and its file descriptors. */
export interface Arrived {
  readonly kind: PacketKind;
  readonly bytes: Uint8Array;
  /** Whether the bytes are those of the one message that it came in: there until the next. */
  readonly isOfMessage: boolean;
  readonly fds: readonly number[];
}

/** The packets of one direction, put together. Holds what has arrived, never what is announced. */
export class Assembly {
  #sequence = 0;
  #parts: Uint8Array[] = [];
  #received = 0;
  #byteLength = 0;
  #fds: readonly number[] = [];

  /**
   * Takes a packet, of which only a value in parts is copied; answers with the value that it
   * completes.
   *
   * @throws IpcError for one that does not follow from those before; its descriptors are closed
   */
  add({ data, fds }: SocketMessage): Arrived | undefined {
    let header: PacketHeader;
    try {
      header = readHeader(data);
      this.#check(header, data.byteLength - HEADER_BYTE_LENGTH, fds.length);
    } catch (error) {
      discardFds(fds);
      throw error;
    }
    const part = data.subarray(HEADER_BYTE_LENGTH);
    if (header.offset === 0) this.#fds = fds;
    if (part.byteLength === header.byteLength) return this.#complete(header.kind, part, true);
    this.#byteLength = header.byteLength;
    this.#parts.push(part.slice());
    this.#received += part.byteLength;
    return this.#received === header.byteLength
      ? this.#complete(header.kind, Buffer.concat(this.#parts), false)
      : undefined;
  }

  /** Drops a value that is not complete. */
  clear(): void {
    discardFds(this.#fds);
    this.#reset();
  }

  #check(
    { kind, sequence, byteLength, offset }: PacketHeader,
    part: number,
    fdCount: number,
  ): void {
    if (sequence !== this.#sequence || offset !== this.#received)
      throw new IpcError(
        `byte ${offset} of value ${sequence} came where byte ${this.#received} of value ${this.#sequence} was due`,
      );
    if (kind === PacketKind.news && part !== byteLength)
      throw new IpcError(`news of ${byteLength} bytes came in a packet of ${part}`);
    if (byteLength > MAX_VALUE_BYTE_LENGTH + MAX_TAIL_BYTE_LENGTH)
      throw new IpcError(`a value of ${byteLength} bytes: it may have ${MAX_VALUE_BYTE_LENGTH}`);
    if (offset > 0 && byteLength !== this.#byteLength)
      throw new IpcError('a value changed its size on its way');
    // Tiny parts of a large value would cost more to keep than they hold.
    if (part !== Math.min(FRAGMENT_BYTE_LENGTH, byteLength - offset))
      throw new IpcError(`a packet holds ${part} bytes of a value: that is too few or too many`);
    if (offset > 0 && fdCount > 0)
      throw new IpcError('file descriptors came in the middle of a value');
  }

  #complete(kind: PacketKind, bytes: Uint8Array, isOfMessage: boolean): Arrived {
    const fds = this.#fds;
    this.#reset();
    this.#sequence = (this.#sequence + 1) >>> 0;
    return { kind, bytes, isOfMessage, fds };
  }

  #reset(): void {
    this.#parts = [];
    this.#received = 0;
    this.#fds = [];
  }
}
