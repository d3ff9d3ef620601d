/** Sharing pools by file descriptor, and their allocations by 64 bytes of export data. */
import { createHash } from 'node:crypto';
import { writeSync } from 'node:fs';
import { CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR } from '../constants.ts';
import type { Driver } from '../functions.ts';
import { CUresult, type CUresult as Status } from '../results.ts';
import { structs } from '../structs.ts';
import { poolRegionAt } from './pool-allocation.ts';
import type { SharedAllocation } from './pool-page.ts';
import type { EmulatorParts } from './pools.ts';
import type { ProcessIdentity } from './processes.ts';

const { CUDA_SUCCESS, CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_OUT_OF_MEMORY } = CUresult;

const MAGIC = 'cuffiPTR';
const CHECKSUM_OFFSET = 40;
const PAYLOAD_END = 48;

/** Importing a larger allocation crashes the process on hardware: see the facts of test/driver. */
const MAX_IMPORTED_ALLOCATION = 5248 * 2 ** 20;

/** Crashes with SIGSEGV as hardware does, after printing the reason. */
function crash(byteLength: number): never {
  writeSync(
    2,
    `cuffi's emulated driver: cuMemPoolImportPointer of one allocation of ${byteLength} bytes: above ` +
      `${MAX_IMPORTED_ALLOCATION} bytes the driver crashes the importing process (SIGSEGV), and so does this one\n`,
  );
  process.kill(process.pid, 'SIGSEGV');
  // Another thread may receive the signal.
  for (;;) Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 1000);
}

/** A checksum, to detect altered bytes. */
const checksum = (bytes: Uint8Array): Buffer =>
  createHash('sha256')
    .update(bytes.subarray(0, CHECKSUM_OFFSET))
    .digest()
    .subarray(0, PAYLOAD_END - CHECKSUM_OFFSET);

interface PointerExport extends SharedAllocation {
  /** The random id of the pool. */
  readonly generation: string;
}

function encodePointerExport({
  generation,
  slot,
  id,
  offset,
  byteLength,
}: PointerExport): Uint8Array {
  const bytes = Buffer.alloc(structs.CUmemPoolPtrExportData.byteLength);
  bytes.write(MAGIC, 0, 'latin1');
  bytes.write(generation, 8, 'hex');
  bytes.writeUInt32LE(slot, 16);
  bytes.writeUInt32LE(id, 20);
  bytes.writeBigUInt64LE(BigInt(offset), 24);
  bytes.writeBigUInt64LE(BigInt(byteLength), 32);
  bytes.set(checksum(bytes), CHECKSUM_OFFSET);
  return bytes;
}

/** Decodes export data. Undefined if it is invalid. */
function decodePointerExport(data: Uint8Array): PointerExport | undefined {
  const bytes = Buffer.from(data);
  const isOurs = bytes.toString('latin1', 0, 8) === MAGIC;
  if (!isOurs || !bytes.subarray(CHECKSUM_OFFSET, PAYLOAD_END).equals(checksum(bytes)))
    return undefined;
  if (bytes.subarray(PAYLOAD_END).some((byte) => byte !== 0)) return undefined;
  const payload = {
    generation: bytes.toString('hex', 8, 16),
    slot: bytes.readUInt32LE(16),
    id: bytes.readUInt32LE(20),
    offset: Number(bytes.readBigUInt64LE(24)),
    byteLength: Number(bytes.readBigUInt64LE(32)),
  };
  return Number.isSafeInteger(payload.offset + payload.byteLength) ? payload : undefined;
}

type PoolIpcFunctions = Pick<
  Driver,
  | 'cuMemPoolExportToShareableHandle'
  | 'cuMemPoolImportFromShareableHandle'
  | 'cuMemPoolExportPointer'
  | 'cuMemPoolImportPointer'
>;

export function poolIpcFunctions(
  { pools, imported, memory, contexts, host }: EmulatorParts,
  self: ProcessIdentity,
): PoolIpcFunctions {
  const exported = (out: number, bytes: Uint8Array): Status =>
    host.write(out, bytes) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  return {
    cuMemPoolExportToShareableHandle(out, handle, type, flags) {
      const pool = pools.get(handle);
      const isShared = pool && type !== 0 && (pool.handleTypes & type) === type;
      if (!isShared || flags !== 0 || !host.isWritable(out)) return CUDA_ERROR_INVALID_VALUE;
      const fd = pool.export();
      if (fd === undefined) return CUDA_ERROR_OUT_OF_MEMORY;
      host.setInt32(out, fd);
      return CUDA_SUCCESS;
    },
    cuMemPoolImportFromShareableHandle(out, fd, type, flags) {
      if (type !== CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR || flags !== 0)
        return CUDA_ERROR_INVALID_VALUE;
      const pool = imported.import(fd);
      if (!pool) return CUDA_ERROR_INVALID_VALUE;
      host.setUint64(out, pool.handle);
      return CUDA_SUCCESS;
    },
    cuMemPoolExportPointer(out, address) {
      const region = poolRegionAt(memory, address);
      // Only base addresses, only of pools that were exported, and only by the process that owns the pool.
      if (!region?.pool?.isExported) return CUDA_ERROR_INVALID_VALUE;
      const shared = region.pool.share(region);
      if (!shared) return CUDA_ERROR_OUT_OF_MEMORY;
      return exported(
        out,
        encodePointerExport({ ...shared, generation: region.pool.page.generation }),
      );
    },
    cuMemPoolImportPointer(out, handle, data) {
      if (contexts.status !== CUDA_SUCCESS) return CUDA_ERROR_INVALID_VALUE;
      if (imported.wasDestroyed(handle))
        throw new Error(
          'cuMemPoolImportPointer: the imported pool was destroyed: hardware would crash',
        );
      const pool = imported.get(handle);
      const bytes = host.read(data, structs.CUmemPoolPtrExportData.byteLength);
      const payload = bytes && decodePointerExport(bytes);
      if (!pool || payload?.generation !== pool.generation) return CUDA_ERROR_INVALID_VALUE;
      if (payload.byteLength > MAX_IMPORTED_ALLOCATION) crash(payload.byteLength);
      const region = pool.import(payload, self);
      if (!region) return CUDA_ERROR_INVALID_VALUE;
      host.setUint64(out, region.address);
      return CUDA_SUCCESS;
    },
  };
}
