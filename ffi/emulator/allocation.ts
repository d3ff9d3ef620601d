/** Allocating and freeing device memory; pointer attributes of all memory. */
import {
  CU_MEMORYTYPE_DEVICE,
  CU_MEMORYTYPE_HOST,
  CU_POINTER_ATTRIBUTE_ACCESS_FLAGS,
  CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES,
  CU_POINTER_ATTRIBUTE_BUFFER_ID,
  CU_POINTER_ATTRIBUTE_CONTEXT,
  CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
  CU_POINTER_ATTRIBUTE_DEVICE_POINTER,
  CU_POINTER_ATTRIBUTE_HOST_POINTER,
  CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE,
  CU_POINTER_ATTRIBUTE_IS_MANAGED,
  CU_POINTER_ATTRIBUTE_MAPPED,
  CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
  CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE,
  CU_POINTER_ATTRIBUTE_RANGE_SIZE,
  CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
} from '../constants.ts';
import type { Driver } from '../functions.ts';
import { CUresult, type CUresult as Status } from '../results.ts';
import { roundUp } from './address-space.ts';
import type { Context, Contexts } from './context.ts';
import type { HostMemory } from './host-memory.ts';
import { type Memory, WRITE } from './memory.ts';
import type { Range } from './ranges.ts';
import type { StreamQueues } from './stream-queues.ts';

const { CUDA_SUCCESS, CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_OUT_OF_MEMORY, CUDA_ERROR_NOT_FOUND } =
  CUresult;

// The alignment of pitched rows, and the allowed element sizes.
const PITCH_ALIGNMENT = 512;
const ELEMENT_SIZES: readonly number[] = [4, 8, 16];

/** What the driver knows about a pointer. */
interface PointerInfo extends Range {
  /** The range that the pointer attributes report. */
  readonly range: Range;
  readonly device: number;
  readonly contextHandle: number;
  readonly bufferId: number;
  readonly type: number;
  /** Whether the CPU can access it at the same address. */
  readonly isHost: boolean;
  readonly isManaged: boolean;
  readonly isExportable: boolean;
  readonly handleTypes: number;
  readonly poolHandle: number;
  access(device: number): number;
}

const PLAIN_DEVICE_MEMORY = {
  type: CU_MEMORYTYPE_DEVICE,
  isHost: false,
  isManaged: false,
  isExportable: false,
  handleTypes: 0,
  poolHandle: 0,
  access: () => WRITE,
};

const ownerFields = (range: Range & { readonly bufferId: number }, context: Context) => ({
  range,
  address: range.address,
  byteLength: range.byteLength,
  bufferId: range.bufferId,
  device: context.device,
  contextHandle: context.handle,
});

function pointerAt(memory: Memory, contexts: Contexts, address: number): PointerInfo | undefined {
  const own = memory.blocks.allocationAt(address);
  if (own)
    return { ...PLAIN_DEVICE_MEMORY, ...ownerFields(own, own.block.context), isExportable: true };
  const opened = memory.imports.at(address);
  if (opened) return { ...PLAIN_DEVICE_MEMORY, ...ownerFields(opened, opened.context) };
  const registered = memory.registrations.at(address);
  if (registered)
    return {
      ...PLAIN_DEVICE_MEMORY,
      ...ownerFields(registered, registered.context),
      type: CU_MEMORYTYPE_HOST,
      isHost: true,
    };
  const region = memory.regions.at(address);
  if (!region) return undefined;
  const { kind, handleTypes, poolHandle, requestedByteLength } = region;
  const context = region.context ?? contexts.primary(region.device);
  return {
    ...ownerFields(region, context),
    range: region.reservation ?? { address: region.address, byteLength: requestedByteLength },
    byteLength: requestedByteLength,
    contextHandle: kind === 'pool' ? 0 : context.handle,
    type: kind === 'host' ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE,
    isHost: kind === 'host' || kind === 'managed',
    isManaged: kind === 'managed',
    isExportable: false,
    handleTypes,
    poolHandle,
    access: (device) => region.access(device),
  };
}

/**
 * The value of an attribute and its width in bytes. Undefined if the pointer has no such attribute.
 */
function attributeOf(
  pointer: PointerInfo,
  address: number,
  attribute: number,
  device: number,
): readonly [value: number, byteLength: 4 | 8] | undefined {
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
      return [pointer.contextHandle, 8];
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
      return [pointer.type, 4];
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
      return [address, 8];
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
      return pointer.isHost ? [address, 8] : undefined;
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
      return [pointer.bufferId, 8];
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
      return [pointer.isManaged ? 1 : 0, 4];
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
      return [pointer.device, 4];
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
      return [pointer.isExportable ? 1 : 0, 4];
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
      return [pointer.range.address, 8];
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
      return [pointer.range.byteLength, 8];
    case CU_POINTER_ATTRIBUTE_MAPPED:
      return [1, 4];
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
      return [pointer.handleTypes, 8];
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
      return [pointer.access(device), 4];
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
      return [pointer.poolHandle, 8];
    default:
      return undefined;
  }
}

export type AllocationFunctions = Pick<
  Driver,
  | 'cuMemGetInfo_v2'
  | 'cuMemAlloc_v2'
  | 'cuMemAllocPitch_v2'
  | 'cuMemFree_v2'
  | 'cuMemGetAddressRange_v2'
  | 'cuPointerGetAttribute'
>;

export const allocationFunctions = (
  memory: Memory,
  contexts: Contexts,
  queues: StreamQueues,
  host: HostMemory,
  /**
   * Frees memory of other kinds that cuMemFree accepts. Undefined if the address is in none of
   * them.
   */
  freeOther: (address: number) => Status | undefined,
): AllocationFunctions => ({
  cuMemGetInfo_v2(free, total) {
    host.setUint64(free, memory.freeBytes(contexts.current.device));
    host.setUint64(total, memory.totalBytes);
    return CUDA_SUCCESS;
  },
  cuMemAlloc_v2(out, byteLength) {
    if (!(byteLength > 0)) return CUDA_ERROR_INVALID_VALUE;
    const allocation = memory.blocks.allocate(contexts.current, byteLength);
    if (!allocation) return CUDA_ERROR_OUT_OF_MEMORY;
    host.setUint64(out, allocation.address);
    return CUDA_SUCCESS;
  },
  cuMemAllocPitch_v2(out, pitchOut, width, height, elementByteLength) {
    if (!(width > 0) || !(height > 0) || !ELEMENT_SIZES.includes(elementByteLength))
      return CUDA_ERROR_INVALID_VALUE;
    const pitch = roundUp(width, PITCH_ALIGNMENT);
    const allocation = memory.blocks.allocate(contexts.current, pitch * height);
    if (!allocation) return CUDA_ERROR_OUT_OF_MEMORY;
    host.setUint64(out, allocation.address);
    host.setUint64(pitchOut, pitch);
    return CUDA_SUCCESS;
  },
  cuMemFree_v2(address) {
    if (address === 0) return CUDA_SUCCESS;
    const ofKind = freeOther(address);
    if (ofKind !== undefined) return ofKind;
    const allocation = memory.blocks.allocationAt(address);
    if (allocation?.address !== address) return CUDA_ERROR_INVALID_VALUE;
    const { context } = allocation.block;
    queues.drain(context);
    if (context.failure !== CUDA_SUCCESS) return context.failure;
    memory.blocks.free(allocation);
    return CUDA_SUCCESS;
  },
  cuMemGetAddressRange_v2(base, byteLength, address) {
    const pointer = pointerAt(memory, contexts, address);
    if (!pointer) return CUDA_ERROR_NOT_FOUND;
    if (base !== 0) host.setUint64(base, pointer.address);
    if (byteLength !== 0) host.setUint64(byteLength, pointer.byteLength);
    return CUDA_SUCCESS;
  },
  cuPointerGetAttribute(out, attribute, address) {
    const pointer = pointerAt(memory, contexts, address);
    const found =
      pointer && attributeOf(pointer, address, attribute, contexts.top?.device ?? pointer.device);
    if (!found) return CUDA_ERROR_INVALID_VALUE;
    const [value, byteLength] = found;
    const done = byteLength === 8 ? host.setUint64(out, value) : host.setInt32(out, value);
    return done ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  },
});
