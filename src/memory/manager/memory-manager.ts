/** Selects the memory manager of this process's contexts. */

import { Context, type MemoryInfo, setContextMemoryFactory } from '../../context.ts';
import { checkInstance, className } from '../../validate.ts';
import { type AllocateOptions, DeviceMemory, type MemoryResource } from '../buffer.ts';
import { allocationBase, getLegacyHandle } from '../pointer-attributes.ts';
import { BaseMemoryManager, HostOnlyMemoryManager } from './host-only-manager.ts';
import { IpcHandle } from './ipc-handle.ts';
import { ManagerAdapter, type MemoryManagerClass } from './manager-adapter.ts';
import { AutoFreePointer, MemoryPointer } from './memory-pointer.ts';
import { checkVersion } from './validate-manager.ts';

/**
 * Replaces cuffi's own allocations with a memory manager, like numba's `set_memory_manager`. Each
 * context gets an instance at its first use. It serves `DeviceBuffer.allocate` without
 * `{ memory }`, `PinnedBuffer`, `MappedMemory`, `pin`, `context.memoryInfo()` and `getIpcHandle`.
 * Explicitly named resources are not affected. For a borrowed context, each Context object has its
 * own instance.
 *
 * To set a manager for an unmodified program: `node --import ./set-it.js program.js`.
 *
 * @throws CuffiError if a context already exists; NotSupportedError for another version of the
 * interface
 * @example
 * cuda.setMemoryManager(PoolManager);
 * using buffer = cuda.DeviceBuffer.allocate(4096); // from the pool
 * @see https://numba.readthedocs.io/en/stable/cuda/external-memory.html
 */
export function setMemoryManager(Manager: MemoryManagerClass): void {
  if (typeof Manager !== 'function' || !(Manager.prototype instanceof BaseMemoryManager))
    throw new TypeError('Manager must be a class that extends BaseMemoryManager');
  // A field exists only on an instance, and is checked then.
  const version: unknown = Manager.prototype.interfaceVersion;
  if (version !== undefined) checkVersion(className(Manager), version);
  setContextMemoryFactory((context) => new ManagerAdapter(context, Manager));
}

const driverManagers = new WeakMap<Context, DriverMemoryManager>();

/**
 * The memory manager of a context, by default of the primary context of device 0. If none was set,
 * a plain manager over the driver.
 */
export function memoryManager(context: Context = Context.primary()): BaseMemoryManager {
  const { memory } = Context.resolve({ context });
  if (memory instanceof ManagerAdapter) return memory.manager;
  const manager = driverManagers.get(context) ?? new DriverMemoryManager(context);
  driverManagers.set(context, manager);
  return manager;
}

/**
 * The manager of plain device memory, like numba's `NumbaCUDAMemoryManager`. `memoryManager()`
 * returns it if none was set. Plugins with small changes can extend it.
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
      finalizer: (options) => buffer.close(options),
    });
  }

  /**
   * Works for any memory that the driver can share, including part of an allocation. @throws
   * IpcError
   */
  getIpcHandle(memory: MemoryPointer): IpcHandle {
    const { pointer, byteLength } = checkInstance(memory, MemoryPointer, 'memory');
    return this.context.run(() => {
      const handle = getLegacyHandle(pointer, byteLength);
      const offset = pointer - allocationBase(pointer);
      return new IpcHandle({ base: memory, handle, offset });
    });
  }

  getMemoryInfo(): MemoryInfo {
    return this.context.memoryInfo();
  }
}
