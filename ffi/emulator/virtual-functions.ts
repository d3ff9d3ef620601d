/** The functions of virtual memory, over its state. */
import {
  CU_MEM_ACCESS_FLAGS_PROT_NONE,
  CU_MEM_ACCESS_FLAGS_PROT_READ,
  CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
  CU_MEM_ALLOC_GRANULARITY_RECOMMENDED,
  CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
} from '../constants.ts';
import type { Driver } from '../functions.ts';
import { CUresult } from '../results.ts';
import { structs } from '../structs.ts';
import type { Contexts } from './context.ts';
import type { HostMemory } from './host.ts';
import { locationStatus } from './location.ts';
import { GRANULARITY } from './space.ts';
import type { VirtualMemory } from './virtual.ts';

const {
  CUDA_SUCCESS,
  CUDA_ERROR_INVALID_VALUE,
  CUDA_ERROR_OUT_OF_MEMORY,
  CUDA_ERROR_INVALID_DEVICE,
} = CUresult;

const RIGHTS: readonly number[] = [
  CU_MEM_ACCESS_FLAGS_PROT_NONE,
  CU_MEM_ACCESS_FLAGS_PROT_READ,
  CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
];

type VirtualFunctions = Pick<
  Driver,
  | 'cuMemGetAllocationGranularity'
  | 'cuMemAddressReserve'
  | 'cuMemAddressFree'
  | 'cuMemCreate'
  | 'cuMemRelease'
  | 'cuMemMap'
  | 'cuMemUnmap'
  | 'cuMemSetAccess'
  | 'cuMemGetAccess'
  | 'cuMemExportToShareableHandle'
  | 'cuMemImportFromShareableHandle'
>;

export function virtualFunctions(
  memory: VirtualMemory,
  contexts: Contexts,
  host: HostMemory,
): VirtualFunctions {
  return {
    cuMemGetAllocationGranularity(out, address, option) {
      const properties = host.readStruct('CUmemAllocationProp', address);
      if (!properties || option > CU_MEM_ALLOC_GRANULARITY_RECOMMENDED)
        return CUDA_ERROR_INVALID_VALUE;
      const status = memory.propertiesStatus(properties);
      if (status === CUDA_SUCCESS) host.setUint64(out, GRANULARITY);
      return status;
    },
    cuMemAddressReserve(out, byteLength, alignment, wanted, flags) {
      if (flags !== 0) return CUDA_ERROR_INVALID_VALUE;
      const reserved = memory.reserve(byteLength, alignment, wanted);
      if (typeof reserved === 'number') return reserved;
      host.setUint64(out, reserved.address);
      return CUDA_SUCCESS;
    },
    cuMemAddressFree: (address, byteLength) => memory.unreserve(address, byteLength),
    cuMemCreate(out, byteLength, address, flags) {
      const properties = host.readStruct('CUmemAllocationProp', address);
      if (!properties || flags !== 0) return CUDA_ERROR_INVALID_VALUE;
      const created = memory.create(byteLength, properties);
      if (typeof created === 'number') return created;
      host.setUint64(out, created.handle);
      return CUDA_SUCCESS;
    },
    cuMemRelease: (handle) => memory.release(handle),
    cuMemMap(address, byteLength, offset, handle, flags) {
      const physical = memory.get(handle);
      if (!physical || offset !== 0 || flags !== 0) return CUDA_ERROR_INVALID_VALUE;
      return memory.map(address, byteLength, physical);
    },
    cuMemUnmap: (address, byteLength) => memory.unmap(address, byteLength),
    cuMemSetAccess(address, byteLength, descriptors, count) {
      if (!(count > 0)) return CUDA_ERROR_INVALID_VALUE;
      const size = structs.CUmemAccessDesc.byteLength;
      for (let at = 0; at < count; at += 1) {
        const given = host.readStruct('CUmemAccessDesc', descriptors + at * size);
        if (!given || !RIGHTS.includes(given.flags)) return CUDA_ERROR_INVALID_VALUE;
        const located = locationStatus(contexts, given['location.type'], given['location.id']);
        if (located === CUDA_ERROR_INVALID_DEVICE) return CUDA_ERROR_INVALID_VALUE;
        if (located !== CUDA_SUCCESS) return located;
        const status = memory.setAccess(address, byteLength, given['location.id'], given.flags);
        if (status !== CUDA_SUCCESS) return status;
      }
      return CUDA_SUCCESS;
    },
    cuMemGetAccess(out, location, address) {
      const place = host.readStruct('CUmemLocation', location);
      const mapping = memory.mappingAt(address);
      if (!place || !mapping) return CUDA_ERROR_INVALID_VALUE;
      const status = locationStatus(contexts, place.type, place.id);
      if (status === CUDA_SUCCESS) host.setUint64(out, mapping.access(place.id));
      return status;
    },
    cuMemExportToShareableHandle(out, handle, type, flags) {
      const physical = memory.get(handle);
      // What was imported is its maker's to share.
      const isShared = physical?.isOwn && type !== 0 && (physical.handleTypes & type) === type;
      if (!isShared || flags !== 0 || !host.isWritable(out)) return CUDA_ERROR_INVALID_VALUE;
      const fd = memory.export(physical);
      if (fd === undefined) return CUDA_ERROR_OUT_OF_MEMORY;
      host.setInt32(out, fd);
      return CUDA_SUCCESS;
    },
    cuMemImportFromShareableHandle(out, fd, type) {
      if (type !== CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return CUDA_ERROR_INVALID_VALUE;
      const imported = memory.import(fd, type);
      if (!imported) return CUDA_ERROR_INVALID_VALUE;
      host.setUint64(out, imported.handle);
      return CUDA_SUCCESS;
    },
  };
}
