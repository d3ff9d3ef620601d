/** Pinned host memory: allocated by the driver, or registered. */
import type { Driver } from '../functions.ts';
import { CUresult } from '../results.ts';
import {
  fillUninitialized,
  mapSharedAnonymous,
  roundUp,
  unmapSharedAnonymous,
} from './address-space.ts';
import type { Contexts } from './context.ts';
import type { HostMemory } from './host-memory.ts';
import { type Memory, type Region, WRITE } from './memory.ts';
import { isMappedBy } from './process-mappings.ts';
import type { StreamQueues } from './stream-queues.ts';

const {
  CUDA_SUCCESS,
  CUDA_ERROR_INVALID_VALUE,
  CUDA_ERROR_OUT_OF_MEMORY,
  CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED,
  CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED,
} = CUresult;

// PORTABLE, DEVICEMAP, IOMEMORY, READ_ONLY
const REGISTER_FLAGS = 0xf;
// PORTABLE, DEVICEMAP, WRITECOMBINED
const ALLOC_FLAGS = 0x7;
const READ_ONLY = 0x8;
// All pinned memory has it, even if not requested.
const DEVICEMAP = 0x2;
const PAGE = 4096;

/** Paths of files in memory, whose pages can be pinned. */
const MEMORY_FILE = /^(?:$|\[|\/memfd:|\/dev\/)/;

/** Whether devices can access all of a range, and write to it unless it is only for reading: not to a file on a disk. */
const isAccessible = (address: number, byteLength: number, isReadOnly: boolean): boolean =>
  isMappedBy(
    address,
    byteLength,
    ({ isReadable, isWritable, isPrivate, path }) =>
      isReadable && (isReadOnly || (isWritable && (isPrivate || MEMORY_FILE.test(path)))),
  );

export interface PinnedAllocation extends Region {
  readonly kind: 'host';
  readonly flags: number;
}

export type PinnedFunctions = Pick<
  Driver,
  | 'cuMemHostAlloc'
  | 'cuMemFreeHost'
  | 'cuMemHostGetFlags'
  | 'cuMemHostRegister_v2'
  | 'cuMemHostUnregister'
  | 'cuMemHostGetDevicePointer_v2'
>;

export const pinnedFunctions = (
  memory: Memory,
  contexts: Contexts,
  queues: StreamQueues,
  host: HostMemory,
): PinnedFunctions => {
  const allocationAt = (address: number): PinnedAllocation | undefined => {
    const region = memory.regions.at(address);
    return region?.kind === 'host' ? (region as PinnedAllocation) : undefined;
  };
  const free = (allocation: PinnedAllocation): void => {
    memory.regions.remove(allocation);
    unmapSharedAnonymous(allocation.address, allocation.byteLength);
  };
  contexts.onEnd((context) => {
    for (const region of [...memory.regions])
      if (region.kind === 'host' && region.context === context) free(region as PinnedAllocation);
  });
  return {
    cuMemHostAlloc(out, requestedByteLength, flags) {
      if (!(requestedByteLength >= 0) || (flags & ~ALLOC_FLAGS) !== 0)
        return CUDA_ERROR_INVALID_VALUE;
      if (requestedByteLength === 0) {
        host.setUint64(out, 0);
        return CUDA_SUCCESS;
      }
      const byteLength = roundUp(requestedByteLength, PAGE);
      const address = mapSharedAnonymous(byteLength);
      if (address === undefined) return CUDA_ERROR_OUT_OF_MEMORY;
      fillUninitialized(address, byteLength);
      const context = contexts.current;
      const allocation: PinnedAllocation = {
        kind: 'host',
        address,
        byteLength,
        requestedByteLength,
        flags,
        context,
        device: context.device,
        bufferId: memory.nextBufferId(),
        handleTypes: 0,
        poolHandle: 0,
        access: () => WRITE,
      };
      memory.regions.add(allocation);
      host.setUint64(out, address);
      return CUDA_SUCCESS;
    },
    cuMemFreeHost(address) {
      const allocation = allocationAt(address);
      if (allocation?.address !== address) return CUDA_ERROR_INVALID_VALUE;
      const { context } = allocation;
      if (context) queues.drain(context);
      if (context?.failure) return context.failure;
      free(allocation);
      return CUDA_SUCCESS;
    },
    cuMemHostGetFlags(out, address) {
      const found = allocationAt(address) ?? memory.registrations.at(address);
      if (!found) return CUDA_ERROR_INVALID_VALUE;
      host.setInt32(out, found.flags | DEVICEMAP);
      return CUDA_SUCCESS;
    },
    cuMemHostRegister_v2(address, byteLength, flags) {
      if (address === 0 || !(byteLength > 0) || (flags & ~REGISTER_FLAGS) !== 0)
        return CUDA_ERROR_INVALID_VALUE;
      // Registered ranges may share a page, but no byte.
      if (memory.registrations.overlaps(address, byteLength))
        return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
      const isReadOnly = (flags & READ_ONLY) !== 0;
      if (memory.isKnown(address) || !isAccessible(address, byteLength, isReadOnly))
        return CUDA_ERROR_INVALID_VALUE;
      // A mapping may be longer than its file.
      if (!host.isReadable(address + byteLength - 1)) return CUDA_ERROR_INVALID_VALUE;
      const bufferId = memory.nextBufferId();
      const context = contexts.current;
      memory.registrations.add({
        address,
        byteLength,
        flags,
        isReadOnly,
        context,
        bufferId,
      });
      return CUDA_SUCCESS;
    },
    cuMemHostUnregister(address) {
      if (allocationAt(address)) return CUDA_ERROR_INVALID_VALUE;
      const registration = memory.registrations.at(address);
      if (!registration) return CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
      if (registration.address !== address) return CUDA_ERROR_INVALID_VALUE;
      const { context } = registration;
      queues.drain(context);
      if (context.failure !== CUDA_SUCCESS) return context.failure;
      memory.registrations.remove(registration);
      return CUDA_SUCCESS;
    },
    cuMemHostGetDevicePointer_v2(out, address, flags) {
      if (flags !== 0 || !(memory.registrations.at(address) ?? allocationAt(address)))
        return CUDA_ERROR_INVALID_VALUE;
      host.setUint64(out, address);
      return CUDA_SUCCESS;
    },
  };
};
