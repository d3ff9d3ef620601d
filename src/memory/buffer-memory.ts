import type { CUdeviceptr } from '../../ffi/types.ts';
import { checkOptions, requireMade, shown } from '../arguments.ts';
import type { Context } from '../context.ts';
import { CuffiError } from '../errors.ts';
import { life } from '../life.ts';
import { Resource } from '../resource.ts';
import type { DeviceBuffer } from './buffer.ts';
import { streamOf } from './buffer-copies.ts';
import type { Access, BufferCloseOptions, BufferInit, BufferOrigin } from './buffer-options.ts';
import type { MemoryResource } from './memory-resource.ts';
import { cutsWithin } from './pieces.ts';

/** The memory of a buffer: whose it is, where it lies, what may be done with it, how it ends. */
export abstract class BufferMemory extends Resource {
  readonly context: Context;
  readonly byteLength: number;
  /** Whether cuffi allocated it, another library did, or another process did. */
  readonly origin: BufferOrigin;
  /** What gave the memory out; undefined where cuffi did not. */
  readonly resource: MemoryResource | undefined;
  /**
   * Whether it may be written to: copies and fills of cuffi hold to it, and where it is virtual memory
   * of another process, the driver.
   */
  readonly access: Access;
  readonly #address: CUdeviceptr;
  readonly #release: BufferInit['release'];
  /** The buffer that this one is a view of. */
  readonly #viewOf: DeviceBuffer | undefined;
  readonly #keeps: unknown;
  readonly #borders: (() => readonly number[]) | undefined;
  readonly #isOrphan: (() => boolean) | undefined;

  /** @internal */
  constructor(init: BufferInit) {
    requireMade(init, Object, 'DeviceBuffer', 'DeviceBuffer.allocate');
    super('DeviceBuffer', { owner: init.owner ?? init.context.resources, release: init.release });
    this.context = init.context;
    this.byteLength = init.byteLength;
    this.origin = init.origin;
    this.resource = init.resource;
    this.access = init.access ?? 'read-write';
    this.#address = init.address;
    this.#release = init.release;
    this.#viewOf = init.viewOf;
    this.#keeps = init.keeps;
    this.#borders = init.borders;
    this.#isOrphan = init.isOrphan;
  }

  /** @internal The buffer that this one is a view of. */
  protected get viewOf(): DeviceBuffer | undefined {
    return this.#viewOf;
  }

  override get closed(): boolean {
    // Not super.closed, which a launch would feel for each of its buffers.
    if (this[life].isOver) return true;
    const outer = this.#viewOf ?? this.#keeps;
    return outer !== undefined && outer instanceof Resource && outer.closed;
  }

  /**
   * Gives the memory back when the GPU is done with it, and never waits; the second time does
   * nothing.
   *
   * Memory of a pool is given back in the order of a stream, that of its allocation unless
   * `options` name another: work that was queued there may still use it, and work of other streams
   * must be done or waited for. Other memory is freed when nothing runs in the context; plain device
   * memory, where there is want of room and in `context.flush()`, when the work is done that was
   * queued before. Work that cuffi does not know of must be done before this: it knows what was
   * queued through it, and what lies before that in the same stream, be it a borrowed one.
   *
   * What other processes have by a connection is closed here at once, and given back when they have
   * closed it, or have ended: see `leases` of cuffi/ipc.
   *
   * @throws CuffiError with `{ leases: 'refuse' }` where others have it: then it stays open
   */
  override close(options?: BufferCloseOptions): void {
    if (options !== undefined) this.#closeIn(options);
    super.close();
  }

  #closeIn(options: BufferCloseOptions): void {
    const { stream, leases } = checkOptions(options, ['stream', 'leases'], 'close');
    if (leases !== undefined && leases !== 'refuse')
      throw new TypeError(`leases must be 'refuse', not ${shown(leases)}`);
    // Of virtual memory others have that, and not this view of it.
    const { holders } = this.#keeps instanceof Resource ? this.#keeps : this;
    if (leases === 'refuse' && !this.closed && holders.length > 0)
      throw new CuffiError(
        `this ${this.byteLength}-byte buffer is in use by ${holders.join(', ')}: it stays open`,
      );
    const last = streamOf(stream);
    if (!last || this.closed) return;
    last.handle; // a closed stream is refused
    if (typeof this.#release === 'object') this.#release.freeIn(last);
  }

  /** The device address of the first byte. @throws ClosedError */
  get address(): CUdeviceptr {
    if (this.closed) throw this.closedError();
    return this.#address;
  }

  /** @internal As {@link address}, for writing. @throws TypeError for a read-only buffer */
  get writableAddress(): CUdeviceptr {
    if (this.access !== 'read-write')
      throw new TypeError('this buffer is read-only: it was shared, or opened, for reading');
    return this.address;
  }

  /**
   * Whether it is memory of a process that has ended. It stays usable here, but cannot be opened
   * anew elsewhere, unless it came by a file descriptor.
   */
  get ownerGone(): boolean {
    return (this.#viewOf ?? this).#isOrphan?.() ?? false;
  }

  /** Whether it is memory of another process, mapped here. */
  get isMapped(): boolean {
    return this.origin === 'imported';
  }

  /** @internal What its memory lies in, where that is no buffer: virtual memory. */
  get keeper(): unknown {
    return (this.#viewOf ?? this).#keeps;
  }

  /** @internal Where one call of the driver must not go on, as offsets in order. */
  get cuts(): readonly number[] {
    return this.#borders ? cutsWithin(this.#borders(), this.#address, this.byteLength) : [];
  }

  /** @internal What a view of it is made of, as a part of `whole`. */
  protected partOf(whole: DeviceBuffer, begin: number, end: number, access: Access): BufferInit {
    return {
      context: this.context,
      address: (this.address + begin) as CUdeviceptr,
      byteLength: end - begin,
      origin: this.origin,
      resource: this.resource,
      viewOf: whole,
      borders: this.#borders,
      access,
    };
  }

  /** @internal What a buffer is made of that owns what this one did, closed by it. @throws CuffiError */
  protected takenOver(): BufferInit {
    const { owner } = this.handOver('its memory was moved to another buffer');
    return {
      context: this.context,
      address: this.#address,
      byteLength: this.byteLength,
      origin: this.origin,
      resource: this.resource,
      release: this.#release,
      owner,
      keeps: this.#keeps,
      borders: this.#borders,
      isOrphan: this.#isOrphan,
      access: this.access,
    };
  }

  override toString(): string {
    return `DeviceBuffer(${this.byteLength} bytes, ${this.origin}${this.closed ? ', closed' : ''})`;
  }
}
