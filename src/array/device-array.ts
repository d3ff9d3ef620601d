import { inspect } from 'node:util';
import { checkBoolean, checkInstance, checkOptions } from '../arguments.ts';
import type { Dtype } from '../dtype.ts';
import { DeviceBuffer } from '../memory/buffer.ts';
import { streamOf } from '../memory/buffer-copies.ts';
import type { CopyOptions, StreamOption } from '../memory/buffer-options.ts';
import type { AllocateOptions } from '../memory/memory-resource.ts';
import { allocateItems, checkDtype, newLayout, shapeOf } from './allocate-items.ts';
import {
  beginWrite,
  endWrite,
  endWriteSync,
  fillArray,
  queueArray,
  readArray,
  readArraySync,
} from './array-copies.ts';
import type {
  ArrayCopyOptions,
  FromBufferOptions,
  MemoryChoice,
  OrderOption,
} from './array-options.ts';
import { ArrayViews, type ViewTraits } from './array-views.ts';
import type { HostSource } from './host-source.ts';
import { index, type Selector } from './indexing.ts';
import { type HostArray, type HostValues, type ItemOf, type ItemValue, readItem } from './items.ts';
import { checkWithin, type Layout, makeLayout } from './layout.ts';
import { type Shape, shown } from './shape.ts';
import { describe, firstValues } from './show.ts';

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
    const layout = makeLayout(shapeOf(shape), dtype.itemsize, { order, strides, byteOffset });
    // Here without items as well: an offset beyond the buffer is a mistake.
    checkWithin(layout, buffer.byteLength);
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
    choice: MemoryChoice & AllocateOptions,
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
    const known = ['order', 'stream', 'memory'] as const;
    const { order, stream, memory } = checkOptions(options, known, 'copy');
    this.address; // a closed array is refused
    const ordered = streamOf(stream) ?? this.stream;
    const layout = newLayout(this.shape, this.dtype.itemsize, { order });
    const copy = DeviceArray.allocate(layout, this.dtype, {
      ...(memory ? { memory } : { context: this.context }),
      ...(ordered && { stream: ordered }),
    });
    try {
      queueArray(copy, this, ordered);
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
    queueArray(target, this, streamOf(stream) ?? this.stream ?? target.stream);
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
    return readItem(await this.#item(indices).copyToHost(), 0, this.dtype);
  }

  /** As {@link get}, but blocks until it is there. */
  getSync(...indices: readonly number[]): ItemOf<D> {
    return readItem(this.#item(indices).copyToHostSync(), 0, this.dtype);
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
    await endWrite(beginWrite(this.#selected(selectors), value, checked, 'broadcast'));
  }

  /** As {@link set}, but blocks until it is done. */
  setSync(
    selectors: readonly Selector[],
    value: ItemValue<D> | ArraySource<D>,
    options?: StreamOption & OrderOption,
  ): void {
    const checked = checkOptions(options, ['stream', 'order'], 'setSync');
    endWriteSync(beginWrite(this.#selected(selectors), value, checked, 'broadcast'));
  }

  override toString(): string {
    return describe(this);
  }

  /** With the first values, where they can be had without waiting. */
  override [inspect.custom](): string {
    return [describe(this), firstValues(this)].filter(Boolean).join(' ');
  }

  /** @internal */
  protected override derive<E extends Dtype = D>(
    layout: Layout,
    traits: ViewTraits<E> = {},
  ): DeviceArray<E> {
    this.address; // a closed array is refused
    return new DeviceArray({
      buffer: this.buffer,
      dtype: traits.dtype ?? (this.dtype as Dtype as E),
      layout,
      stream: 'stream' in traits ? traits.stream : this.stream,
      isOwner: false,
      readOnly: traits.readOnly ?? this.readOnly,
    });
  }

  #selected(selectors: readonly Selector[]): DeviceArray<D> {
    return this.derive(index(this.layout, selectors));
  }

  #item(indices: readonly number[]): DeviceArray<D> {
    if (indices.length !== this.ndim)
      throw new RangeError(
        `an item of shape ${shown(this.shape)} has ${this.ndim} indices, not ${indices.length}`,
      );
    return this.at(...indices);
  }
}
