import type { Context } from '../context.ts';
import type { Stream } from '../stream.ts';
import type { DeviceBuffer } from './buffer.ts';

/** Options of an allocation. */
export interface AllocateOptions {
  /**
   * The stream that the allocation is ordered in, where the resource is stream-ordered: the memory
   * may be used by work queued there afterwards. Default: the legacy default stream.
   */
  readonly stream?: Stream;
}

/**
 * Something that gives out memory and takes it back: plain device memory, a pool, pinned or
 * managed memory. A buffer knows the resource that it came from, and `close()` gives it back.
 */
export interface MemoryResource {
  readonly context: Context;
  /** Whether kernels and copies on the device reach it. */
  readonly deviceAccessible: boolean;
  /** Whether the CPU reaches it, as an ArrayBuffer. */
  readonly hostAccessible: boolean;
  /** @param byteLength at least 1 */
  allocate(byteLength: number, options?: AllocateOptions): DeviceBuffer;
}
