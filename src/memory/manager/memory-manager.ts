/** Which memory manager owns the memory of this process's contexts. */

import { Context, type MemoryInfo, setContextMemoryFactory } from '../../context.ts';
import { checkInstance, className } from '../../validate.ts';
import type { AllocateOptions, MemoryResource } from '../buffer.ts';
import { DeviceMemory } from '../device-memory.ts';
import { allocationBase, getLegacyHandle } from '../pointer-attributes.ts';
import { BaseMemoryManager, HostOnlyMemoryManager } from './host-only-manager.ts';
import { IpcHandle } from './ipc-handle.ts';
import { ManagerAdapter, type MemoryManagerClass } from './manager-adapter.ts';
import { AutoFreePointer, MemoryPointer } from './memory-pointer.ts';
import { checkVersion } from './validate-manager.ts';

/**
 * Puts a memory manager in the place of cuffi's own allocations, as numba's `set_memory_manager`:
 * an instance for each context, made at its first use, serves `DeviceBuffer.allocate` without
 * `{ memory }`, `PinnedBuffer`, `MappedMemory`, `pin`, `context.memoryInfo()`, and what
 * `getIpcHandle` needs. Resources that are named serve themselves, as before. A borrowed context has
 * an instance for each object that stands for it.
 *
 * To set one for a program that does not know of it: `node --import ./set-it.js program.js`.
 *
 * @throws CuffiError once there is a context; NotSupportedError for another version of the interface
 * @example
 * cuda.setMemoryManager(PoolManager);
 * using buffer = cuda.DeviceBuffer.allocate(4096); // from the pool
 * @see https://numba.readthedocs.io/en/stable/cuda/external-memory.html
 */
export function setMemoryManager(Manager: MemoryManagerClass): void {
  if (typeof Manager !== 'function' || !(Manager.prototype instanceof BaseMemoryManager))
    throw new TypeError('Manager must be a class that extends BaseMemoryManager');
  // A field is there only when an instance is: it is checked then.
  const version: unknown = Manager.prototype.interfaceVersion;
  if (version !== undefined) checkVersion(className(Manager), version);
  setContextMemoryFactory((context) => new ManagerAdapter(context, Manager));
}

const driverManagers = new WeakMap<Context, DriverMemoryManager>();

/**
 * The memory manager of a context, by default of the primary one of device 0: the one that was set,
 * or a plain one over the driver.
 */
export function memoryManager(context: Context = Context.primary()): BaseMemoryManager {
  const { memory } = Context.resolve({ context });
  if (memory instanceof ManagerAdapter) return memory.manager;
  const manager = driverManagers.get(context) ?? new DriverMemoryManager(context);
  driverManagers.set(context, manager);
  return manager;
}

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
      const handle = getLegacyHandle(pointer, byteLength);
      const offset = pointer - allocationBase(pointer);
      return new IpcHandle({ base: memory, handle, offset });
    });
  }

  getMemoryInfo(): MemoryInfo {
    return this.context.memoryInfo();
  }
}
