/** New arrays with uninitialized items. */

import {
  type AnyDtypeName,
  type Dtype,
  type DtypeOrName,
  defaultDtype,
  dtype as dtypeNamed,
  type NamedDtype,
} from '../dtype.ts';
import { ManagedMemory, type ManagedMemoryOptions } from '../memory/managed.ts';
import { MappedMemory, type MappedMemoryOptions } from '../memory/mapped.ts';
import { streamOf } from '../stream.ts';
import { checkOptions } from '../validate.ts';
import {
  type DeviceArrayLikeOptions,
  type DeviceArrayOptions,
  newLayout,
  type OrderOption,
} from './array-options.ts';
import { DeviceArray } from './device-array.ts';
import { contiguousStrides } from './layout.ts';
import { checkShape, type Shape } from './shape.ts';

/** Options of {@link mappedArray}. */
export interface MappedArrayOptions extends MappedMemoryOptions, OrderOption {}

/** Options of {@link managedArray}. */
export interface ManagedArrayOptions extends ManagedMemoryOptions, OrderOption {}

/**
 * Makes an uninitialized array in device memory, as numba's `device_array`. It owns its memory. A
 * given stream becomes the array's stream: see {@link DeviceArray.stream}.
 *
 * @param shape a number means one axis
 * @param dtype a dtype or its name; default float64
 * @throws TypeError, RangeError, CudaError CUDA_ERROR_OUT_OF_MEMORY
 * @example
 * using array = cuda.deviceArray([480, 640, 3], 'uint8');
 */
export function deviceArray(
  shape: number | Shape,
  dtype?: undefined,
  options?: DeviceArrayOptions,
): DeviceArray<typeof defaultDtype>;
export function deviceArray<D extends Dtype>(
  shape: number | Shape,
  dtype: D,
  options?: DeviceArrayOptions,
): DeviceArray<D>;
export function deviceArray<N extends AnyDtypeName>(
  shape: number | Shape,
  dtype: N,
  options?: DeviceArrayOptions,
): DeviceArray<NamedDtype<N>>;
export function deviceArray(
  shape: number | Shape,
  dtype: DtypeOrName = defaultDtype,
  options?: DeviceArrayOptions,
): DeviceArray {
  const { order, strides, ...choice } = checkOptions(
    options,
    ['order', 'strides', 'stream', 'memory', 'context', 'device'],
    'deviceArray',
  );
  streamOf(choice.stream);
  const type = dtypeNamed(dtype);
  return DeviceArray.allocate(newLayout(shape, type.itemsize, { order, strides }), type, choice);
}

/** The model for a new array: a device array, a pinned array, or a description of one. */
export interface ArrayShape<D extends Dtype = Dtype> {
  readonly shape: Shape;
  readonly dtype: DtypeOrName<D>;
  /** In bytes. Default: contiguous, in order C. */
  readonly strides?: readonly number[];
}

/**
 * Makes an uninitialized array in device memory with the shape and dtype of another, as numba's
 * `device_array_like`. Its strides have the same order and no gaps, as in NumPy's `empty_like`.
 *
 * @throws TypeError, RangeError, CudaError CUDA_ERROR_OUT_OF_MEMORY
 * @example
 * using result = cuda.deviceArrayLike(array);
 */
export function deviceArrayLike<D extends Dtype>(
  array: ArrayShape<D> & { readonly dtype: D },
  options?: DeviceArrayLikeOptions & { readonly dtype?: undefined },
): DeviceArray<D>;
export function deviceArrayLike<N extends AnyDtypeName>(
  array: ArrayShape & { readonly dtype: N },
  options?: DeviceArrayLikeOptions & { readonly dtype?: undefined },
): DeviceArray<NamedDtype<N>>;
export function deviceArrayLike<E extends Dtype>(
  array: ArrayShape,
  options: DeviceArrayLikeOptions<E> & { readonly dtype: E },
): DeviceArray<E>;
export function deviceArrayLike<N extends AnyDtypeName>(
  array: ArrayShape,
  options: DeviceArrayLikeOptions & { readonly dtype: N },
): DeviceArray<NamedDtype<N>>;
export function deviceArrayLike(array: ArrayShape, options?: DeviceArrayLikeOptions): DeviceArray {
  const { order, dtype, ...choice } = checkOptions(
    options,
    ['order', 'dtype', 'stream', 'memory', 'context', 'device'],
    'deviceArrayLike',
  );
  const { shape, dtype: ownDtype, strides } = (array ?? {}) as Partial<ArrayShape>;
  if (!Array.isArray(shape)) throw new TypeError('array must have a shape and a dtype');
  const type = dtypeNamed((dtype ?? ownDtype) as DtypeOrName);
  const sizes = checkShape(shape);
  const layoutOptions = order ? { order } : { strides: stridesLike(sizes, strides, type.itemsize) };
  return deviceArray(sizes, type, { ...choice, ...layoutOptions });
}

/** Strides without gaps, in the order of the other array's strides. */
function stridesLike(
  shape: Shape,
  reference: readonly number[] | undefined,
  itemsize: number,
): readonly number[] {
  const axes = [...shape.keys()];
  if (reference) {
    const strides = axes.map((axis) => Math.abs(reference[axis] ?? 0));
    axes.sort((a, b) => (strides[b] as number) - (strides[a] as number));
  }
  const sorted = contiguousStrides(
    axes.map((axis) => shape[axis] as number),
    itemsize,
  );
  return axes.map((_, axis) => sorted[axes.indexOf(axis)] as number);
}

/**
 * Makes an array in host memory that the device can access, as numba's `mapped_array`. It is zeroed
 * unless write-combined. The CPU accesses it through {@link DeviceArray.host}.
 *
 * @throws RangeError if the system does not have so much memory; NotSupportedError, CudaError
 * @example
 * using flags = cuda.mappedArray(8, cuda.int32);
 * flags.host[0] = 1;
 */
export function mappedArray(
  shape: number | Shape,
  dtype?: undefined,
  options?: MappedArrayOptions,
): DeviceArray<typeof defaultDtype>;
export function mappedArray<D extends Dtype>(
  shape: number | Shape,
  dtype: D,
  options?: MappedArrayOptions,
): DeviceArray<D>;
export function mappedArray<N extends AnyDtypeName>(
  shape: number | Shape,
  dtype: N,
  options?: MappedArrayOptions,
): DeviceArray<NamedDtype<N>>;
export function mappedArray(
  shape: number | Shape,
  dtype: DtypeOrName = defaultDtype,
  options?: MappedArrayOptions,
): DeviceArray {
  const { order, ...kind } = checkOptions(
    options,
    ['order', 'context', 'device', 'portable', 'writeCombined'],
    'mappedArray',
  );
  const type = dtypeNamed(dtype);
  const layout = newLayout(shape, type.itemsize, { order });
  return DeviceArray.allocate(layout, type, { memory: MappedMemory.create(kind) });
}

/**
 * Makes an uninitialized array in managed memory, which CPU and GPU can both access, as numba's
 * `managed_array`. The CPU accesses it through {@link DeviceArray.host}, on devices with
 * `concurrentManagedAccess`.
 *
 * @throws RangeError if less memory is free; NotSupportedError if there is no managed memory
 * @example
 * using array = cuda.managedArray([1024, 1024], cuda.float32);
 */
export function managedArray(
  shape: number | Shape,
  dtype?: undefined,
  options?: ManagedArrayOptions,
): DeviceArray<typeof defaultDtype>;
export function managedArray<D extends Dtype>(
  shape: number | Shape,
  dtype: D,
  options?: ManagedArrayOptions,
): DeviceArray<D>;
export function managedArray<N extends AnyDtypeName>(
  shape: number | Shape,
  dtype: N,
  options?: ManagedArrayOptions,
): DeviceArray<NamedDtype<N>>;
export function managedArray(
  shape: number | Shape,
  dtype: DtypeOrName = defaultDtype,
  options?: ManagedArrayOptions,
): DeviceArray {
  const { order, ...kind } = checkOptions(
    options,
    ['order', 'context', 'device', 'attach'],
    'managedArray',
  );
  const type = dtypeNamed(dtype);
  const layout = newLayout(shape, type.itemsize, { order });
  return DeviceArray.allocate(layout, type, { memory: ManagedMemory.create(kind) });
}
