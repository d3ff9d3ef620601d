import { shown } from '../arguments.ts';
import { Context } from '../context.ts';
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
 * Something that gives out memory and takes it back: plain device memory, a pool, mapped or
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

/** @throws TypeError unless `value` is a memory resource */
export function checkMemory(value: unknown): MemoryResource {
  const { context, allocate } = (value ?? {}) as Partial<Record<keyof MemoryResource, unknown>>;
  if (!(context instanceof Context) || typeof allocate !== 'function')
    throw new TypeError(
      'memory must be a memory resource, such as DeviceMemory, MemoryPool, ManagedMemory or ' +
        `MappedMemory, not ${shown(value)}`,
    );
  return value as MemoryResource;
}
