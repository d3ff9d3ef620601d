import type { CUdeviceptr } from '../../ffi/types.ts';
import type { Context } from '../context.ts';
import { NotSupportedError } from '../errors.ts';
import { assertInternal } from '../validate.ts';
import { DeviceBuffer, type MemoryResource } from './buffer.ts';
import type { HostViews, ViewsReference } from './host-views.ts';

/**
 * Memory that the device and the CPU both reach: a DeviceBuffer that is an ArrayBuffer too. What
 * the one writes the other sees when the work is done: `await stream.synchronize()` in between.
 *
 * A view that is kept after `close()` never crashes; touching one of managed or write-combined
 * memory after `context.reset()` ends the process.
 */
export class HostVisibleBuffer extends DeviceBuffer {
  readonly #viewsReference: ViewsReference | undefined;

  /** @internal `held` is absent where the CPU may not touch the memory. */
  constructor(init: {
    readonly context: Context;
    readonly address: CUdeviceptr;
    readonly byteLength: number;
    readonly resource: MemoryResource;
    readonly release: () => void;
    readonly held: ViewsReference | undefined;
  }) {
    assertInternal(init, Object, 'HostVisibleBuffer', 'MappedMemory or ManagedMemory');
    super({ ...init, origin: 'allocated' });
    this.#viewsReference = init.held;
  }

  /**
   * The memory as the CPU sees it, always the same ArrayBuffer.
   *
   * @throws ClosedError, RangeError above 4 GiB: see {@link window}; NotSupportedError for managed
   * memory of a device that the CPU may not share it with
   */
  get buffer(): ArrayBuffer {
    return this.#views().fullView;
  }

  /**
   * A part of the memory as an ArrayBuffer of its own, for buffers above 4 GiB.
   *
   * @throws ClosedError, NotSupportedError, RangeError beyond the buffer or above 4 GiB
   */
  window(byteOffset: number, byteLength: number): ArrayBuffer {
    return this.#views().window(byteOffset, byteLength);
  }

  #views(): HostViews {
    if (this.closed) throw this.closedError();
    if (!this.#viewsReference)
      throw new NotSupportedError(
        `the CPU may not touch this memory while ${this.context.device} works: copy it, with copyFrom and copyToHost`,
      );
    if (!this.#viewsReference.views) throw this.closedError();
    return this.#viewsReference.views;
  }
}
