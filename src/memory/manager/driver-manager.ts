import { checkInstance } from '../../arguments.ts';
import type { Context } from '../../context.ts';
import type { MemoryInfo } from '../../context-state.ts';
import { DeviceMemory } from '../device-memory.ts';
import { allocationBase, legacyHandle } from '../legacy-handle.ts';
import type { AllocateOptions, MemoryResource } from '../memory-resource.ts';
import { AutoFreePointer } from './auto-free-pointer.ts';
import { HostOnlyMemoryManager } from './host-only-manager.ts';
import { IpcHandle } from './ipc-handle.ts';
import { MemoryPointer } from './memory-pointer.ts';

/**
 * The manager that gives out plain device memory, as numba's `NumbaCUDAMemoryManager`: what
 * `memoryManager()` answers where none was set, and a beginning for plugins that change little.
 */
export class DriverMemoryManager extends HostOnlyMemoryManager {
  readonly #memory: MemoryResource;

  constructor(context: Context) {
    super(context);
    this.#memory = DeviceMemory.create({ context });
  }

  get interfaceVersion(): number {
    return 1;
  }

  /** @throws CudaError CUDA_ERROR_OUT_OF_MEMORY */
  memalloc(byteLength: number, options?: AllocateOptions): MemoryPointer {
    const buffer = this.#memory.allocate(byteLength, options);
    return new AutoFreePointer({
      context: this.context,
      pointer: buffer.address,
      byteLength,
      finalizer: (last) => buffer.close(last),
    });
  }

  /** Right for any memory that the driver can share, also for part of an allocation. @throws IpcError */
  getIpcHandle(memory: MemoryPointer): IpcHandle {
    const { pointer, byteLength } = checkInstance(memory, MemoryPointer, 'memory');
    return this.context.run(() => {
      const handle = legacyHandle(pointer, byteLength);
      const offset = pointer - allocationBase(pointer);
      return new IpcHandle({ base: memory, handle, offset });
    });
  }

  getMemoryInfo(): MemoryInfo {
    return this.context.memoryInfo();
  }
}
