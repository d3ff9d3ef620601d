/** Packets: what one message of the socket holds. A value has as many as it needs, news one. */
import { IpcError } from '../../errors.ts';
import { HEADER_BYTE_LENGTH } from './limits.ts';

/** What a packet is about. */
export const PacketKind = { value: 1, news: 2, question: 3, answer: 4 } as const;
export type PacketKind = (typeof PacketKind)[keyof typeof PacketKind];

/** What stands before each packet, little-endian. */
export interface PacketHeader {
  readonly kind: PacketKind;
  /** The number of the value, or the news, on this connection, from 0, modulo 2^32. */
  readonly sequence: number;
  /** Of the whole of it. */
  readonly byteLength: number;
  /** Where in it this packet's part begins. */
  readonly offset: number;
}

// "cu", the version of the protocol, the kind, then three numbers of 32 bits.
const MAGIC = 0x7563;
const VERSION = 2;

/** Writes a header over the 16 bytes at `at`. */
export function writeHeader(bytes: Buffer, at: number, header: PacketHeader): void {
  bytes.writeUInt16LE(MAGIC, at);
  bytes[at + 2] = VERSION;
  bytes[at + 3] = header.kind;
  bytes.writeUInt32LE(header.sequence, at + 4);
  bytes.writeUInt32LE(header.byteLength, at + 8);
  bytes.writeUInt32LE(header.offset, at + 12);
}

const isKind = (kind: number): kind is PacketKind =>
  kind >= PacketKind.value && kind <= PacketKind.answer;

// By the byte: a DataView for each packet would cost more than all that is read of it.
const byte = (bytes: Uint8Array, at: number): number => bytes[at] as number;
const uint16 = (bytes: Uint8Array, at: number): number =>
  byte(bytes, at) | (byte(bytes, at + 1) << 8);
const uint32 = (bytes: Uint8Array, at: number): number =>
  (uint16(bytes, at) | (uint16(bytes, at + 2) << 16)) >>> 0;

/** @throws IpcError for anything but a packet of this version */
export function readHeader(packet: Uint8Array): PacketHeader {
  if (packet.byteLength <= HEADER_BYTE_LENGTH)
    throw new IpcError(`a packet of ${packet.byteLength} bytes has no content`);
  if (uint16(packet, 0) !== MAGIC) throw new IpcError('a packet is none of cuffi');
  const version = byte(packet, 2);
  if (version !== VERSION)
    throw new IpcError(
      `the other end speaks version ${version} of the protocol, this one version ${VERSION}: ` +
        'use the same cuffi on both sides',
    );
  const kind = byte(packet, 3);
  if (!isKind(kind)) throw new IpcError(`packets of kind ${kind} are unknown here`);
  return {
    kind,
    sequence: uint32(packet, 4),
    byteLength: uint32(packet, 8),
    offset: uint32(packet, 12),
  };
}
