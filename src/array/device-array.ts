import { inspect } from 'node:util';
import type { CUdeviceptr } from '../../ffi/types.ts';
import type { Context } from '../context.ts';
import type { Dtype } from '../dtype.ts';
import { NotSupportedError } from '../errors.ts';
import { Resource } from '../lifetime.ts';
import {
  type AllocateOptions,
  type BufferCloseOptions,
  type CopyOptions,
  DeviceBuffer,
} from '../memory/buffer.ts';
import { HostVisibleBuffer } from '../memory/host-visible.ts';
import { type Stream, type StreamOption, streamOf } from '../stream.ts';
import {
  assertInternal,
  checkBoolean,
  checkInstance,
  checkInteger,
  checkOptions,
} from '../validate.ts';
import { allocateItems, checkDtype, newLayout, toShape } from './allocate-items.ts';
import {
  beginWrite,
  endWrite,
  endWriteSync,
  fillArray,
  queueArrayCopy,
  readArray,
  readArraySync,
} from './array-copy.ts';
import type {
  ArrayCopyOptions,
  FromBufferOptions,
  MemorySourceOptions,
  OrderOption,
} from './array-options.ts';
import type { HostSource } from './host-source.ts';
import { indexLayout, type Sections, type Selector, splitLayout } from './indexing.ts';
import { describeArray, formatFirstValues } from './inspect.ts';
import { type HostArray, type HostValues, type ItemOf, type ItemValue, readItem } from './items.ts';
import {
  checkWithinBuffer,
  type Extents,
  isContiguous,
  itemsByteLength,
  type Layout,
  layoutExtents,
  makeLayout,
} from './layout.ts';
import { mayOverlapItself } from './overlap.ts';
import { formatShape, type Shape, sizeOf } from './shape.ts';
import {
  broadcastTo,
  expandDims,
  type Reshaped,
  ravel,
  reshape,
  squeeze,
  transpose,
  viewWithItemsize,
} from './views.ts';

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
    assertInternal(init, Object, 'DeviceArray', 'deviceArray or toDevice');
    const { shape, strides, byteOffset } = init.layout;
    const size = sizeOf(shape);
    // Kernels and other libraries are handed its address, and nothing checks what they reach. An
    // empty slice may begin anywhere.
    if (size > 0) checkWithinBuffer(init.layout, init.buffer.byteLength);
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
    return itemsByteLength(this.layout);
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
    this.assertOpen();
    return (this.buffer.address + this.byteOffset) as CUdeviceptr;
  }

  /** The addresses of the first byte of the items, and of the one behind the last. */
  get extents(): Extents {
    const start = this.address - this.byteOffset;
    const { low, high } = layoutExtents(this.layout);
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
        `the items of shape ${formatShape(this.shape)} with strides ${formatShape(this.strides)} do not follow each other: copy them, with copyToHost`,
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
  assertWritable(name: string): void {
    this.address; // a closed array is refused
    if (this.readOnly) throw new TypeError(`${name} is read only`);
    const { layout } = this;
    const isPlain = isContiguous(layout, 'C') || isContiguous(layout, 'F');
    if (!isPlain && mayOverlapItself(layout))
      throw new TypeError(
        `${name} overlaps itself: items of shape ${formatShape(this.shape)} with strides ${formatShape(this.strides)} share bytes`,
      );
  }
}

/** In what a view differs from its array, besides the layout. */
export interface ViewOptions<D extends Dtype> {
  readonly dtype?: D;
  readonly stream?: Stream | undefined;
  readonly readOnly?: boolean;
}

/** The views of an array: the same memory, seen in another way; nothing is copied. */
abstract class ArrayViews<out D extends Dtype> extends ArrayMemory<D> {
  /** @internal */
  protected abstract makeView<E extends Dtype = D>(
    layout: Layout,
    options?: ViewOptions<E>,
  ): DeviceArray<E>;

  /**
   * What selectors take, as Python's `array[…]`: an index, a slice `{ start, stop, step }`, or
   * `'...'`, one for each axis from the first on.
   *
   * @throws RangeError for an index beyond its axis
   * @example
   * array.slice(0, { stop: 10, step: 2 }); // array[0, :10:2]
   * array.slice('...', -1); // array[..., -1]
   * @see https://numpy.org/doc/stable/user/basics.indexing.html
   */
  slice(...selectors: readonly Selector[]): DeviceArray<D> {
    return this.makeView(indexLayout(this.layout, selectors));
  }

  /** The item of an index, or a part where it names fewer axes. @throws RangeError */
  at(...indices: readonly number[]): DeviceArray<D> {
    for (const place of indices) checkInteger(place, 'index', Number.MIN_SAFE_INTEGER);
    return this.slice(...indices);
  }

  /**
   * The same items in another shape, of which one size may be -1: what is left.
   *
   * @throws RangeError for another number of items, or where they must be copied for it
   */
  reshape(shape: number | Shape, options?: OrderOption): DeviceArray<D> {
    const { order = 'C' } = checkOptions(options, ['order'], 'reshape');
    const wanted = typeof shape === 'number' ? [shape] : shape;
    return this.#viewOrThrow(reshape(this.layout, wanted, order), order);
  }

  /** The items in one dimension. @throws RangeError where they must be copied for it */
  ravel(options?: OrderOption): DeviceArray<D> {
    const { order = 'C' } = checkOptions(options, ['order'], 'ravel');
    return this.#viewOrThrow(ravel(this.layout, order), order);
  }

  /** The axes in another order. @param axes default: reversed. @throws RangeError */
  transpose(axes?: readonly number[]): DeviceArray<D> {
    return this.makeView(transpose(this.layout, axes));
  }

  /** The axes reversed. */
  get T(): DeviceArray<D> {
    return this.transpose();
  }

  /** Without axes of size 1. @param axis those to go; default: all. @throws RangeError */
  squeeze(axis?: number | readonly number[]): DeviceArray<D> {
    return this.makeView(squeeze(this.layout, axis));
  }

  /** With an axis of size 1 more, at the place `axis` of the result. @throws RangeError */
  expandDims(axis: number): DeviceArray<D> {
    return this.makeView(expandDims(this.layout, axis));
  }

  /** The items repeated until they have a shape; read only. @throws RangeError */
  broadcastTo(shape: number | Shape): DeviceArray<D> {
    return this.makeView(broadcastTo(this.layout, toShape(shape)), { readOnly: true });
  }

  /** The same bytes as items of another dtype. @throws RangeError where they make no whole items */
  view<E extends Dtype>(dtype: E): DeviceArray<E> {
    return this.makeView(viewWithItemsize(this.layout, checkDtype(dtype).itemsize), { dtype });
  }

  /**
   * The array in parts, along an axis.
   *
   * @param sections how many parts of the same size, as in NumPy; the places at which to cut; or
   * `{ size }`: parts of so many items, the last one with the rest, as numba's `split`
   * @throws RangeError
   */
  split(sections: Sections, axis = 0): DeviceArray<D>[] {
    return splitLayout(this.layout, sections, axis).map((layout) => this.makeView(layout));
  }

  /** The same array, whose work goes to a stream unless a call names another: numba's `bind`. */
  withStream(stream: Stream | undefined): DeviceArray<D> {
    return this.makeView(this.layout, { stream: streamOf(stream) });
  }

  #viewOrThrow({ shape, view }: Reshaped, order: string): DeviceArray<D> {
    if (view) return this.makeView(view);
    throw new RangeError(
      `items of shape ${formatShape(this.shape)} with strides ${formatShape(this.strides)} must be copied to be ${formatShape(shape)} in order ${order}: reshape a copy, array.copy({ order: '${order}' })`,
    );
  }
}

/** What may be copied to an array: items of the host, or another array. */
export type ArraySource<D extends Dtype> = HostSource<D> | DeviceArray<D>;

/**
 * An n-dimensional array in device memory, as numba's DeviceNDArray: a dtype, a shape, and strides
 * in bytes.
 *
 * Slicing, reshaping and the like give views: the same memory, never a copy. An array owns the
 * memory that it was made with: `close()` gives it back and closes all views; closing a view forgets
 * it, and a view keeps the memory alive. Results on the host are flat typed arrays.
 *
 * @example
 * using matrix = await cuda.toDevice([[1, 2, 3], [4, 5, 6]], { dtype: cuda.float32 });
 * matrix.slice('...', 1).fill(0);
 * await matrix.copyToHost(); // Float32Array [1, 0, 3, 4, 0, 6]
 * @see https://numba.readthedocs.io/en/stable/cuda/memory.html
 */
export class DeviceArray<out D extends Dtype = Dtype> extends ArrayViews<D> {
  /**
   * Items that lie in a buffer already, as an array: closing it forgets it.
   *
   * @throws RangeError where an item lies beyond the buffer; TypeError, ClosedError
   * @example
   * const pixels = cuda.DeviceArray.fromBuffer(buffer, [480, 640, 4], cuda.uint8);
   */
  static fromBuffer<D extends Dtype>(
    buffer: DeviceBuffer,
    shape: number | Shape,
    dtype: D,
    options?: FromBufferOptions,
  ): DeviceArray<D> {
    const { order, strides, byteOffset, stream, readOnly } = checkOptions(
      options,
      ['order', 'strides', 'byteOffset', 'stream', 'readOnly'],
      'DeviceArray.fromBuffer',
    );
    checkInstance(buffer, DeviceBuffer, 'buffer').address; // a closed one is refused
    checkDtype(dtype);
    const layout = makeLayout(toShape(shape), dtype.itemsize, { order, strides, byteOffset });
    // Here without items as well: an offset beyond the buffer is a mistake.
    checkWithinBuffer(layout, buffer.byteLength);
    return new DeviceArray({
      buffer,
      dtype,
      layout,
      stream: streamOf(stream),
      isOwner: false,
      readOnly: checkBoolean(readOnly, 'readOnly', false) || buffer.access === 'read',
    });
  }

  /** @internal An array with memory of its own for a layout. */
  static allocate<D extends Dtype>(
    layout: Layout,
    dtype: D,
    choice: MemorySourceOptions & AllocateOptions,
  ): DeviceArray<D> {
    const { memory: buffer } = allocateItems(layout, choice);
    const { stream } = choice;
    return new DeviceArray({ buffer, dtype, layout, stream, isOwner: true, readOnly: false });
  }

  /**
   * A copy with memory of its own, contiguous; only queues.
   *
   * @throws CudaError CUDA_ERROR_OUT_OF_MEMORY
   */
  copy(options?: ArrayCopyOptions): DeviceArray<D> {
    const optionNames = ['order', 'stream', 'memory'] as const;
    const { order, stream, memory } = checkOptions(options, optionNames, 'copy');
    this.address; // a closed array is refused
    const workStream = streamOf(stream) ?? this.stream;
    const layout = newLayout(this.shape, this.dtype.itemsize, { order });
    const copy = DeviceArray.allocate(layout, this.dtype, {
      ...(memory ? { memory } : { context: this.context }),
      ...(workStream && { stream: workStream }),
    });
    try {
      queueArrayCopy(copy, this, workStream);
      return copy;
    } catch (error) {
      copy.close();
      throw error;
    }
  }

  /**
   * Copies to another array of the same shape and dtype, whatever the strides of the two; only
   * queues. It may be on another device, and may lie in the same memory.
   *
   * @throws TypeError for another dtype, a read-only target or one that overlaps itself; RangeError
   * for another shape; ClosedError, CudaError
   */
  copyTo(target: DeviceArray<D>, options?: StreamOption): void {
    const { stream } = checkOptions(options, ['stream'], 'copyTo');
    checkInstance<DeviceArray<D>>(target, DeviceArray, 'target');
    queueArrayCopy(target, this, streamOf(stream) ?? this.stream ?? target.stream);
  }

  /**
   * Copies the items of a source to this array, and resolves when that is done; the event loop turns
   * meanwhile. The source is a typed array with all items one after the other (`order` says which
   * index runs fastest), nested arrays, or an array of the same shape. Until the promise settles
   * both belong to the copy, as in {@link DeviceBuffer.copyFrom}.
   *
   * @throws TypeError for another dtype, a read-only array or one that overlaps itself; RangeError
   * for another shape; ClosedError, CudaError
   */
  async copyFrom(source: ArraySource<D>, options?: CopyOptions & OrderOption): Promise<void> {
    const checked = checkOptions(options, ['stream', 'signal', 'order'], 'copyFrom');
    await endWrite(beginWrite(this, source, checked, 'same'));
  }

  /** As {@link copyFrom}, but blocks until it is done. */
  copyFromSync(source: ArraySource<D>, options?: StreamOption & OrderOption): void {
    const checked = checkOptions(options, ['stream', 'order'], 'copyFromSync');
    endWriteSync(beginWrite(this, source, checked, 'same'));
  }

  /**
   * Copies the items to the host, after the work queued in the stream: into `into`, or into a new
   * typed array; flat, the last index fastest unless `order` is F. {@link toNested} makes nested
   * arrays of it.
   *
   * @throws TypeError, RangeError where `into` is of another kind or length; ClosedError, CudaError
   */
  copyToHost(into?: undefined, options?: CopyOptions & OrderOption): Promise<HostArray<D>>;
  copyToHost<T extends HostValues<D>>(into: T, options?: CopyOptions & OrderOption): Promise<T>;
  copyToHost(into?: HostValues<D>, options?: CopyOptions & OrderOption): Promise<HostValues<D>> {
    return readArray(this, into, options);
  }

  /** As {@link copyToHost}, but blocks until it is done. */
  copyToHostSync(into?: undefined, options?: StreamOption & OrderOption): HostArray<D>;
  copyToHostSync<T extends HostValues<D>>(into: T, options?: StreamOption & OrderOption): T;
  copyToHostSync(into?: HostValues<D>, options?: StreamOption & OrderOption): HostValues<D> {
    return readArraySync(this, into, options);
  }

  /** Sets all items to a value; only queues. @throws TypeError, RangeError, ClosedError */
  fill(value: ItemValue<D>, options?: StreamOption): void {
    fillArray(this, value, options);
  }

  /** The item of an index, read from the device. @throws RangeError */
  async get(...indices: readonly number[]): Promise<ItemOf<D>> {
    return readItem(await this.#itemView(indices).copyToHost(), 0, this.dtype);
  }

  /** As {@link get}, but blocks until it is there. */
  getSync(...indices: readonly number[]): ItemOf<D> {
    return readItem(this.#itemView(indices).copyToHostSync(), 0, this.dtype);
  }

  /**
   * Sets what selectors take, as Python's `array[…] = value`, and resolves when that is done. One
   * item goes to all places; arrays are broadcast as in NumPy, a typed array as one axis unless it
   * has as many items as there are places.
   *
   * @throws RangeError for a shape that does not fit; else as {@link copyFrom}
   * @example
   * await array.set([0, { step: 2 }], 7); // array[0, ::2] = 7
   */
  async set(
    selectors: readonly Selector[],
    value: ItemValue<D> | ArraySource<D>,
    options?: CopyOptions & OrderOption,
  ): Promise<void> {
    const checked = checkOptions(options, ['stream', 'signal', 'order'], 'set');
    await endWrite(beginWrite(this.#selectedView(selectors), value, checked, 'broadcast'));
  }

  /** As {@link set}, but blocks until it is done. */
  setSync(
    selectors: readonly Selector[],
    value: ItemValue<D> | ArraySource<D>,
    options?: StreamOption & OrderOption,
  ): void {
    const checked = checkOptions(options, ['stream', 'order'], 'setSync');
    endWriteSync(beginWrite(this.#selectedView(selectors), value, checked, 'broadcast'));
  }

  override toString(): string {
    return describeArray(this);
  }

  /** With the first values, where they can be had without waiting. */
  override [inspect.custom](): string {
    return [describeArray(this), formatFirstValues(this)].filter(Boolean).join(' ');
  }

  /** @internal */
  protected override makeView<E extends Dtype = D>(
    layout: Layout,
    options: ViewOptions<E> = {},
  ): DeviceArray<E> {
    this.address; // a closed array is refused
    return new DeviceArray({
      buffer: this.buffer,
      dtype: options.dtype ?? (this.dtype as Dtype as E),
      layout,
      stream: 'stream' in options ? options.stream : this.stream,
      isOwner: false,
      readOnly: options.readOnly ?? this.readOnly,
    });
  }

  #selectedView(selectors: readonly Selector[]): DeviceArray<D> {
    return this.makeView(indexLayout(this.layout, selectors));
  }

  #itemView(indices: readonly number[]): DeviceArray<D> {
    if (indices.length !== this.ndim)
      throw new RangeError(
        `an item of shape ${formatShape(this.shape)} has ${this.ndim} indices, not ${indices.length}`,
      );
    return this.at(...indices);
  }
}
