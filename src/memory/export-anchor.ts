/** Memory that is shared for nothing else than to keep sharing quick. */
import { OUT0, readHandle, readInt32 } from '../../ffi/arena.ts';
import { CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR } from '../../ffi/constants.ts';
import { cu } from '../../ffi/driver.ts';
import { setCloseOnExec } from '../../ffi/libc.ts';
import type { CUmemGenericAllocationHandle } from '../../ffi/types.ts';
import type { Device } from '../device.ts';
import { granularityOf, writeProperties } from './virtual-properties.ts';

const anchored = new WeakSet<Device>();

/**
 * Keeps a piece of the device's memory (2 MiB) shared until the process ends. The kernel's driver
 * sets a device up for sharing with the first object of it that is shared on the machine, and takes
 * that down with the last: 0.5 ms each on an H200, beside another shared object 0.02 and 0.03.
 * Where there is no memory for it, sharing is slower, and works.
 */
export function anchorExports(device: Device): void {
  if (anchored.has(device)) return;
  anchored.add(device);
  const byteLength = granularityOf(device, true);
  if (cu.cuMemCreate(OUT0, byteLength, writeProperties(device, true), 0) !== 0) return;
  const memory = readHandle<CUmemGenericAllocationHandle>(OUT0, cu.cuMemRelease);
  const exported = cu.cuMemExportToShareableHandle(
    OUT0,
    memory,
    CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
    0,
  );
  // The descriptor, which no child inherits, holds the memory.
  cu.cuMemRelease(memory);
  if (exported === 0) setCloseOnExec(readInt32(OUT0));
}
