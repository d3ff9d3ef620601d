/** The options of buffers, and where their memory may come from. */
import type { PlaceOptions } from '../context.ts';
import type { Stream } from '../stream.ts';
import type { WaitOptions } from '../wait.ts';
import type { AllocateOptions, MemoryResource } from './memory-resource.ts';

/** Options of calls that work in a stream. */
export interface StreamOption {
  /** The stream to work in. Default: the legacy default stream. */
  readonly stream?: Stream;
}

/** Options of awaited copies. */
export interface CopyOptions extends StreamOption, WaitOptions {}

/** Options of {@link DeviceBuffer.fill}. */
export interface FillOptions extends StreamOption {
  /** The width of `value` in bytes: 1, 2 or 4. Default 1. */
  readonly elementByteLength?: 1 | 2 | 4;
}

/** Options of {@link DeviceBuffer.allocate}. */
export interface BufferOptions extends PlaceOptions, AllocateOptions {
  /** Where the memory comes from. Default: plain device memory. */
  readonly memory?: MemoryResource;
}

/** Options of {@link DeviceBuffer.fromPointer}. */
export interface PointerOptions extends PlaceOptions {
  /** What must stay alive while the buffer is used; held, never touched. */
  readonly owner?: unknown;
}

/** Where a buffer's memory comes from. */
export type BufferOrigin = 'allocated' | 'borrowed' | 'imported';

/** What may be done with memory. */
export type Access = 'read-write' | 'read';
