import type { CUdeviceptr } from '../../ffi/types.ts';
import type { Context } from '../context.ts';
import { NotSupportedError } from '../errors.ts';
import { assertInternal } from '../validate.ts';
import { DeviceBuffer, type MemoryResource } from './buffer.ts';
import type { HostViews, ViewsReference } from './host-views.ts';

/**
 * Memory that both the device and the CPU can access: a DeviceBuffer that is also an ArrayBuffer.
 * Each sees what the other wrote once the work is done: `await stream.synchronize()` in between.
 *
 * Using a view after `close()` never crashes. After `context.reset()`, using a view of managed or
 * write-combined memory crashes the process.
 */
export class HostVisibleBuffer extends DeviceBuffer {
  readonly #viewsReference: ViewsReference | undefined;

  /** @internal `viewsReference` is undefined if the CPU must not access the memory. */
  constructor(init: {
    readonly context: Context;
    readonly address: CUdeviceptr;
    readonly byteLength: number;
    readonly resource: MemoryResource;
    readonly release: () => void;
    readonly viewsReference: ViewsReference | undefined;
  }) {
    assertInternal(init, Object, 'HostVisibleBuffer', 'MappedMemory or ManagedMemory');
    super({ ...init, origin: 'allocated' });
    this.#viewsReference = init.viewsReference;
  }

  /** @internal */
  protected override displayName(): string {
    return 'HostVisibleBuffer';
  }

  /**
   * The memory as the CPU sees it; always the same ArrayBuffer.
   *
   * @throws ClosedError, RangeError above 4 GiB: see {@link window}; NotSupportedError for managed
   * memory without concurrent access
   */
  get buffer(): ArrayBuffer {
    return this.#views().fullView;
  }

  /**
   * A part of the memory as a separate ArrayBuffer, for buffers above 4 GiB.
   *
   * @throws ClosedError, NotSupportedError, RangeError beyond the buffer or above 4 GiB
   */
  window(byteOffset: number, byteLength: number): ArrayBuffer {
    return this.#views().window(byteOffset, byteLength);
  }

  /** @internal The driver gives all devices access. */
  override isAccessibleFrom(): boolean {
    return true;
  }

  #views(): HostViews {
    if (this.closed) throw this.closedError();
    if (!this.#viewsReference)
      throw new NotSupportedError(
        `the CPU cannot access this memory while ${this.context.device} is working: copy it with copyFrom and copyToHost`,
      );
    if (!this.#viewsReference.views) throw this.closedError();
    return this.#viewsReference.views;
  }
}
