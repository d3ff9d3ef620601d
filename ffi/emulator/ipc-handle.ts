/** The 64 bytes of an IPC handle, by which other processes find memory or an event. */
import { CU_IPC_HANDLE_SIZE } from '../constants.ts';
import type { IpcHandleBytes } from '../types.ts';
import type { ForeignFd } from './processes.ts';

export interface IpcHandleFields extends ForeignFd {
  readonly kind: 'memory' | 'event';
  /** Identifies the memfd: the process may have reused the descriptor number. */
  readonly generation: string;
  /** The offset in the block, or the slot of the event. */
  readonly offset: number;
  readonly byteLength: number;
  /** The id of the allocation or event: another may be at that place now. */
  readonly id: number;
  /** The size of the whole block. */
  readonly blockByteLength: number;
}

const MAGIC = { memory: 'cuffiMEM', event: 'cuffiEVT' } as const;

export function encodeIpcHandle(fields: IpcHandleFields): Uint8Array {
  const bytes = Buffer.alloc(CU_IPC_HANDLE_SIZE);
  bytes.write(MAGIC[fields.kind], 0, 'latin1');
  bytes.writeUInt32LE(fields.pid, 8);
  bytes.writeUInt32LE(fields.fd, 12);
  bytes.writeBigUInt64LE(BigInt(fields.startTime), 16);
  bytes.write(fields.generation, 24, 'hex');
  bytes.writeBigUInt64LE(BigInt(fields.offset), 32);
  bytes.writeBigUInt64LE(BigInt(fields.byteLength), 40);
  bytes.writeBigUInt64LE(BigInt(fields.blockByteLength), 48);
  bytes.writeUInt32LE(fields.id, 56);
  return bytes;
}

/** Decodes a handle. Undefined if the format is invalid. The fields are not verified. */
export function decodeIpcHandle(
  kind: IpcHandleFields['kind'],
  handle: IpcHandleBytes,
): IpcHandleFields | undefined {
  if (handle.reserved.length < CU_IPC_HANDLE_SIZE) return undefined;
  const bytes = Buffer.from(handle.reserved.subarray(0, CU_IPC_HANDLE_SIZE));
  if (bytes.toString('latin1', 0, 8) !== MAGIC[kind]) return undefined;
  const fields: IpcHandleFields = {
    kind,
    pid: bytes.readUInt32LE(8),
    fd: bytes.readUInt32LE(12),
    startTime: Number(bytes.readBigUInt64LE(16)),
    generation: bytes.toString('hex', 24, 32),
    offset: Number(bytes.readBigUInt64LE(32)),
    byteLength: Number(bytes.readBigUInt64LE(40)),
    blockByteLength: Number(bytes.readBigUInt64LE(48)),
    id: bytes.readUInt32LE(56),
  };
  if (bytes.readUInt32LE(60) !== 0) return undefined;
  const sizes = [fields.offset, fields.byteLength, fields.blockByteLength, fields.startTime];
  return sizes.every(Number.isSafeInteger) && fields.id !== 0 ? fields : undefined;
}
