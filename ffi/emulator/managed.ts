/** Managed memory: one address for the CPU and all devices. */
import {
  CU_DEVICE_CPU,
  CU_MEM_ADVISE_SET_ACCESSED_BY,
  CU_MEM_ADVISE_SET_PREFERRED_LOCATION,
  CU_MEM_ADVISE_SET_READ_MOSTLY,
  CU_MEM_ADVISE_UNSET_ACCESSED_BY,
  CU_MEM_ATTACH_GLOBAL,
  CU_MEM_ATTACH_HOST,
  CU_MEM_ATTACH_SINGLE,
} from '../constants.ts';
import type { Driver } from '../functions.ts';
import { CUresult, type CUresult as Status } from '../results.ts';
import {
  fillUninitialized,
  GRANULARITY,
  mapSharedAnonymous,
  roundUp,
  unmapSharedAnonymous,
} from './address-space.ts';
import type { Context, Contexts } from './context.ts';
import type { HostMemory } from './host-memory.ts';
import { type Memory, type Region, WRITE } from './memory.ts';
import type { Settings } from './settings.ts';
import type { StreamQueues } from './stream-queues.ts';

const {
  CUDA_SUCCESS,
  CUDA_ERROR_INVALID_VALUE,
  CUDA_ERROR_OUT_OF_MEMORY,
  CUDA_ERROR_INVALID_DEVICE,
  CUDA_ERROR_INVALID_HANDLE,
  CUDA_ERROR_NOT_SUPPORTED,
} = CUresult;

/** An allocation of managed memory. */
export interface ManagedAllocation extends Region {
  readonly kind: 'managed';
  /** The device that it was last prefetched to, and whose memory it uses. -1 for the CPU. */
  residentDevice: number;
  /** Whether it is a variable of a module, which only unloading the module frees. */
  readonly isVariable: boolean;
  /** The mapping that it is in. */
  readonly block: Block;
}

/** A mapping: it ends with the last allocation in it. */
interface Block {
  readonly address: number;
  readonly byteLength: number;
  allocationCount: number;
}

/** The distance of the variables of a module, which share one block, as measured on an H200. */
const VARIABLE_ALIGNMENT = 512;

type ManagedFunctions = Pick<
  Driver,
  'cuMemAllocManaged' | 'cuMemPrefetchAsync' | 'cuMemAdvise' | 'cuStreamAttachMemAsync'
>;

export class ManagedMemory {
  readonly #memory: Memory;
  readonly #contexts: Contexts;
  readonly #queues: StreamQueues;
  readonly #isSupported: boolean;

  constructor(memory: Memory, contexts: Contexts, queues: StreamQueues, settings: Settings) {
    this.#memory = memory;
    this.#contexts = contexts;
    this.#queues = queues;
    this.#isSupported = settings.supports('managedMemory');
    memory.onUsage((device) => this.#usedBytes(device));
    contexts.onEnd((context) => {
      for (const allocation of this.#all())
        if (allocation.context === context) this.#free(allocation);
    });
  }

  /** Whether devices have managed memory. */
  get isSupported(): boolean {
    return this.#isSupported;
  }

  /** Allocates managed memory of a context. Undefined if the system refuses. */
  #allocate(context: Context, requestedByteLength: number): ManagedAllocation | undefined {
    const block = mapBlock(requestedByteLength);
    return (
      block &&
      this.#add(context, block, block.address, requestedByteLength, block.byteLength, false)
    );
  }

  /** Allocates the variables of a module in one block. Undefined if the system refuses. */
  allocateVariables(
    context: Context,
    byteLengths: readonly number[],
  ): readonly ManagedAllocation[] | undefined {
    if (byteLengths.length === 0) return [];
    const extents = byteLengths.map((byteLength) =>
      roundUp(Math.max(1, byteLength), VARIABLE_ALIGNMENT),
    );
    const block = mapBlock(extents.reduce((sum, extent) => sum + extent, 0));
    if (!block) return undefined;
    let { address } = block;
    return extents.map((extent, at) => {
      const byteLength = byteLengths[at] as number;
      const variable = this.#add(context, block, address, byteLength, extent, true);
      address += extent;
      return variable;
    });
  }

  #add(
    context: Context,
    block: Block,
    address: number,
    requestedByteLength: number,
    byteLength: number,
    isVariable: boolean,
  ): ManagedAllocation {
    const allocation: ManagedAllocation = {
      kind: 'managed',
      address,
      byteLength,
      requestedByteLength,
      context,
      device: context.device,
      bufferId: this.#memory.nextBufferId(),
      handleTypes: 0,
      poolHandle: 0,
      residentDevice: CU_DEVICE_CPU,
      isVariable,
      block,
      access: () => WRITE,
    };
    block.allocationCount += 1;
    this.#memory.regions.add(allocation);
    return allocation;
  }

  /** Frees a variable of a module that is unloaded. */
  freeVariable(allocation: ManagedAllocation): void {
    this.#free(allocation);
  }

  /** Frees managed memory. Undefined if the address is not in managed memory. */
  free(address: number): Status | undefined {
    const allocation = this.#at(address);
    if (!allocation) return undefined;
    if (allocation.address !== address || allocation.isVariable) return CUDA_ERROR_INVALID_VALUE;
    const { context } = allocation;
    if (context) this.#queues.drain(context);
    if (context?.failure) return context.failure;
    this.#free(allocation);
    return CUDA_SUCCESS;
  }

  functions(host: HostMemory): ManagedFunctions {
    return {
      cuMemAllocManaged: (out, requestedByteLength, flags) => {
        if (!this.#isSupported) return CUDA_ERROR_NOT_SUPPORTED;
        if (
          !(requestedByteLength > 0) ||
          (flags !== CU_MEM_ATTACH_GLOBAL && flags !== CU_MEM_ATTACH_HOST)
        )
          return CUDA_ERROR_INVALID_VALUE;
        const made = this.#allocate(this.#contexts.current, requestedByteLength);
        if (!made) return CUDA_ERROR_OUT_OF_MEMORY;
        fillUninitialized(made.address, requestedByteLength);
        host.setUint64(out, made.address);
        return CUDA_SUCCESS;
      },
      cuMemPrefetchAsync: (address, byteLength, device, handle) => {
        const stream = this.#queues.get(handle);
        if (!stream) return CUDA_ERROR_INVALID_HANDLE;
        const allocation = this.#containing(address, byteLength);
        if (!allocation) return CUDA_ERROR_INVALID_VALUE;
        if (!this.#isLocation(device)) return CUDA_ERROR_INVALID_DEVICE;
        this.#queues.enqueue(stream, () => {
          // A prefetch is a hint: memory that does not fit stays where it is.
          if (device === CU_DEVICE_CPU || this.#memory.hasFree(device, allocation.byteLength))
            allocation.residentDevice = device;
          return true;
        });
        return CUDA_SUCCESS;
      },
      cuMemAdvise: (address, byteLength, advice, device) => {
        const isAdvice =
          advice >= CU_MEM_ADVISE_SET_READ_MOSTLY && advice <= CU_MEM_ADVISE_UNSET_ACCESSED_BY;
        if (!isAdvice || !this.#containing(address, byteLength)) return CUDA_ERROR_INVALID_VALUE;
        const namesPlace =
          advice === CU_MEM_ADVISE_SET_PREFERRED_LOCATION ||
          advice === CU_MEM_ADVISE_SET_ACCESSED_BY ||
          advice === CU_MEM_ADVISE_UNSET_ACCESSED_BY;
        return namesPlace && !this.#isLocation(device) ? CUDA_ERROR_INVALID_DEVICE : CUDA_SUCCESS;
      },
      cuStreamAttachMemAsync: (handle, address, byteLength, flags) => {
        const stream = this.#queues.get(handle);
        if (!stream) return CUDA_ERROR_INVALID_HANDLE;
        const allocation = this.#at(address);
        const isAll = byteLength === 0 || byteLength === allocation?.requestedByteLength;
        const isFlag = [CU_MEM_ATTACH_GLOBAL, CU_MEM_ATTACH_HOST, CU_MEM_ATTACH_SINGLE].includes(
          flags,
        );
        // Memory cannot be attached to a default stream alone.
        const isOwn = flags !== CU_MEM_ATTACH_SINGLE || handle > 2;
        if (allocation?.address !== address || !isAll || !isFlag || !isOwn)
          return CUDA_ERROR_INVALID_VALUE;
        this.#queues.enqueue(stream, () => true);
        return CUDA_SUCCESS;
      },
    };
  }

  #isLocation(device: number): boolean {
    return device === CU_DEVICE_CPU || this.#contexts.hasDevice(device);
  }

  #at(address: number): ManagedAllocation | undefined {
    const region = this.#memory.regions.at(address);
    return region?.kind === 'managed' ? (region as ManagedAllocation) : undefined;
  }

  #containing(address: number, byteLength: number): ManagedAllocation | undefined {
    const allocation = this.#at(address);
    const isHeld =
      byteLength > 0 &&
      allocation &&
      address + byteLength <= allocation.address + allocation.requestedByteLength;
    return isHeld ? allocation : undefined;
  }

  #all(): ManagedAllocation[] {
    return [...this.#memory.regions].filter(
      (region): region is ManagedAllocation => region.kind === 'managed',
    );
  }

  #usedBytes(device: number): number {
    return this.#all().reduce(
      (sum, { residentDevice, byteLength }) => (residentDevice === device ? sum + byteLength : sum),
      0,
    );
  }

  #free(allocation: ManagedAllocation): void {
    this.#memory.regions.remove(allocation);
    const { block } = allocation;
    block.allocationCount -= 1;
    if (block.allocationCount === 0) unmapSharedAnonymous(block.address, block.byteLength);
  }
}

function mapBlock(minByteLength: number): Block | undefined {
  const byteLength = roundUp(minByteLength, GRANULARITY);
  const address = mapSharedAnonymous(byteLength);
  return address === undefined ? undefined : { address, byteLength, allocationCount: 0 };
}
