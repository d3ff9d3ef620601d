import { Context, type PlaceOptions } from '../context.ts';
import {
  type AnyDtypeName,
  type Dtype,
  type DtypeOrName,
  defaultDtype,
  dtype as dtypeNamed,
  type NamedDtype,
} from '../dtype.ts';
import { keepaliveFor } from '../memory/buffer.ts';
import { type StreamOption, streamOf } from '../stream.ts';
import { checkBoolean, checkInteger, checkOptions } from '../validate.ts';
import { newLayout, type OrderOrStrides } from './array-options.ts';
import { borrow } from './borrow.ts';
import type { DeviceArray } from './device-array.ts';
import type { Shape } from './shape.ts';

/** Options of {@link fromPointer}. */
export interface FromPointerOptions<D extends Dtype = Dtype>
  extends OrderOrStrides,
    PlaceOptions,
    StreamOption {
  readonly shape: number | Shape;
  /** Default float64. */
  readonly dtype?: DtypeOrName<D> | undefined;
  /** An object that must stay alive while the array is used. cuffi only keeps a reference to it. */
  readonly owner?: unknown;
  /** Whether writes to the array throw. Default false. */
  readonly readOnly?: boolean;
}

/**
 * Makes an array over memory that another library owns. Closing the array does not free the memory.
 * The address is not checked: using an invalid one corrupts the context.
 *
 * @param address the device address of the item at index [0, 0, …]; with negative strides other
 * items lie before it. Ignored if the array is empty, and may then be 0
 * @throws TypeError, RangeError
 * @example
 * const array = cuda.fromPointer(address, { shape: [480, 640], dtype: cuda.float32, owner: library });
 * @see https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__UNIFIED.html
 */
export function fromPointer(
  address: number,
  options: FromPointerOptions & { readonly dtype?: undefined },
): DeviceArray<typeof defaultDtype>;
export function fromPointer<D extends Dtype>(
  address: number,
  options: FromPointerOptions<D> & { readonly dtype: D },
): DeviceArray<D>;
export function fromPointer<N extends AnyDtypeName>(
  address: number,
  options: FromPointerOptions & { readonly dtype: N },
): DeviceArray<NamedDtype<N>>;
export function fromPointer(address: number, options: FromPointerOptions): DeviceArray {
  const { shape, dtype, order, strides, owner, stream, readOnly, ...place } = checkOptions(
    options,
    ['shape', 'dtype', 'order', 'strides', 'owner', 'stream', 'readOnly', 'context', 'device'],
    'fromPointer',
  );
  checkInteger(address, 'address');
  const type = dtypeNamed(dtype ?? defaultDtype);
  const items = {
    address,
    layout: newLayout(shape as number | Shape, type.itemsize, { order, strides }),
    dtype: type,
    readOnly: checkBoolean(readOnly, 'readOnly', false),
  };
  return borrow(items, Context.resolve(place), streamOf(stream), keepaliveFor(owner));
}
