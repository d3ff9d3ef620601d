import { checkInstance, type HostMemory } from '../../arguments.ts';
import { Context } from '../../context.ts';
import type { MemoryInfo } from '../../context-state.ts';
import type { AllocateOptions } from '../memory-resource.ts';
import type { IpcHandle } from './ipc-handle.ts';
import type { MappedPointer } from './mapped-pointer.ts';
import type { MemoryPointer } from './memory-pointer.ts';
import type { PinnedPointer } from './pinned-pointer.ts';

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
