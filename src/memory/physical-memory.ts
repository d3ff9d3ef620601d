/** Properties of physical memory, and the allocation that keeps exports fast. */
import { OUT0, readHandle, readInt32, readSize, writeStruct } from '../../ffi/arena.ts';
import {
  CU_MEM_ALLOC_GRANULARITY_MINIMUM,
  CU_MEM_ALLOCATION_TYPE_PINNED,
  CU_MEM_HANDLE_TYPE_NONE,
  CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
  CU_MEM_LOCATION_TYPE_DEVICE,
} from '../../ffi/constants.ts';
import { cu } from '../../ffi/driver.ts';
import { setCloseOnExec } from '../../ffi/linux/libc.ts';
import type { Address, CUmemGenericAllocationHandle } from '../../ffi/types.ts';
import { check } from '../check.ts';
import type { Device } from '../device.ts';

/** Writes the properties of device memory to create. Returns the address of the struct. */
export const writeAllocationProperties = (device: Device, shareable: boolean): Address =>
  writeStruct('CUmemAllocationProp', {
    type: CU_MEM_ALLOCATION_TYPE_PINNED,
    requestedHandleTypes: shareable
      ? CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
      : CU_MEM_HANDLE_TYPE_NONE,
    'location.type': CU_MEM_LOCATION_TYPE_DEVICE,
    'location.id': device.handle,
  });

/** The granularity of a device's virtual memory: all sizes are multiples of it. */
export function allocationGranularity(device: Device, shareable: boolean): number {
  check(
    cu.cuMemGetAllocationGranularity(
      OUT0,
      writeAllocationProperties(device, shareable),
      CU_MEM_ALLOC_GRANULARITY_MINIMUM,
    ),
    'cuMemGetAllocationGranularity',
  );
  return readSize(OUT0);
}

const devicesWithKeepalive = new WeakSet<Device>();

/**
 * Keeps 2 MiB of the device's memory exported until the process exits. The kernel driver sets up
 * sharing with a device's first exported object on the machine, and tears it down with the last.
 * Each takes 0.5 ms on an H200; with another exported object alive, 0.02 and 0.03 ms. Without
 * memory for this, sharing still works, but is slower.
 */
export function ensureKeepaliveAllocation(device: Device): void {
  if (devicesWithKeepalive.has(device)) return;
  devicesWithKeepalive.add(device);
  const byteLength = allocationGranularity(device, true);
  if (cu.cuMemCreate(OUT0, byteLength, writeAllocationProperties(device, true), 0) !== 0) return;
  const memory = readHandle<CUmemGenericAllocationHandle>(OUT0, cu.cuMemRelease);
  const exported = cu.cuMemExportToShareableHandle(
    OUT0,
    memory,
    CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
    0,
  );
  // The descriptor, which child processes do not inherit, keeps the memory alive.
  cu.cuMemRelease(memory);
  if (exported === 0) setCloseOnExec(readInt32(OUT0));
}
