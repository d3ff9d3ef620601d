import type { Address, CUdeviceptr } from '../../ffi/types.ts';
import { Context, type PlaceOptions } from '../context.ts';
import { refuseItemAccess } from '../conversions.ts';
import type { Details } from '../inspect.ts';
import { Resource, runAll } from '../lifetime.ts';
import { assertInternal, checkBoolean, checkInteger, checkOptions } from '../validate.ts';
import { memoryManagerOf } from './buffer.ts';
import {
  allocateHost,
  allocateShareable,
  type HostAllocation,
  type HostMemoryKind,
  openShareable,
} from './host-allocation.ts';
import type { HostViews } from './host-views.ts';

/** Options of {@link PinnedBuffer.allocate}. */
export interface PinnedOptions extends PlaceOptions {
  /**
   * Whether every context of the process treats it as page-locked. Work of other contexts must be
   * done before it is closed: `close()` considers only its own context. Default true.
   */
  readonly portable?: boolean;
  /** Whether the device can access it, at {@link PinnedBuffer.devicePointer}. Default false. */
  readonly mapped?: boolean;
  /**
   * Whether it bypasses the CPU's caches. For memory that the CPU only writes: reading it is very
   * slow. Default false.
   */
  readonly writeCombined?: boolean;
  /**
   * Whether it can be sent to other processes, with `peer.send` of `cuffi/ipc`. They then have the
   * same memory. Always portable, never write-combined, and not made by a memory manager. Default
   * false.
   */
  readonly shareable?: boolean;
}

/** What a buffer is made of. */
interface PinnedInit {
  readonly context: Context;
  readonly byteLength: number;
  readonly kind: HostMemoryKind;
  readonly memory: HostAllocation & { readonly fd?: number };
  readonly onClosed?: OpenedCallbacks;
}

/** Called when memory of another process is closed. */
interface OpenedCallbacks {
  before(): void;
  after(): void;
}

/**
 * Page-locked host memory as an ArrayBuffer. The device copies from and to it directly, without the
 * driver's staging memory.
 *
 * It is zeroed at first, unless it is write-combined. After `close()`, a view reads zeros and never
 * crashes. Write-combined memory is freed only when its ArrayBuffer was collected; using that
 * ArrayBuffer after `context.reset()` crashes the process.
 *
 * @example
 * using pinned = cuda.PinnedBuffer.allocate(1 << 20);
 * const floats = new Float32Array(pinned.buffer);
 * await buffer.copyFrom(floats);
 * @see https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__MEM.html
 */
export class PinnedBuffer extends Resource {
  readonly context: Context;
  readonly byteLength: number;
  readonly portable: boolean;
  readonly mapped: boolean;
  readonly writeCombined: boolean;
  /** Whether it came from another process. */
  readonly imported: boolean;
  readonly #memory: HostAllocation & { readonly fd?: number };

  private constructor(init: PinnedInit) {
    assertInternal(init, Object, 'PinnedBuffer', 'PinnedBuffer.allocate');
    const { context, byteLength, kind, memory, onClosed } = init;
    const release = onClosed
      ? () => runAll([onClosed.before, memory.release, onClosed.after])
      : memory.release;
    super('PinnedBuffer', { owner: context.resources, release });
    this.context = context;
    this.byteLength = byteLength;
    this.portable = kind.portable;
    this.mapped = kind.mapped;
    this.writeCombined = kind.writeCombined;
    this.imported = onClosed !== undefined;
    this.#memory = memory;
  }

  /**
   * Allocates page-locked memory. Whole pages are locked, so small buffers are expensive: allocate
   * one and make typed arrays in parts of it.
   *
   * @param byteLength at least 1
   * @throws RangeError if the system is out of host memory, NotSupportedError, CudaError
   */
  static allocate(byteLength: number, options?: PinnedOptions): PinnedBuffer {
    checkInteger(byteLength, 'byteLength', 1);
    const { portable, mapped, writeCombined, shareable, ...place } = checkOptions(
      options,
      ['context', 'device', 'portable', 'mapped', 'writeCombined', 'shareable'],
      'PinnedBuffer.allocate',
    );
    const kind = {
      portable: checkBoolean(portable, 'portable', true),
      mapped: checkBoolean(mapped, 'mapped', false),
      writeCombined: checkBoolean(writeCombined, 'writeCombined', false),
    };
    const isShareable = checkBoolean(shareable, 'shareable', false);
    if (isShareable && (kind.writeCombined || !kind.portable))
      throw new TypeError('shareable memory is portable, and cannot be write-combined');
    const context = Context.resolve(place);
    const memory = isShareable
      ? allocateShareable(context, byteLength, kind)
      : (memoryManagerOf(context)?.allocateHost(byteLength, kind) ??
        allocateHost(context, byteLength, kind));
    return new PinnedBuffer({ context, byteLength, kind, memory });
  }

  /**
   * @internal Opens the shareable memory of another process.
   *
   * @param fd owned from now on, also if it throws
   * @param onClosed called around the release
   * @throws RangeError for anything but such memory, NotSupportedError, CudaError
   */
  static open(
    context: Context,
    fd: number,
    byteLength: number,
    onClosed: OpenedCallbacks,
  ): PinnedBuffer {
    const mapped = context.device.attribute('canMapHostMemory') !== 0;
    const kind = { portable: true, mapped, writeCombined: false };
    const memory = openShareable(context, fd, byteLength, kind);
    return new PinnedBuffer({ context, byteLength, kind, memory, onClosed });
  }

  /** Whether it can be sent to other processes. */
  get shareable(): boolean {
    return this.#memory.fd !== undefined;
  }

  /** @internal The descriptor of shareable memory. The buffer owns it. @throws ClosedError */
  get fd(): number | undefined {
    this.assertOpen();
    return this.#memory.fd;
  }

  /**
   * The memory; always the same ArrayBuffer.
   *
   * @throws ClosedError, RangeError above 4 GiB: see {@link window}
   */
  get buffer(): ArrayBuffer {
    return this.#views().fullView;
  }

  /**
   * A part of the memory as a separate ArrayBuffer, for buffers above 4 GiB. V8 accounts for the
   * bytes of each window: keep windows, and make typed arrays in them.
   *
   * @throws ClosedError, RangeError beyond the buffer or above 4 GiB
   */
  window(byteOffset: number, byteLength: number): ArrayBuffer {
    return this.#views().window(byteOffset, byteLength);
  }

  /** The host address of the first byte. @throws ClosedError */
  get address(): Address {
    this.assertOpen();
    return this.#memory.address;
  }

  /** The device address; undefined unless it is mapped. @throws ClosedError */
  get devicePointer(): CUdeviceptr | undefined {
    this.assertOpen();
    return this.#memory.devicePointer;
  }

  /** @internal */
  protected override describe(): Details {
    return [
      `${this.byteLength} bytes`,
      this.mapped && 'mapped',
      this.writeCombined && 'write-combined',
      this.shareable && 'shareable',
    ];
  }

  /** @internal */
  protected override operandAdvice(): string {
    return 'compute with its bytes, in `new Uint8Array(buffer.buffer)`';
  }

  #views(): HostViews {
    const { views } = this.#memory.viewsReference;
    if (this.closed || !views) throw this.closedError();
    return views;
  }
}

refuseItemAccess(PinnedBuffer.prototype, {
  name: 'PinnedBuffer',
  place: 'its bytes are in an ArrayBuffer, `buffer.buffer`',
  read: () => 'them with `new Uint8Array(buffer.buffer)`',
  write: () => 'them with `new Uint8Array(buffer.buffer)`',
  iterate: '`new Uint8Array(buffer.buffer)`',
});
