import type { CUdeviceptr } from '../../ffi/types.ts';
import { requireMade } from '../arguments.ts';
import type { Context } from '../context.ts';
import type { Dtype } from '../dtype.ts';
import { NotSupportedError } from '../errors.ts';
import type { DeviceBuffer } from '../memory/buffer.ts';
import type { BufferCloseOptions } from '../memory/buffer-options.ts';
import { HostVisibleBuffer } from '../memory/host-visible.ts';
import { Resource } from '../resource.ts';
import type { Stream } from '../stream.ts';
import type { HostArray } from './items.ts';
import {
  byteLengthOf,
  checkWithin,
  type Extents,
  extents,
  isContiguous,
  type Layout,
} from './layout.ts';
import { mayOverlapItself } from './overlap.ts';
import { type Shape, shown, sizeOf } from './shape.ts';

/** What an array is made of. */
export interface ArrayInit<D extends Dtype> {
  readonly buffer: DeviceBuffer;
  readonly dtype: D;
  /** Its items lie within the buffer, which is checked; its lists become the array's own. */
  readonly layout: Layout;
  readonly stream?: Stream | undefined;
  /** Whether closing the array closes the buffer. */
  readonly isOwner: boolean;
  readonly readOnly: boolean;
}

/** Items of one dtype in device memory, and how they lie there. */
export abstract class ArrayMemory<out D extends Dtype> extends Resource {
  /** The memory that the items are in; views of an array have the same one. */
  readonly buffer: DeviceBuffer;
  readonly dtype: D;
  /** The sizes along the axes; none for a single item. */
  readonly shape: Shape;
  /** The bytes from an item to the next along each axis; 0 and negative ones are legal. */
  readonly strides: readonly number[];
  /** How many items there are. */
  readonly size: number;
  /** The byte of the buffer at which the item of index [0, 0, …] begins. */
  readonly byteOffset: number;
  /** Where work on the array goes unless a call names a stream; undefined: the default stream. */
  readonly stream: Stream | undefined;
  /** Whether cuffi refuses to write to it, as to what `broadcastTo` gives. */
  readonly readOnly: boolean;
  /** @internal */
  readonly layout: Layout;
  readonly #isOwner: boolean;

  /** @internal */
  constructor(init: ArrayInit<D>) {
    requireMade(init, Object, 'DeviceArray', 'deviceArray or toDevice');
    const { shape, strides, byteOffset } = init.layout;
    const size = sizeOf(shape);
    // Kernels and other libraries are handed its address, and nothing checks what they reach. An
    // empty slice may begin anywhere.
    if (size > 0) checkWithin(init.layout, init.buffer.byteLength);
    super('DeviceArray', {});
    this.layout = init.layout;
    this.buffer = init.buffer;
    this.dtype = init.dtype;
    this.shape = Object.freeze(shape);
    this.strides = Object.freeze(strides);
    this.size = size;
    this.byteOffset = byteOffset;
    this.stream = init.stream;
    this.readOnly = init.readOnly;
    this.#isOwner = init.isOwner;
  }

  /** How many axes there are. */
  get ndim(): number {
    return this.shape.length;
  }

  /** The bytes of all items, without those between them. */
  get byteLength(): number {
    return byteLengthOf(this.layout);
  }

  get context(): Context {
    return this.buffer.context;
  }

  /**
   * The device address of the item of index [0, 0, …]; 0 where there never were items.
   *
   * @throws ClosedError
   */
  get address(): CUdeviceptr {
    this.requireOpen();
    return (this.buffer.address + this.byteOffset) as CUdeviceptr;
  }

  /** The addresses of the first byte of the items, and of the one behind the last. */
  get extents(): Extents {
    const start = this.address - this.byteOffset;
    const { low, high } = extents(this.layout);
    return { low: start + low, high: start + high };
  }

  /** Whether the items follow each other, the last axis fastest. Empty arrays are contiguous. */
  get isCContiguous(): boolean {
    return isContiguous(this.layout, 'C');
  }

  /** Whether the items follow each other, the first axis fastest. */
  get isFContiguous(): boolean {
    return isContiguous(this.layout, 'F');
  }

  /**
   * The items as the CPU sees them in mapped and managed memory, in the order in which they lie. What
   * one side writes the other sees when the work is done.
   *
   * @throws NotSupportedError for other memory, and where the items do not follow each other;
   * ClosedError
   */
  get host(): HostArray<D> {
    const { buffer, dtype, size } = this;
    this.address; // a closed array is refused
    if (!this.isCContiguous && !this.isFContiguous)
      throw new NotSupportedError(
        `the items of shape ${shown(this.shape)} with strides ${shown(this.strides)} do not follow each other: copy them, with copyToHost`,
      );
    if (size === 0) return new dtype.TypedArray(0) as HostArray<D>;
    if (!(buffer instanceof HostVisibleBuffer))
      throw new NotSupportedError('the CPU does not reach this memory: copy it, with copyToHost');
    const length = size * dtype.elementsPerItem;
    return new dtype.TypedArray(buffer.buffer, this.byteOffset, length) as HostArray<D>;
  }

  /** Whether it is memory of a process that has ended: see {@link DeviceBuffer.ownerGone}. */
  get ownerGone(): boolean {
    return this.buffer.ownerGone;
  }

  override get closed(): boolean {
    return super.closed || this.buffer.closed;
  }

  /**
   * Gives the memory back that the array was made with; the second time does nothing. A view is only
   * forgotten. Memory of a pool is given back in the order of `stream`, by default that of its
   * allocation. What other processes have is given back as {@link DeviceBuffer.close} says.
   *
   * @throws CuffiError with `{ leases: 'refuse' }` where others have it: then it stays open
   */
  override close(options?: BufferCloseOptions): void {
    if (this.#isOwner) this.buffer.close(options);
    super.close();
  }

  /** @internal @throws TypeError where a write would go wrong, ClosedError */
  requireWritable(name: string): void {
    this.address; // a closed array is refused
    if (this.readOnly) throw new TypeError(`${name} is read only`);
    const { layout } = this;
    const isPlain = isContiguous(layout, 'C') || isContiguous(layout, 'F');
    if (!isPlain && mayOverlapItself(layout))
      throw new TypeError(
        `${name} overlaps itself: items of shape ${shown(this.shape)} with strides ${shown(this.strides)} share bytes`,
      );
  }
}
