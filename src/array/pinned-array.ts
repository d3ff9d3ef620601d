import { refuseItemAccess } from '../conversions.ts';
import {
  type AnyDtypeName,
  Dtype,
  type DtypeOrName,
  defaultDtype,
  dtype as dtypeNamed,
  type NamedDtype,
} from '../dtype.ts';
import type { Details } from '../inspect.ts';
import { Resource } from '../lifetime.ts';
import { PinnedBuffer, type PinnedOptions } from '../memory/pinned.ts';
import { assertInternal, checkOptions } from '../validate.ts';
import { toShape } from './array-options.ts';
import type { HostArray } from './items.ts';
import { checkOrder, itemsByteLength, makeLayout, type Order } from './layout.ts';
import { formatShape, type Shape, sizeOf } from './shape.ts';

/** Options of {@link pinnedArray}. */
export interface PinnedArrayOptions extends PinnedOptions {
  /** Default C. */
  readonly order?: Order;
}

/**
 * An array in page-locked host memory, which the device copies from and to directly, as numba's
 * `pinned_array`. It is host memory: pass {@link host} to copies.
 *
 * @example
 * using pinned = cuda.pinnedArray([2, 3], cuda.float32);
 * pinned.host.fill(1);
 * using array = await cuda.toDevice(pinned); // of shape [2, 3]
 * await array.copyToHost(pinned.host);
 */
export class PinnedArray<out D extends Dtype = Dtype> extends Resource {
  /** The memory; undefined for an empty array. */
  readonly buffer: PinnedBuffer | undefined;
  readonly dtype: D;
  readonly shape: Shape;
  /** In bytes. */
  readonly strides: readonly number[];
  /** The number of items. */
  readonly size: number;
  readonly byteLength: number;
  /** The order of the items in memory. */
  readonly order: Order;

  /** @internal */
  constructor(shape: Shape, dtype: D, order: Order, options: PinnedOptions) {
    assertInternal(dtype, Dtype, 'PinnedArray', 'pinnedArray');
    const layout = makeLayout(shape, dtype.itemsize, { order });
    const byteLength = itemsByteLength(layout);
    const buffer = byteLength === 0 ? undefined : PinnedBuffer.allocate(byteLength, options);
    buffer?.nameAsPartOf('PinnedArray');
    super('PinnedArray', {});
    this.dtype = dtype;
    this.shape = Object.freeze([...layout.shape]);
    this.strides = Object.freeze([...layout.strides]);
    this.size = sizeOf(shape);
    this.byteLength = byteLength;
    this.order = order;
    this.buffer = buffer;
  }

  /** The items, flat, in {@link order}. @throws ClosedError */
  get host(): HostArray<D> {
    this.assertOpen();
    const { buffer, dtype, size } = this;
    if (!buffer) return new dtype.TypedArray(0) as HostArray<D>;
    return new dtype.TypedArray(buffer.buffer, 0, size * dtype.elementsPerItem) as HostArray<D>;
  }

  override get closed(): boolean {
    return super.closed || this.buffer?.closed === true;
  }

  /** Frees the memory; views obtained before then read zeros. Does nothing the second time. */
  override close(): void {
    this.buffer?.close();
    super.close();
  }

  override [Symbol.dispose](): void {
    this.buffer?.[Symbol.dispose]();
    super[Symbol.dispose]();
  }

  /** @internal */
  protected override get closedWith(): Resource | undefined {
    return this.buffer;
  }

  /** @internal */
  protected override describe(): Details {
    return [`${this.dtype} ${formatShape(this.shape)}`, this.order];
  }

  /** @internal */
  protected override operandAdvice(): string {
    return 'compute with its items, in `array.host`';
  }
}

refuseItemAccess(PinnedArray.prototype, {
  name: 'PinnedArray',
  place: 'its items are in a typed array, `array.host`',
  read: (index) =>
    index < 0 ? 'one with `array.host.at(-1)`' : `one with \`array.host[${index}]\``,
  write: () => 'them there',
  iterate: '`array.host`',
});

/**
 * Makes a zeroed array in page-locked host memory, as numba's `pinned_array`.
 *
 * @param dtype a dtype or its name; default float64
 * @throws TypeError; RangeError if the system does not have so much memory; CudaError
 * @see https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__MEM.html
 */
export function pinnedArray(
  shape: number | Shape,
  dtype?: undefined,
  options?: PinnedArrayOptions,
): PinnedArray<typeof defaultDtype>;
export function pinnedArray<D extends Dtype>(
  shape: number | Shape,
  dtype: D,
  options?: PinnedArrayOptions,
): PinnedArray<D>;
export function pinnedArray<N extends AnyDtypeName>(
  shape: number | Shape,
  dtype: N,
  options?: PinnedArrayOptions,
): PinnedArray<NamedDtype<N>>;
export function pinnedArray(
  shape: number | Shape,
  dtype: DtypeOrName = defaultDtype,
  options?: PinnedArrayOptions,
): PinnedArray {
  const { order = 'C', ...pinned } = checkOptions(
    options,
    ['context', 'device', 'portable', 'mapped', 'writeCombined', 'order'],
    'pinnedArray',
  );
  return new PinnedArray(toShape(shape), dtypeNamed(dtype), checkOrder(order), pinned);
}
