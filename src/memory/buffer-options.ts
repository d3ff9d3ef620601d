/** The options of buffers, and where their memory may come from. */
import type { CUdeviceptr } from '../../ffi/types.ts';
import type { Context, PlaceOptions } from '../context.ts';
import type { ResourceSet } from '../resource-set.ts';
import type { Stream } from '../stream.ts';
import type { WaitOptions } from '../wait.ts';
import type { DeviceBuffer } from './buffer.ts';
import type { AllocateOptions, MemoryResource } from './memory-resource.ts';

/** Options of calls that work in a stream. */
export interface StreamOption {
  /** The stream to work in. Default: the legacy default stream. */
  readonly stream?: Stream;
}

/** Options of awaited copies. */
export interface CopyOptions extends StreamOption, WaitOptions {}

/** Options of {@link DeviceBuffer.close}. */
export interface BufferCloseOptions extends StreamOption {
  /** `'refuse'`: throws, and leaves it open, where other processes have it by a connection. */
  readonly leases?: 'refuse';
}

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
  /** What must stay alive while the buffer is used; held, never touched, nor asked if it is closed. */
  readonly owner?: unknown;
}

/** Where a buffer's memory comes from. */
export type BufferOrigin = 'allocated' | 'borrowed' | 'imported';

/** What may be done with memory. */
export type Access = 'read-write' | 'read';

/** Frees memory in the order of a stream. */
export interface OrderedRelease {
  /** Takes another stream than that of the allocation. */
  freeIn(stream: Stream): void;
  release(): void;
}

/** @internal What a {@link DeviceBuffer} is made of. */
export interface BufferInit {
  readonly context: Context;
  readonly address: CUdeviceptr;
  readonly byteLength: number;
  readonly origin: BufferOrigin;
  readonly resource?: MemoryResource | undefined;
  readonly release?: (() => void) | OrderedRelease | undefined;
  /** What it is closed with. Default: its context. */
  readonly owner?: ResourceSet | undefined;
  /** The buffer that it is a part of, which is no view itself. */
  readonly viewOf?: DeviceBuffer | undefined;
  /** What its memory lies in: it counts as closed when that is. Others' only stay alive by it. */
  readonly keeps?: unknown;
  /** Addresses that one call of the driver may not go across. */
  readonly borders?: (() => readonly number[]) | undefined;
  /** Whether the process that it is of has ended. */
  readonly isOrphan?: (() => boolean) | undefined;
  /** Default: it may be written to. */
  readonly access?: Access | undefined;
}
