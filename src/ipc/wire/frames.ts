/**
 * Frames: one message of the socket is one frame. A value has as many frames as it needs, a control
 * message has one.
 */

import { discardFds } from '../../../ffi/linux/close-fd.ts';
import type { SystemError } from '../../../ffi/linux/libc.ts';
import type { SocketMessage } from '../../../ffi/linux/message.ts';
import { packageName } from '../../../ffi/package.ts';
import { IpcError } from '../../errors.ts';
import { formatBytes } from '../../validate.ts';
import {
  FRAME_MAGIC,
  FrameKind,
  HEADER_BYTE_LENGTH,
  HeaderOffset,
  MAX_PACKAGE_NAME_BYTE_LENGTH,
  MAX_VALUE_BYTE_LENGTH,
  VERSIONS,
} from '../protocol.ts';
import { PROTOCOL_VERSION, versionMismatch } from '../version.ts';
import { FRAGMENT_BYTE_LENGTH, limitExceeded, MAX_BODY_BYTE_LENGTH } from './limits.ts';

/** The header of each frame, little-endian. */
export interface FrameHeader {
  readonly kind: FrameKind;
  /** The number of the message on this connection, from 0, modulo 2^32. */
  readonly sequence: number;
  /** The length of the whole message. */
  readonly byteLength: number;
  /** Where in the message this frame's part begins. */
  readonly offset: number;
  /** Which request this message is, answers or gives up, from 1; 0 for other messages. */
  readonly request: number;
}

/** A complete message, not decoded yet, with its file descriptors. */
export interface Message {
  readonly kind: FrameKind;
  /** As {@link FrameHeader.request}. */
  readonly request: number;
  readonly bytes: Uint8Array;
  /** Whether the bytes are those of the socket's buffer. The next read overwrites them. */
  readonly isSingleFrame: boolean;
  readonly fds: readonly number[];
  /** Why its file descriptors are lost, if they are. */
  readonly shortage: SystemError | undefined;
}

/**
 * Puts the frames of one direction together. Memory is used for what arrived, not for what a header
 * announces.
 */
export class FrameAssembler {
  #sequence = 0;
  #parts: Uint8Array[] = [];
  #received = 0;
  #first: FrameHeader | undefined;
  #fds: readonly number[] = [];
  #shortage: SystemError | undefined;

  /**
   * Takes a frame and returns the message that it completes. Copies only messages of several
   * frames.
   *
   * @throws IpcError for a frame that does not continue the previous ones; closes its descriptors
   */
  add({ data, fds, shortage }: SocketMessage): Message | undefined {
    let header: FrameHeader;
    try {
      header = readHeader(data);
      this.#check(header, data.byteLength - HEADER_BYTE_LENGTH, fds.length);
    } catch (error) {
      discardFds(fds);
      throw error;
    }
    const part = data.subarray(HEADER_BYTE_LENGTH);
    if (header.offset === 0) {
      this.#fds = fds;
      this.#shortage = shortage;
    }
    if (part.byteLength === header.byteLength) return this.#complete(header, part, true);
    this.#first ??= header;
    this.#parts.push(part.slice());
    this.#received += part.byteLength;
    return this.#received === header.byteLength
      ? this.#complete(this.#first, Buffer.concat(this.#parts), false)
      : undefined;
  }

  /** Drops an incomplete message. */
  clear(): void {
    discardFds(this.#fds);
    this.#reset();
  }

  #check(header: FrameHeader, part: number, fdCount: number): void {
    const { kind, sequence, byteLength, offset, request } = header;
    if (sequence !== this.#sequence || offset !== this.#received)
      throw new IpcError(
        `received byte ${offset} of message ${sequence} instead of byte ${this.#received} of message ${this.#sequence}`,
      );
    if (kind === FrameKind.control && part !== byteLength)
      throw new IpcError(
        `a control message of ${formatBytes(byteLength)} came in a frame of ${part} bytes`,
      );
    if (byteLength > MAX_BODY_BYTE_LENGTH)
      throw limitExceeded(
        `a message of ${formatBytes(byteLength)} is too large: a value has at most ${MAX_VALUE_BYTE_LENGTH}`,
      );
    const first = this.#first;
    const isSame =
      byteLength === first?.byteLength && kind === first.kind && request === first.request;
    if (offset > 0 && !isSame)
      throw new IpcError('a message changed its length, kind or request between two frames');
    if (request > 0 !== kind > FrameKind.control)
      throw new IpcError(`a frame of kind ${kind} has the request number ${request}`);
    // Keeping tiny parts of a large value would cost more than their content.
    if (part !== Math.min(FRAGMENT_BYTE_LENGTH, byteLength - offset))
      throw new IpcError(`a frame has ${part} bytes of a message: that is too few or too many`);
    if (offset > 0 && fdCount > 0)
      throw new IpcError('received file descriptors in the middle of a message');
  }

  #complete({ kind, request }: FrameHeader, bytes: Uint8Array, isSingleFrame: boolean): Message {
    const fds = this.#fds;
    const shortage = this.#shortage;
    this.#reset();
    this.#sequence = (this.#sequence + 1) >>> 0;
    return { kind, request, bytes, isSingleFrame, fds, shortage };
  }

  #reset(): void {
    this.#first = undefined;
    this.#parts = [];
    this.#received = 0;
    this.#fds = [];
    this.#shortage = undefined;
  }
}

/** Writes a header over the bytes at `at`. */
export function writeHeader(bytes: Buffer, at: number, header: FrameHeader): void {
  bytes.writeUInt16LE(MAGIC, at + HeaderOffset.magic);
  bytes[at + HeaderOffset.version] = PROTOCOL_VERSION;
  bytes[at + HeaderOffset.kind] = header.kind;
  bytes.writeUInt32LE(header.sequence, at + HeaderOffset.sequence);
  bytes.writeUInt32LE(header.byteLength, at + HeaderOffset.byteLength);
  bytes.writeUInt32LE(header.offset, at + HeaderOffset.offset);
  bytes.writeUInt32LE(header.request, at + HeaderOffset.request);
}

/** @throws IpcError for anything but a frame of this protocol version behind the first one */
export function readHeader(frame: Uint8Array): FrameHeader {
  const { kind, version } = readKind(frame);
  if (version !== PROTOCOL_VERSION)
    throw new IpcError(
      `a frame is of version ${version}, although both ends speak ${PROTOCOL_VERSION}`,
    );
  if (!isKind(kind)) throw new IpcError(`unknown frame kind ${kind}`);
  const view = new DataView(frame.buffer, frame.byteOffset, HEADER_BYTE_LENGTH);
  return {
    kind,
    sequence: view.getUint32(HeaderOffset.sequence, true),
    byteLength: view.getUint32(HeaderOffset.byteLength, true),
    offset: view.getUint32(HeaderOffset.offset, true),
    request: view.getUint32(HeaderOffset.request, true),
  };
}

// ---- The first frame ----

/** The versions that an end speaks. */
export interface VersionRange {
  readonly min: number;
  readonly max: number;
}

/** Returns the frame that an end sends first. It is the same in every version. */
export function helloFrame({ min, max }: VersionRange = VERSIONS): Buffer {
  const text = Buffer.from(packageName()).subarray(0, MAX_PACKAGE_NAME_BYTE_LENGTH);
  const frame = Buffer.concat([Buffer.alloc(HEADER_BYTE_LENGTH), Uint8Array.of(min, max), text]);
  const byteLength = frame.byteLength - HEADER_BYTE_LENGTH;
  writeHeader(frame, 0, { kind: FrameKind.hello, sequence: 0, byteLength, offset: 0, request: 0 });
  return frame;
}

/** Returns the highest version that both ends speak; undefined if they have none in common. */
export function chooseVersion(a: VersionRange, b: VersionRange): number | undefined {
  const highest = Math.min(a.max, b.max);
  return highest >= Math.max(a.min, b.min) ? highest : undefined;
}

/**
 * Reads the first frame of the other end.
 *
 * @param own the versions of this end
 * @returns the version that both ends speak from now on
 * @throws IpcError `version-mismatch` if both ends have no version in common; IpcError if the frame is
 *   not a first frame
 */
export function readHello(frame: Uint8Array, own: VersionRange = VERSIONS): number {
  const { kind, version } = readKind(frame);
  // Versions before 4 begin with a value.
  if (kind !== FrameKind.hello && version < OLDEST_WITH_HELLO)
    throw noCommonVersion({ min: version, max: version }, own);
  const content = frame.subarray(HEADER_BYTE_LENGTH);
  const [min, max] = content;
  const isWhole =
    kind === FrameKind.hello &&
    frame.byteLength <= HEADER_BYTE_LENGTH + 2 + MAX_PACKAGE_NAME_BYTE_LENGTH &&
    isHelloHeader(frame);
  if (!isWhole || min === undefined || max === undefined || max < min)
    throw new IpcError(
      'the other end did not state first which versions of the protocol it speaks',
    );
  const chosen = chooseVersion({ min, max }, own);
  if (chosen !== undefined) return chosen;
  throw noCommonVersion({ min, max }, own, Buffer.from(content.subarray(2)).toString('utf8'));
}

/** All other numbers of the header are 0 but the length. */
function isHelloHeader(frame: Uint8Array): boolean {
  const view = new DataView(frame.buffer, frame.byteOffset, HEADER_BYTE_LENGTH);
  const numberAt = (at: number): number => view.getUint32(at, true);
  return (
    numberAt(HeaderOffset.sequence) === 0 &&
    numberAt(HeaderOffset.offset) === 0 &&
    numberAt(HeaderOffset.request) === 0 &&
    numberAt(HeaderOffset.byteLength) === frame.byteLength - HEADER_BYTE_LENGTH
  );
}

const OLDEST_WITH_HELLO = 4;

const noCommonVersion = (theirs: VersionRange, own: VersionRange, text?: string): IpcError =>
  versionMismatch(
    `the other end speaks ${formatVersions(theirs)} of the protocol, this one ${formatVersions(own)}`,
    theirs.min > own.max,
    text,
  );

const formatVersions = ({ min, max }: VersionRange): string =>
  min === max ? `version ${max}` : `versions ${min} to ${max}`;

// ---- The bytes of a header ----

const MAGIC = Buffer.from(FRAME_MAGIC, 'latin1').readUInt16LE();

/** Reads what is the same in every version. @throws IpcError for anything but a frame of cuffi */
function readKind(frame: Uint8Array): { readonly version: number; readonly kind: number } {
  if (frame.byteLength <= HEADER_BYTE_LENGTH)
    throw new IpcError(`a frame of ${frame.byteLength} bytes has no content`);
  if (((frame[0] as number) | ((frame[1] as number) << 8)) !== MAGIC)
    throw new IpcError('not a cuffi frame (wrong magic number)');
  return {
    version: frame[HeaderOffset.version] as number,
    kind: frame[HeaderOffset.kind] as number,
  };
}

const kinds: ReadonlySet<number> = new Set(Object.values(FrameKind));

const isKind = (kind: number): kind is FrameKind => kind !== FrameKind.hello && kinds.has(kind);
