/**
 * What the driver knows about memory. The functions for an allocation need its context to be
 * current, those for a pointer need none.
 */

import {
  BLOCK,
  OUT0,
  OUT1,
  readBytes,
  readHandle,
  readInt32,
  readSize,
  writeUint64,
} from '../../ffi/arena.ts';
import {
  CU_IPC_HANDLE_SIZE,
  CU_MEMORYTYPE_HOST,
  CU_POINTER_ATTRIBUTE_BUFFER_ID,
  CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
  CU_POINTER_ATTRIBUTE_IS_MANAGED,
  CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
} from '../../ffi/constants.ts';
import { cu } from '../../ffi/driver.ts';
import type { CUdeviceptr } from '../../ffi/types.ts';
import { check, cudaError } from '../check.ts';
import { obfuscatedId } from '../crypto.ts';
import { initialize } from '../driver.ts';
import { IpcError } from '../errors.ts';
import { formatBytes } from '../validate.ts';

/**
 * The 64-byte legacy IPC handle of the whole allocation that contains `address`. @throws IpcError
 */
export function getLegacyHandle(address: CUdeviceptr, byteLength: number): Uint8Array {
  const status = cu.cuIpcGetMemHandle(BLOCK, address);
  if (status !== 0)
    throw new IpcError(
      'this memory has no legacy IPC handle',
      cudaError(status, 'cuIpcGetMemHandle', `exporting ${formatBytes(byteLength)}`),
    );
  return readBytes(BLOCK, CU_IPC_HANDLE_SIZE);
}

/** The start of the allocation that contains `address`. */
export function allocationBase(address: CUdeviceptr): CUdeviceptr {
  check(cu.cuMemGetAddressRange_v2(OUT0, OUT1, address), 'cuMemGetAddressRange_v2');
  return readHandle<CUdeviceptr>(OUT0);
}

/** What the driver knows about an allocation. */
export interface Allocation {
  readonly base: CUdeviceptr;
  readonly byteLength: number;
  /**
   * Distinguishes it from an earlier allocation at the same address: the driver's id, obfuscated for
   * other processes.
   */
  readonly id: number;
}

/** The allocation that contains `address`. */
export function allocationOf(address: CUdeviceptr): Allocation {
  check(cu.cuMemGetAddressRange_v2(OUT0, OUT1, address), 'cuMemGetAddressRange_v2');
  const base = readHandle<CUdeviceptr>(OUT0);
  const byteLength = readSize(OUT1);
  check(
    cu.cuPointerGetAttribute(OUT0, CU_POINTER_ATTRIBUTE_BUFFER_ID, base),
    'cuPointerGetAttribute',
  );
  return { base, byteLength, id: obfuscatedId(readSize(OUT0)) };
}

/**
 * The ordinal of the device that an address belongs to.
 *
 * @throws CudaError CUDA_ERROR_INVALID_VALUE for an address that the driver does not know
 */
export function deviceOfPointer(address: number): number {
  initialize();
  check(
    cu.cuPointerGetAttribute(OUT0, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, address as CUdeviceptr),
    'cuPointerGetAttribute',
    () => `looking for memory at address ${address}`,
  );
  return readInt32(OUT0);
}

/** Memory of a device, page-locked host memory, or managed memory. */
export type MemoryKind = 'device' | 'host' | 'managed';

/** The kind of memory at an address; `device` if the driver does not know the address. */
export function kindOfPointer(address: CUdeviceptr): MemoryKind {
  // The memory type of managed memory is that of the place where it is now.
  if (pointerAttribute(CU_POINTER_ATTRIBUTE_IS_MANAGED, address) === 1) return 'managed';
  const type = pointerAttribute(CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address);
  return type === CU_MEMORYTYPE_HOST ? 'host' : 'device';
}

/** The value of an attribute; undefined if the driver does not know it of this memory. */
export function pointerAttribute(attribute: number, address: CUdeviceptr): number | undefined {
  // Some attributes have one byte, some four, some eight.
  writeUint64(0, OUT0);
  const status = cu.cuPointerGetAttribute(OUT0, attribute, address);
  return status === 0 ? readHandle(OUT0) : undefined;
}
