/** Allocating, freeing and asking about memory; host memory made known to the driver. */
import {
  CU_MEMORYTYPE_DEVICE,
  CU_MEMORYTYPE_HOST,
  CU_POINTER_ATTRIBUTE_BUFFER_ID,
  CU_POINTER_ATTRIBUTE_CONTEXT,
  CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
  CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE,
  CU_POINTER_ATTRIBUTE_IS_MANAGED,
  CU_POINTER_ATTRIBUTE_MAPPED,
  CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
  CU_POINTER_ATTRIBUTE_RANGE_SIZE,
  CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
} from '../constants.ts';
import type { Driver } from '../functions.ts';
import { CUresult } from '../results.ts';
import type { Context, Contexts } from './context.ts';
import type { HostMemory } from './host.ts';
import type { Memory } from './memory.ts';
import type { Queues } from './queues.ts';
import type { Range } from './ranges.ts';

const {
  CUDA_SUCCESS,
  CUDA_ERROR_INVALID_VALUE,
  CUDA_ERROR_OUT_OF_MEMORY,
  CUDA_ERROR_NOT_FOUND,
  CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED,
  CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED,
} = CUresult;

const CU_POINTER_ATTRIBUTE_DEVICE_POINTER = 3;
const CU_POINTER_ATTRIBUTE_HOST_POINTER = 4;
const CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES = 14;

/** What the driver tells of a pointer. */
interface Pointer extends Range {
  readonly context: Context;
  readonly bufferId: number;
  readonly type: number;
  readonly isExportable: boolean;
}

function pointerAt(memory: Memory, address: number): Pointer | undefined {
  const own = memory.allocationAt(address);
  const type = CU_MEMORYTYPE_DEVICE;
  if (own) return { ...own, context: own.block.context, type, isExportable: true };
  const opened = memory.imports.at(address);
  if (opened) return { ...opened, type, isExportable: false };
  const registered = memory.registrations.at(address);
  return registered && { ...registered, type: CU_MEMORYTYPE_HOST, isExportable: false };
}

/** An attribute's value and its width in bytes; undefined where the pointer has none such. */
function attributeOf(
  pointer: Pointer,
  address: number,
  attribute: number,
): readonly [value: number, byteLength: 4 | 8] | undefined {
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
      return [pointer.context.handle, 8];
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
      return [pointer.type, 4];
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
      return [address, 8];
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
      return pointer.type === CU_MEMORYTYPE_HOST ? [address, 8] : undefined;
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
      return [pointer.bufferId, 8];
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
      return [0, 4];
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
      return [pointer.context.device, 4];
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
      return [pointer.isExportable ? 1 : 0, 4];
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
      return [pointer.address, 8];
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
      return [pointer.byteLength, 8];
    case CU_POINTER_ATTRIBUTE_MAPPED:
      return [1, 4];
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
      return [0, 8];
    default:
      return undefined;
  }
}

export type AllocationFunctions = Pick<
  Driver,
  | 'cuMemGetInfo_v2'
  | 'cuMemAlloc_v2'
  | 'cuMemFree_v2'
  | 'cuMemGetAddressRange_v2'
  | 'cuPointerGetAttribute'
>;

export const allocationFunctions = (
  memory: Memory,
  contexts: Contexts,
  queues: Queues,
  host: HostMemory,
): AllocationFunctions => ({
  cuMemGetInfo_v2(free, total) {
    host.setUint64(free, memory.freeBytes(contexts.current.device));
    host.setUint64(total, memory.totalBytes);
    return CUDA_SUCCESS;
  },
  cuMemAlloc_v2(out, byteLength) {
    if (!(byteLength > 0)) return CUDA_ERROR_INVALID_VALUE;
    const allocation = memory.allocate(contexts.current, byteLength);
    if (!allocation) return CUDA_ERROR_OUT_OF_MEMORY;
    host.setUint64(out, allocation.address);
    return CUDA_SUCCESS;
  },
  cuMemFree_v2(address) {
    if (address === 0) return CUDA_SUCCESS;
    const allocation = memory.allocationAt(address);
    if (allocation?.address !== address) return CUDA_ERROR_INVALID_VALUE;
    queues.drain(allocation.block.context);
    memory.free(allocation);
    return CUDA_SUCCESS;
  },
  cuMemGetAddressRange_v2(base, byteLength, address) {
    const pointer = pointerAt(memory, address);
    if (!pointer) return CUDA_ERROR_NOT_FOUND;
    if (base !== 0) host.setUint64(base, pointer.address);
    if (byteLength !== 0) host.setUint64(byteLength, pointer.byteLength);
    return CUDA_SUCCESS;
  },
  cuPointerGetAttribute(out, attribute, address) {
    const pointer = pointerAt(memory, address);
    const found = pointer && attributeOf(pointer, address, attribute);
    if (!found) return CUDA_ERROR_INVALID_VALUE;
    const [value, byteLength] = found;
    const done = byteLength === 8 ? host.setUint64(out, value) : host.setInt32(out, value);
    return done ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  },
});

export type RegistrationFunctions = Pick<
  Driver,
  'cuMemHostRegister_v2' | 'cuMemHostUnregister' | 'cuMemHostGetDevicePointer_v2'
>;

// PORTABLE, DEVICEMAP, IOMEMORY, READ_ONLY
const REGISTER_FLAGS = 0xf;
const PAGE = 4096;

export const registrationFunctions = (
  memory: Memory,
  contexts: Contexts,
  queues: Queues,
  host: HostMemory,
): RegistrationFunctions => {
  const isMapped = (address: number, byteLength: number): boolean => {
    for (let at = address; at < address + byteLength; at += PAGE)
      if (!host.isReadable(at)) return false;
    return host.isReadable(address + byteLength - 1);
  };
  return {
    cuMemHostRegister_v2(address, byteLength, flags) {
      if (address === 0 || !(byteLength > 0) || (flags & ~REGISTER_FLAGS) !== 0)
        return CUDA_ERROR_INVALID_VALUE;
      if (memory.registrations.overlaps(address, byteLength))
        return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
      if (memory.isReachable(address, 1) || !isMapped(address, byteLength))
        return CUDA_ERROR_INVALID_VALUE;
      const bufferId = memory.nextBufferId();
      memory.registrations.add({ address, byteLength, context: contexts.current, bufferId });
      return CUDA_SUCCESS;
    },
    cuMemHostUnregister(address) {
      const registration = memory.registrations.at(address);
      if (registration?.address !== address) return CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
      queues.drain(registration.context);
      memory.registrations.remove(registration);
      return CUDA_SUCCESS;
    },
    cuMemHostGetDevicePointer_v2(out, address, flags) {
      if (flags !== 0 || !memory.registrations.at(address)) return CUDA_ERROR_INVALID_VALUE;
      host.setUint64(out, address);
      return CUDA_SUCCESS;
    },
  };
};
