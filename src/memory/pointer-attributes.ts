/**
 * What the driver knows about an allocation. All functions but the last need its context to be
 * current.
 */

import { BLOCK, OUT0, OUT1, readBytes, readHandle, readInt32, readSize } from '../../ffi/arena.ts';
import {
  CU_IPC_HANDLE_SIZE,
  CU_POINTER_ATTRIBUTE_BUFFER_ID,
  CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
} from '../../ffi/constants.ts';
import { cu } from '../../ffi/driver.ts';
import type { CUdeviceptr } from '../../ffi/types.ts';
import { check, cudaError } from '../check.ts';
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
  /** The driver's id, which distinguishes it from an earlier allocation at the same address. */
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
  return { base, byteLength, id: readSize(OUT0) };
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
