import { inspect } from 'node:util';
import type { CUdeviceptr } from '../../ffi/types.ts';
import type { Context } from '../context.ts';
import { refuseItemAccess } from '../conversions.ts';
import { beginWait } from '../deadline.ts';
import {
  type AnyDtypeName,
  type Dtype,
  type DtypeOrName,
  dtype as dtypeNamed,
  type NamedDtype,
} from '../dtype.ts';
import { NotSupportedError } from '../errors.ts';
import { Resource } from '../lifetime.ts';
import type {
  AllocateOptions,
  BufferCloseOptions,
  CopyOptions,
  DeviceBuffer,
} from '../memory/buffer.ts';
import { HostVisibleBuffer } from '../memory/host-visible.ts';
import { type Stream, type StreamOption, streamOf } from '../stream.ts';
import { assertInternal, checkInstance, checkInteger, checkOptions } from '../validate.ts';
import {
  beginArrayWrite,
  beginHostWrite,
  endWrite,
  endWriteSync,
  fillArray,
  queueArrayCopy,
  readArray,
  readArraySync,
  type ShapeRule,
  type Write,
  type WriteOptions,
} from './array-copy.ts';
import {
  type ArrayCopyOptions,
  allocateItems,
  type MemorySourceOptions,
  newLayout,
  type OrderOption,
  toShape,
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
  mayOverlapItself,
} from './layout.ts';
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

/** A source for copies to an array: items of the host, or another array. */
export type ArraySource<D extends Dtype> = HostSource<D> | DeviceArray<D>;

/**
 * An n-dimensional array in device memory, as numba's DeviceNDArray: a dtype, a shape, and strides
 * in bytes.
 *
 * Slicing, reshaping and similar calls return views of the same memory, never copies. An array owns
 * the memory that it was made with: `close()` frees the memory and closes all views. A view keeps the
 * memory alive; closing a view frees nothing. Results on the host are flat typed arrays.
 *
 * @example
 * using matrix = await cuda.toDevice([[1, 2, 3], [4, 5, 6]], { dtype: cuda.float32 });
 * matrix.slice('...', 1).fill(0);
 * await matrix.copyToHost(); // Float32Array [1, 0, 3, 4, 0, 6]
 * @see https://numba.readthedocs.io/en/stable/cuda/memory.html
 */
export class DeviceArray<out D extends Dtype = Dtype> extends Resource {
  /** The memory of the items; an array and its views share it. */
  readonly buffer: DeviceBuffer;
  readonly dtype: D;
  /** The sizes along the axes; empty for a single item. */
  readonly shape: Shape;
  /** The distance in bytes between items along each axis; may be 0 or negative. */
  readonly strides: readonly number[];
  /** The number of items. */
  readonly size: number;
  /** The byte offset in the buffer of the item at index [0, 0, …]. */
  readonly byteOffset: number;
  /** The stream for work on the array if a call gives none; undefined: the default stream. */
  readonly stream: Stream | undefined;
  /** Whether writes to the array throw, as for the result of `broadcastTo`. */
  readonly readOnly: boolean;
  /** @internal */
  readonly layout: Layout;
  readonly #isOwner: boolean;

  /** @internal */
  constructor(init: ArrayInit<D>) {
    assertInternal(init, Object, 'DeviceArray', 'deviceArray or toDevice');
    const { shape, strides, byteOffset } = init.layout;
    const size = sizeOf(shape);
    // Kernels and other libraries get the address, and nothing checks their accesses. An empty slice
    // may start anywhere.
    if (size > 0) checkWithinBuffer(init.layout, init.buffer.byteLength);
    super('DeviceArray', {});
    if (init.isOwner) init.buffer.nameAsPartOf('DeviceArray');
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

  /** @internal Allocates memory for a layout and makes an array of it. */
  static allocate<D extends Dtype>(
    layout: Layout,
    dtype: D,
    choice: MemorySourceOptions & AllocateOptions,
  ): DeviceArray<D> {
    const { memory: buffer } = allocateItems(layout, choice);
    const { stream } = choice;
    return new DeviceArray({ buffer, dtype, layout, stream, isOwner: true, readOnly: false });
  }

  /** The number of axes. */
  get ndim(): number {
    return this.shape.length;
  }

  /** The total length of all items in bytes, without gaps. */
  get byteLength(): number {
    return itemsByteLength(this.layout);
  }

  get context(): Context {
    return this.buffer.context;
  }

  /**
   * The device address of the item at index [0, 0, …]; 0 if the array was allocated empty.
   *
   * @throws ClosedError
   */
  get address(): CUdeviceptr {
    this.assertOpen();
    return (this.buffer.address + this.byteOffset) as CUdeviceptr;
  }

  /** The address of the first byte of the items, and the address after the last byte. */
  get extents(): Extents {
    const start = this.address - this.byteOffset;
    const { low, high } = layoutExtents(this.layout);
    return { low: start + low, high: start + high };
  }

  /** Whether the items are contiguous in order C: the last axis fastest. Empty arrays are. */
  get isCContiguous(): boolean {
    return isContiguous(this.layout, 'C');
  }

  /** Whether the items are contiguous in order F: the first axis fastest. */
  get isFContiguous(): boolean {
    return isContiguous(this.layout, 'F');
  }

  /**
   * The items in mapped or managed memory as a typed array for the CPU, in memory order. Each side sees
   * what the other has written once the work is done.
   *
   * @throws NotSupportedError for other memory, and for items that are not contiguous;
   * ClosedError
   */
  get host(): HostArray<D> {
    const { buffer, dtype, size } = this;
    this.assertOpen();
    if (!this.isCContiguous && !this.isFContiguous)
      throw new NotSupportedError(
        `the items of shape ${formatShape(this.shape)} with strides ${formatShape(this.strides)} are not contiguous: copy them with copyToHost`,
      );
    if (size === 0) return new dtype.TypedArray(0) as HostArray<D>;
    if (!(buffer instanceof HostVisibleBuffer))
      throw new NotSupportedError('the CPU cannot access this memory: copy it with copyToHost');
    const length = size * dtype.elementsPerItem;
    return new dtype.TypedArray(buffer.buffer, this.byteOffset, length) as HostArray<D>;
  }

  /** Whether the process that owns the memory has exited: see {@link DeviceBuffer.ownerGone}. */
  get ownerGone(): boolean {
    return this.buffer.ownerGone;
  }

  override get closed(): boolean {
    return super.closed || this.buffer.closed;
  }

  /**
   * Returns the view that selectors choose, as Python's `array[…]`. There is one selector for each
   * axis from the first on: an index, a slice `{ start, stop, step }`, or `'...'`.
   *
   * @throws RangeError for an index beyond its axis
   * @example
   * array.slice(0, { stop: 10, step: 2 }); // array[0, :10:2]
   * array.slice('...', -1); // array[..., -1]
   * @see https://numpy.org/doc/stable/user/basics.indexing.html
   */
  slice(...selectors: readonly Selector[]): DeviceArray<D> {
    return this.#makeView(indexLayout(this.layout, selectors));
  }

  /** The item at an index, or a part if there are fewer indices than axes. @throws RangeError */
  at(...indices: readonly number[]): DeviceArray<D> {
    for (const place of indices) checkInteger(place, 'index', Number.MIN_SAFE_INTEGER);
    return this.slice(...indices);
  }

  /**
   * The same items in another shape. One size may be -1 and is then computed.
   *
   * @throws RangeError for another number of items, or if the items would have to be copied
   */
  reshape(shape: number | Shape, options?: OrderOption): DeviceArray<D> {
    if (typeof options === 'number')
      throw new TypeError(`reshape takes the shape as one list: reshape([${shape}, ${options}])`);
    const { order = 'C' } = checkOptions(options, ['order'], 'reshape');
    const wanted = typeof shape === 'number' ? [shape] : shape;
    return this.#viewOrThrow(reshape(this.layout, wanted, order), order);
  }

  /** The items along one axis. @throws RangeError if they would have to be copied */
  ravel(options?: OrderOption): DeviceArray<D> {
    const { order = 'C' } = checkOptions(options, ['order'], 'ravel');
    return this.#viewOrThrow(ravel(this.layout, order), order);
  }

  /** The axes in another order. @param axes default: reversed. @throws RangeError */
  transpose(axes?: readonly number[]): DeviceArray<D> {
    if (typeof axes === 'number')
      throw new TypeError(
        'transpose takes the axes as one list, such as transpose([1, 0]), or none',
      );
    return this.#makeView(transpose(this.layout, axes));
  }

  /** The axes reversed. */
  get T(): DeviceArray<D> {
    return this.transpose();
  }

  /** Removes axes of size 1. @param axis the axes to remove; default: all. @throws RangeError */
  squeeze(axis?: number | readonly number[]): DeviceArray<D> {
    return this.#makeView(squeeze(this.layout, axis));
  }

  /** Inserts an axis of size 1 at position `axis` of the result. @throws RangeError */
  expandDims(axis: number): DeviceArray<D> {
    return this.#makeView(expandDims(this.layout, axis));
  }

  /** The items repeated to a shape; read only. @throws RangeError */
  broadcastTo(shape: number | Shape): DeviceArray<D> {
    return this.#makeView(broadcastTo(this.layout, toShape(shape)), { readOnly: true });
  }

  /** The same bytes as items of another dtype. @throws RangeError if the sizes do not fit */
  view<E extends Dtype>(dtype: E): DeviceArray<E>;
  view<N extends AnyDtypeName>(dtype: N): DeviceArray<NamedDtype<N>>;
  view(dtype: DtypeOrName): DeviceArray {
    const type = dtypeNamed(dtype);
    return this.#makeView(viewWithItemsize(this.layout, type.itemsize), { dtype: type });
  }

  /**
   * Splits the array along an axis.
   *
   * @param sections the number of equal parts, as in NumPy; the indices at which to split; or
   * `{ size }`: parts of so many items, the last of which may be shorter, as numba's `split`
   * @throws RangeError
   */
  split(sections: Sections, axis = 0): DeviceArray<D>[] {
    return splitLayout(this.layout, sections, axis).map((layout) => this.#makeView(layout));
  }

  /** The same array with another default stream for its work, as numba's `bind`. */
  withStream(stream: Stream | undefined): DeviceArray<D> {
    return this.#makeView(this.layout, { stream: streamOf(stream) });
  }

  /**
   * Allocates a contiguous copy and queues the copying of the items.
   *
   * @throws CudaError CUDA_ERROR_OUT_OF_MEMORY
   */
  copy(options?: ArrayCopyOptions): DeviceArray<D> {
    const optionNames = ['order', 'stream', 'memory'] as const;
    const { order, stream, memory } = checkOptions(options, optionNames, 'copy');
    this.assertOpen();
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
   * Queues a copy to another array of the same shape and dtype, with any strides. The target may be on
   * another device, and may overlap this array.
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
   * Copies the items of a source to this array, and resolves when the copy is done. The source is a
   * typed array with all items in `order`, nested arrays, or an array of the same shape. Until the
   * promise settles, neither source nor array may be used otherwise, as in {@link DeviceBuffer.copyFrom}.
   *
   * @throws TypeError for another dtype, a read-only array or one that overlaps itself; RangeError
   * for another shape; ClosedError, CudaError
   */
  async copyFrom(source: ArraySource<D>, options?: CopyOptions & OrderOption): Promise<void> {
    const writeOptions = checkWaitingWrite(options, 'copyFrom');
    await endWrite(beginWrite(this, source, writeOptions, 'same'));
  }

  /** As {@link copyFrom}, but blocks until that is done. */
  copyFromSync(source: ArraySource<D>, options?: StreamOption & OrderOption): void {
    const checked = checkOptions(options, ['stream', 'order'], 'copyFromSync');
    endWriteSync(beginWrite(this, source, checked, 'same'));
  }

  /**
   * Copies the items to the host after the work queued in the stream, to `into` or a new typed array.
   * The result is flat, the last index fastest unless `order` is F. {@link toNested} converts it to
   * nested arrays.
   *
   * @throws TypeError, RangeError if `into` is of another kind or length; ClosedError, CudaError
   */
  copyToHost(into?: undefined, options?: CopyOptions & OrderOption): Promise<HostArray<D>>;
  copyToHost<T extends HostValues<D>>(into: T, options?: CopyOptions & OrderOption): Promise<T>;
  copyToHost(into?: HostValues<D>, options?: CopyOptions & OrderOption): Promise<HostValues<D>> {
    return readArray(this, into, options);
  }

  /** As {@link copyToHost}, but blocks until that is done. */
  copyToHostSync(into?: undefined, options?: StreamOption & OrderOption): HostArray<D>;
  copyToHostSync<T extends HostValues<D>>(into: T, options?: StreamOption & OrderOption): T;
  copyToHostSync(into?: HostValues<D>, options?: StreamOption & OrderOption): HostValues<D> {
    return readArraySync(this, into, options);
  }

  /** Queues a fill of all items with a value. @throws TypeError, RangeError, ClosedError */
  fill(value: ItemValue<D>, options?: StreamOption): void {
    fillArray(this, value, options);
  }

  /** Reads the item at an index from the device. @throws RangeError */
  async get(...indices: readonly number[]): Promise<ItemOf<D>> {
    return readItem(await this.#itemView(indices).copyToHost(), 0, this.dtype);
  }

  /** As {@link get}, but blocks until the item is read. */
  getSync(...indices: readonly number[]): ItemOf<D> {
    return readItem(this.#itemView(indices).copyToHostSync(), 0, this.dtype);
  }

  /**
   * Sets the items that selectors choose, as Python's `array[…] = value`, and resolves when that is
   * done. A single item is set everywhere. Arrays are broadcast as in NumPy; a typed array counts as
   * one axis unless it has as many items as are chosen.
   *
   * @throws RangeError if the shapes do not fit; otherwise as {@link copyFrom}
   * @example
   * await array.set([0, { step: 2 }], 7); // array[0, ::2] = 7
   */
  async set(
    selectors: readonly Selector[],
    value: ItemValue<D> | ArraySource<D>,
    options?: CopyOptions & OrderOption,
  ): Promise<void> {
    assertIsList(selectors, 'set');
    const writeOptions = checkWaitingWrite(options, 'set');
    await endWrite(beginWrite(this.#selectedView(selectors), value, writeOptions, 'broadcast'));
  }

  /** As {@link set}, but blocks until that is done. */
  setSync(
    selectors: readonly Selector[],
    value: ItemValue<D> | ArraySource<D>,
    options?: StreamOption & OrderOption,
  ): void {
    assertIsList(selectors, 'setSync');
    const checked = checkOptions(options, ['stream', 'order'], 'setSync');
    endWriteSync(beginWrite(this.#selectedView(selectors), value, checked, 'broadcast'));
  }

  /**
   * Frees the memory that the array was made with; does nothing the second time. Closing a view frees
   * nothing. Memory of a pool is freed in the order of `stream`, by default that of its allocation.
   * Memory that other processes use is freed as {@link DeviceBuffer.close} says.
   *
   * @throws CuffiError with `{ leases: 'refuse' }` if others use it; then it stays open
   */
  override close(options?: BufferCloseOptions): void {
    if (this.#isOwner) this.buffer.close(options);
    super.close();
  }

  override [Symbol.dispose](): void {
    if (this.#isOwner) this.buffer[Symbol.dispose]();
    super[Symbol.dispose]();
  }

  /** @internal */
  protected override get closedWith(): Resource {
    return this.buffer;
  }

  override toString(): string {
    return describeArray(this);
  }

  /** Includes the first values if they can be read without waiting. */
  override [inspect.custom](): string {
    return [describeArray(this), formatFirstValues(this)].filter(Boolean).join(' ');
  }

  /** @internal */
  protected override operandAdvice(): string {
    return 'compute on the device with a kernel, or on the host with `await array.copyToHost()`';
  }

  /** @internal @throws TypeError if the array is read only or overlaps itself; ClosedError */
  assertWritable(name: string): void {
    this.assertOpen();
    if (this.readOnly) throw new TypeError(`${name} is read only`);
    const { layout } = this;
    const isPlain = isContiguous(layout, 'C') || isContiguous(layout, 'F');
    if (!isPlain && mayOverlapItself(layout))
      throw new TypeError(
        `${name} overlaps itself: items of shape ${formatShape(this.shape)} with strides ${formatShape(this.strides)} share bytes`,
      );
  }

  /** Makes a view: an array with the same memory, which it does not own. */
  #makeView<E extends Dtype = D>(layout: Layout, options: ViewOptions<E> = {}): DeviceArray<E> {
    this.assertOpen();
    return new DeviceArray({
      buffer: this.buffer,
      dtype: options.dtype ?? (this.dtype as Dtype as E),
      layout,
      stream: 'stream' in options ? options.stream : this.stream,
      isOwner: false,
      readOnly: options.readOnly ?? this.readOnly,
    });
  }

  #viewOrThrow({ shape, view }: Reshaped, order: string): DeviceArray<D> {
    if (view) return this.#makeView(view);
    throw new RangeError(
      `items of shape ${formatShape(this.shape)} with strides ${formatShape(this.strides)} must be copied to be ${formatShape(shape)} in order ${order}: reshape a copy, array.copy({ order: '${order}' })`,
    );
  }

  #selectedView(selectors: readonly Selector[]): DeviceArray<D> {
    return this.#makeView(indexLayout(this.layout, selectors));
  }

  #itemView(indices: readonly number[]): DeviceArray<D> {
    if (indices.length !== this.ndim)
      throw new RangeError(
        `an item of shape ${formatShape(this.shape)} has ${this.ndim} indices, not ${indices.length}`,
      );
    return this.at(...indices);
  }
}

refuseItemAccess(DeviceArray.prototype, {
  name: 'DeviceArray',
  place: 'its items are in memory of the device',
  read: (index) =>
    `one item with \`await array.get(${index})\`, all with \`await array.copyToHost()\`, or view a part with \`array.slice(${index})\``,
  write: (index) => `it with \`await array.set([${index}], value)\``,
  iterate: '`await array.copyToHost()`',
});

// ---- What the class is made from, and writes of any source ----

/** The parts of an array. */
export interface ArrayInit<D extends Dtype> {
  readonly buffer: DeviceBuffer;
  readonly dtype: D;
  /** The items must lie within the buffer, which is checked. The array takes its shape and strides. */
  readonly layout: Layout;
  readonly stream?: Stream | undefined;
  /** Whether closing the array closes the buffer. */
  readonly isOwner: boolean;
  readonly readOnly: boolean;
}

/** The properties of a view that may differ from its array's, besides the layout. */
export interface ViewOptions<D extends Dtype> {
  readonly dtype?: D;
  readonly stream?: Stream | undefined;
  readonly readOnly?: boolean;
}

function assertIsList(selectors: unknown, call: 'set' | 'setSync'): void {
  if (!Array.isArray(selectors))
    throw new TypeError(
      `${call} takes the index as a list, then the value: ${call}([${String(selectors)}], value)`,
    );
}

function checkWaitingWrite(
  options: (CopyOptions & OrderOption) | undefined,
  call: string,
): WriteOptions {
  const known = ['stream', 'signal', 'timeoutMs', 'order'] as const;
  const { signal, timeoutMs, ...rest } = checkOptions(options, known, call);
  return { ...rest, wait: beginWait({ signal, timeoutMs }, call) };
}

/** Starts a write of any source, for `copyFrom`, `set` and `toDevice`. */
export const beginWrite = (
  target: DeviceArray,
  source: unknown,
  options: WriteOptions,
  rule: ShapeRule,
): Write =>
  source instanceof DeviceArray
    ? beginArrayWrite(target, source, options, rule)
    : beginHostWrite(target, source, options, rule);
