import { withAddress } from '../../../ffi/native.ts';
import { Context, type MemoryInfo } from '../../context.ts';
import {
  checkBoolean,
  checkInstance,
  checkInteger,
  checkOptions,
  type HostMemory,
} from '../../validate.ts';
import type { AllocateOptions } from '../buffer.ts';
import { allocateHost } from '../host-allocation.ts';
import type { ViewsReference } from '../host-views.ts';
import { markReleasing } from '../page-lock.ts';
import { checkPinnable, lockHost } from '../pin.ts';
import type { IpcHandle } from './ipc-handle.ts';
import {
  MappedPointer,
  type MemoryPointer,
  PinnedPointer,
  type PointerInit,
} from './memory-pointer.ts';

/** Options of {@link BaseMemoryManager.mempin}. */
export interface MempinOptions {
  /** Whether the device reaches the memory. Default false. */
  readonly mapped?: boolean;
  /** Whether every context of the process takes it for page-locked. Default true. */
  readonly portable?: boolean;
}

/** Options of {@link BaseMemoryManager.memhostalloc}. */
export interface MemhostallocOptions extends MempinOptions {
  /** Whether the CPU's caches are left out. Default false. */
  readonly writeCombined?: boolean;
}

/**
 * The owner of all memory of a context: what a plugin implements to put itself, or another library,
 * in the place of cuffi's own allocations, as numba's External Memory Management plugins do.
 *
 * {@link setMemoryManager} makes an instance for each context. While one of its methods runs, what
 * it asks of the context is answered by the driver, so `this.context.memoryInfo()` is no loop. What
 * it throws reaches the caller unchanged.
 *
 * @see https://numba.readthedocs.io/en/stable/cuda/external-memory.html
 */
export abstract class BaseMemoryManager {
  readonly context: Context;

  constructor(context: Context) {
    this.context = checkInstance(context, Context, 'context');
  }

  /** The version of this interface that it implements: 1. */
  abstract readonly interfaceVersion: number;

  /** Gets ready. Called before the first use and again after a reset; may be called at any time. */
  initialize(): void {}

  /**
   * Device memory for `DeviceBuffer.allocate`, which closes the pointer with its buffer.
   *
   * @param byteLength at least 1
   * @param options the stream that the caller will use it in, for memory that is ordered so
   */
  abstract memalloc(byteLength: number, options?: AllocateOptions): MemoryPointer;

  /**
   * Page-locked host memory for `PinnedBuffer` and `MappedMemory`: a MappedPointer where
   * `mapped` is true, else a PinnedPointer. It is given back when no view of it can be touched.
   */
  abstract memhostalloc(
    byteLength: number,
    options?: MemhostallocOptions,
  ): PinnedPointer | MappedPointer;

  /** Page-locks host memory for `pin`: a MappedPointer where `mapped` is true, else a PinnedPointer. */
  abstract mempin(owner: HostMemory, options?: MempinOptions): PinnedPointer | MappedPointer;

  /** How legacy IPC knows some of its memory; `memory` may be a view. */
  abstract getIpcHandle(memory: MemoryPointer): IpcHandle;

  /** What `context.memoryInfo()` answers. */
  abstract getMemoryInfo(): MemoryInfo;

  /**
   * Gives up all memory: the context is reset, and with it the driver frees what it gave. Pointers
   * are closed by then or at once, without their finalizers. May be called before `initialize`.
   */
  abstract reset(): void;

  /** A scope in which nothing should be given back to the driver; scopes may be nested. */
  abstract deferCleanup(): Disposable;
}

type HostPointer = PinnedPointer | MappedPointer;

/** The views of host memory that can be retired under them, by its pointer. */
const viewsByPointer = new WeakMap<HostPointer, ViewsReference>();

/** @internal The views that a pointer brings along, where it is of {@link HostOnlyMemoryManager}. */
export const viewsOfPointer = (pointer: HostPointer): ViewsReference | undefined =>
  viewsByPointer.get(pointer);

/**
 * A memory manager whose host half is done, by cuffi itself: a plugin that extends it writes
 * `memalloc`, `getIpcHandle`, `getMemoryInfo` and `interfaceVersion`, and calls `super.reset()` in
 * a `reset` of its own.
 */
export abstract class HostOnlyMemoryManager extends BaseMemoryManager {
  /** What is out since the last reset of the context. A pointer that is dropped must be collected. */
  readonly #openPointers = new Set<WeakRef<HostPointer>>();
  #epoch = 0;

  /** @throws RangeError where the system has no such memory, NotSupportedError, CudaError */
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

  /** @throws RangeError where a page is locked already, NotSupportedError, CudaError */
  mempin(owner: HostMemory, options?: MempinOptions): HostPointer {
    const { mapped, portable } = checkOptions(options, ['mapped', 'portable'], 'mempin');
    const flags = {
      mapped: checkBoolean(mapped, 'mapped', false),
      portable: checkBoolean(portable, 'portable', true),
    };
    const memory = checkPinnable(owner, 'owner');
    const { context } = this;
    const unlock = lockHost(context, memory, 'owner', flags);
    const init = withAddress(memory, (pointer) => ({
      context,
      pointer,
      byteLength: memory.byteLength,
      owner,
    }));
    return this.#makePointer(flags.mapped, init, () => {
      markReleasing(unlock);
      context.releases.enqueue(unlock);
    });
  }

  /** Gives back all host memory that is still out. */
  reset(): void {
    const out = [...this.#openPointers].reverse();
    this.#openPointers.clear();
    for (const reference of out) {
      // What is collected already goes back by its own finalizer, or with the context.
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
    // After a reset no finalizer took the earlier ones out.
    if (this.#epoch !== epoch) this.#openPointers.clear();
    this.#epoch = epoch;
    const out = this.#openPointers;
    let reference: WeakRef<HostPointer> | undefined;
    // Lives as long as the memory is out, so it must not refer to the pointer.
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
