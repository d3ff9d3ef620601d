/** The classes of memory managers: the interface, and two to extend. */
import { inspect } from 'node:util';
import { withAddress } from '../../../ffi/native.ts';
import { Context, type MemoryInfo } from '../../context.ts';
import { describeObject, placeName } from '../../inspect.ts';
import {
  checkBoolean,
  checkInstance,
  checkInteger,
  checkOptions,
  classNameOf,
  type HostMemory,
} from '../../validate.ts';
import { type AllocateOptions, DeviceMemory, type MemoryResource } from '../buffer.ts';
import { allocateHost } from '../host-allocation.ts';
import type { ViewsReference } from '../host-views.ts';
import { checkPinnable, lockHost } from '../pin.ts';
import { allocationBase, getLegacyHandle } from '../pointer-attributes.ts';
import {
  AutoFreePointer,
  IpcHandle,
  MappedPointer,
  MemoryPointer,
  PinnedPointer,
  type PointerInit,
} from './memory-pointer.ts';

/** Options of {@link BaseMemoryManager.mempin}. */
export interface MempinOptions {
  /** Whether the device can access the memory. Default false. */
  readonly mapped?: boolean;
  /** Whether every context of the process treats it as page-locked. Default true. */
  readonly portable?: boolean;
}

/** Options of {@link BaseMemoryManager.memhostalloc}. */
export interface MemhostallocOptions extends MempinOptions {
  /** Whether it bypasses the CPU's caches. Default false. */
  readonly writeCombined?: boolean;
}

/**
 * The owner of all memory of a context. A plugin implements this class to replace cuffi's own
 * allocations, like numba's External Memory Management plugins.
 *
 * {@link setMemoryManager} creates an instance for each context. While one of its methods runs, the
 * context uses the driver directly, so `this.context.memoryInfo()` does not recurse. Errors reach
 * the caller unchanged.
 *
 * @see https://numba.readthedocs.io/en/stable/cuda/external-memory.html
 */
export abstract class BaseMemoryManager {
  readonly context: Context;

  constructor(context: Context) {
    this.context = checkInstance(context, Context, 'context');
  }

  [inspect.custom](): string {
    return describeObject(classNameOf(this), () => [
      placeName(this.context),
      `interface version ${this.interfaceVersion}`,
    ]);
  }

  /** The version of this interface that it implements: 1. */
  abstract readonly interfaceVersion: number;

  /**
   * Prepares for use. Called before the first use and again after a reset; may be called at any
   * time.
   */
  initialize(): void {}

  /**
   * Allocates device memory for `DeviceBuffer.allocate`, which closes the pointer with its buffer.
   *
   * @param byteLength at least 1
   * @param options the stream that will use the memory, for stream-ordered allocators
   */
  abstract memalloc(byteLength: number, options?: AllocateOptions): MemoryPointer;

  /**
   * Allocates page-locked host memory for `PinnedBuffer` and `MappedMemory`. Returns a
   * MappedPointer if `mapped` is true, else a PinnedPointer. The pointer is closed when no view of
   * the memory is left.
   */
  abstract memhostalloc(
    byteLength: number,
    options?: MemhostallocOptions,
  ): PinnedPointer | MappedPointer;

  /**
   * Page-locks host memory for `pin`. Returns a MappedPointer if `mapped` is true, else a
   * PinnedPointer.
   */
  abstract mempin(owner: HostMemory, options?: MempinOptions): PinnedPointer | MappedPointer;

  /** Returns the legacy IPC handle of some of its memory. `memory` may be a view. */
  abstract getIpcHandle(memory: MemoryPointer): IpcHandle;

  /** Returns the result of `context.memoryInfo()`. */
  abstract getMemoryInfo(): MemoryInfo;

  /**
   * Drops all memory, because the context is reset and the driver frees its allocations. Pointers
   * are closed before or during this call, without their finalizers. May be called before
   * `initialize`.
   */
  abstract reset(): void;

  /** Opens a scope in which no memory should be returned to the driver. Scopes may be nested. */
  abstract deferCleanup(): Disposable;
}

type HostPointer = PinnedPointer | MappedPointer;

/** The views of host memory that can be retired, by its pointer. */
const viewsByPointer = new WeakMap<HostPointer, ViewsReference>();

/**
 * @internal The views of a pointer's memory, if {@link HostOnlyMemoryManager} made the pointer.
 */
export const viewsOfPointer = (pointer: HostPointer): ViewsReference | undefined =>
  viewsByPointer.get(pointer);

/**
 * A memory manager that already implements host memory. A subclass implements `memalloc`,
 * `getIpcHandle`, `getMemoryInfo` and `interfaceVersion`. If it overrides `reset`, it calls
 * `super.reset()`.
 */
export abstract class HostOnlyMemoryManager extends BaseMemoryManager {
  /**
   * The open pointers since the last reset. Weak references, so that a dropped pointer is
   * collected.
   */
  readonly #openPointers = new Set<WeakRef<HostPointer>>();
  #epoch = 0;

  /** @throws RangeError if the system is out of host memory, NotSupportedError, CudaError */
  memhostalloc(byteLength: number, options?: MemhostallocOptions): HostPointer {
    checkInteger(byteLength, 'byteLength', 1);
    const { mapped, portable, writeCombined } = checkOptions(
      options,
      ['mapped', 'portable', 'writeCombined'],
      'memhostalloc',
    );
    const kind = {
      mapped: checkBoolean(mapped, 'mapped', false),
      portable: checkBoolean(portable, 'portable', true),
      writeCombined: checkBoolean(writeCombined, 'writeCombined', false),
    };
    const { context } = this;
    const { address, viewsReference, release } = allocateHost(context, byteLength, kind);
    const pointer = this.#makePointer(
      kind.mapped,
      { context, pointer: address, byteLength },
      release,
    );
    viewsByPointer.set(pointer, viewsReference);
    return pointer;
  }

  /** @throws RangeError if a page is already locked, NotSupportedError, CudaError */
  mempin(owner: HostMemory, options?: MempinOptions): HostPointer {
    const { mapped, portable } = checkOptions(options, ['mapped', 'portable'], 'mempin');
    const flags = {
      mapped: checkBoolean(mapped, 'mapped', false),
      portable: checkBoolean(portable, 'portable', true),
    };
    const memory = checkPinnable(owner, 'owner');
    const { context } = this;
    const lock = lockHost(context, memory, 'owner', flags);
    const init = withAddress(memory, (pointer) => ({
      context,
      pointer,
      byteLength: memory.byteLength,
      owner,
    }));
    return this.#makePointer(flags.mapped, init, () => {
      lock.markReleasing();
      context.releases.enqueue(() => lock.unlock());
    });
  }

  /** Releases all host memory that is still in use. */
  reset(): void {
    const out = [...this.#openPointers].reverse();
    this.#openPointers.clear();
    for (const reference of out) {
      // A collected pointer is released by its own finalizer, or with the context.
      const pointer = reference.deref();
      if (!pointer) continue;
      if (pointer instanceof MappedPointer && !pointer.closed) pointer.free();
      else pointer.close();
    }
  }

  deferCleanup(): Disposable {
    return this.context.deferCleanup();
  }

  #makePointer(mapped: boolean, init: PointerInit, release: () => void): HostPointer {
    const { epoch } = this.context;
    // After a reset, no finalizer removed the earlier pointers.
    if (this.#epoch !== epoch) this.#openPointers.clear();
    this.#epoch = epoch;
    const out = this.#openPointers;
    let reference: WeakRef<HostPointer> | undefined;
    // Lives as long as the memory is in use, so it must not reference the pointer.
    const finalizer = (): void => {
      if (reference) out.delete(reference);
      release();
    };
    const pointer = mapped
      ? new MappedPointer({ ...init, finalizer })
      : new PinnedPointer({ ...init, finalizer });
    reference = new WeakRef(pointer);
    out.add(reference);
    return pointer;
  }
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
