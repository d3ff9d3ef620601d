/** Copies items to new or existing device arrays. */

import { beginWait, throwIfOver, type Wait, type WaitOptions } from '../deadline.ts';
import {
  type AnyDtypeName,
  type bool,
  type Dtype,
  type DtypeOf,
  type DtypeOrName,
  dtype as dtypeNamed,
  type float64,
  type int64,
  type NamedDtype,
} from '../dtype.ts';
import { type StreamOption, streamOf } from '../stream.ts';
import type { NativeFloat16Array, TypedArray } from '../typed-array.ts';
import { checkBoolean, checkInstance, checkOptions, formatValue } from '../validate.ts';
import { endWrite, endWriteSync, makeHostWrite, type Write } from './array-copy.ts';
import { type MemorySourceOptions, newLayout, type OrderOption, toShape } from './array-options.ts';
import { type ArraySource, beginWrite, DeviceArray } from './device-array.ts';
import { toHostItems } from './host-source.ts';
import { checkOrder } from './layout.ts';
import type { Nested } from './nested.ts';
import { PinnedArray } from './pinned-array.ts';
import type { Shape } from './shape.ts';

/** Options of {@link toDeviceSync}. */
export interface ToDeviceSyncOptions<D extends Dtype = Dtype>
  extends OrderOption,
    MemorySourceOptions,
    StreamOption {
  /** A dtype or its name. Default: the source's; float64 for nested numbers, bool for booleans, int64 for bigints. */
  readonly dtype?: DtypeOrName<D>;
  /** Default: the shape of the source; a typed array has one axis. */
  readonly shape?: number | Shape;
  /**
   * If false, items of the host are not copied, and the new array stays uninitialized; a device array
   * is returned as it is. Default true.
   */
  readonly copy?: boolean;
  /** An existing array to copy to, which is returned. Default: a new array. */
  readonly to?: DeviceArray<D>;
}

/** Options of {@link toDevice}. */
export interface ToDeviceOptions<D extends Dtype = Dtype>
  extends ToDeviceSyncOptions<D>,
    WaitOptions {}

/** Nested arrays of numbers, of booleans, or of bigints. */
type NestedItems = Nested<number> | Nested<boolean> | Nested<bigint>;

/** The dtype of a source if the caller gives none. */
type DtypeOfSource<S> =
  S extends DeviceArray<infer D>
    ? D
    : S extends PinnedArray<infer D>
      ? D
      : S extends TypedArray | NativeFloat16Array
        ? DtypeOf<S>
        : S extends Nested<boolean>
          ? typeof bool
          : S extends Nested<bigint>
            ? typeof int64
            : typeof float64;

/** A source whose dtype can be inferred. */
type InferableSource = TypedArray | NativeFloat16Array | NestedItems | PinnedArray | DeviceArray;

/**
 * Copies items to a device, as numba's `to_device`, and resolves when the copy is done. The new array
 * is contiguous and owns its memory; `order` applies to a typed array's items and to the new array.
 * With a stream, the copy runs after the work queued there, and the stream becomes the array's.
 *
 * @param source a typed array, nested arrays, one item, a pinned array, or a device array on any
 * device
 * @throws TypeError for another dtype; RangeError for another shape, and for nested arrays of
 * different lengths; ClosedError, CudaError
 * @example
 * using matrix = await cuda.toDevice(new Float32Array(6), { shape: [2, 3] });
 * using weights = await cuda.toDevice([[1, 2], [3, 4]], { dtype: 'float32' });
 * await cuda.toDevice(new Float32Array(6).fill(1), { to: matrix.ravel() });
 */
export function toDevice<D extends Dtype>(
  source: ArraySource<D>,
  options: ToDeviceOptions<D> & ({ readonly dtype: D } | { readonly to: DeviceArray<D> }),
): Promise<DeviceArray<D>>;
export function toDevice<N extends AnyDtypeName>(
  source: ArraySource<NamedDtype<N>>,
  options: ToDeviceOptions<NamedDtype<N>> & { readonly dtype: N },
): Promise<DeviceArray<NamedDtype<N>>>;
export function toDevice<S extends InferableSource>(
  source: S,
  options?: ToDeviceOptions & { readonly dtype?: undefined; readonly to?: undefined },
): Promise<DeviceArray<DtypeOfSource<S>>>;
export async function toDevice(
  source: ArraySource<Dtype>,
  options?: ToDeviceOptions,
): Promise<DeviceArray> {
  const optionNames = [...OPTION_NAMES, 'signal', 'timeoutMs'] as const;
  const { signal, timeoutMs, ...rest } = checkOptions(options, optionNames, 'toDevice');
  const wait = beginWait({ signal, timeoutMs }, 'toDevice');
  throwIfOver(wait);
  const { array, isNew, write } = prepare(source, rest, wait);
  try {
    if (write) await endWrite(write());
    return array;
  } catch (error) {
    if (isNew) array.close();
    throw error;
  }
}

/** As {@link toDevice}, but blocks until the copy is done. */
export function toDeviceSync<D extends Dtype>(
  source: ArraySource<D>,
  options: ToDeviceSyncOptions<D> & ({ readonly dtype: D } | { readonly to: DeviceArray<D> }),
): DeviceArray<D>;
export function toDeviceSync<N extends AnyDtypeName>(
  source: ArraySource<NamedDtype<N>>,
  options: ToDeviceSyncOptions<NamedDtype<N>> & { readonly dtype: N },
): DeviceArray<NamedDtype<N>>;
export function toDeviceSync<S extends InferableSource>(
  source: S,
  options?: ToDeviceSyncOptions & { readonly dtype?: undefined; readonly to?: undefined },
): DeviceArray<DtypeOfSource<S>>;
export function toDeviceSync(
  source: ArraySource<Dtype>,
  options?: ToDeviceSyncOptions,
): DeviceArray {
  const { array, isNew, write } = prepare(
    source,
    checkOptions(options, OPTION_NAMES, 'toDeviceSync'),
  );
  try {
    if (write) endWriteSync(write());
    return array;
  } catch (error) {
    if (isNew) array.close();
    throw error;
  }
}

const OPTION_NAMES = [
  'dtype',
  'shape',
  'order',
  'copy',
  'to',
  'stream',
  'memory',
  'context',
  'device',
] as const;

/** An array and the write of its items. */
interface PreparedArray {
  readonly array: DeviceArray;
  readonly isNew: boolean;
  /** Undefined if nothing needs to be copied. */
  readonly write: (() => Write) | undefined;
}

/** Whether it may be a source; what is in it is checked as it is read. */
const isSource = (source: unknown): boolean =>
  source !== undefined &&
  source !== null &&
  typeof source !== 'function' &&
  (typeof source !== 'object' ||
    Array.isArray(source) ||
    ArrayBuffer.isView(source) ||
    source instanceof PinnedArray ||
    source instanceof DeviceArray ||
    're' in source);

function prepare(
  source: ArraySource<Dtype>,
  options: Partial<ToDeviceSyncOptions>,
  wait: Wait = {},
): PreparedArray {
  const { dtype: given, shape, order, copy, to, stream, ...choice } = options;
  const dtype = given === undefined ? undefined : dtypeNamed(given);
  const shouldCopy = checkBoolean(copy, 'copy', true);
  const checkedStream = streamOf(stream);
  const streamOption = checkedStream ? { stream: checkedStream } : {};
  const copyOptions = { ...streamOption, wait };
  const orderOption = order === undefined ? {} : { order: checkOrder(order) };
  if (to !== undefined) {
    checkInstance<DeviceArray>(to, DeviceArray, 'to');
    assertNoOptions({ shape, ...choice }, 'an array to copy to');
    assertSameDtype(dtype, to, 'to');
    const write = (): Write => beginWrite(to, source, { ...copyOptions, ...orderOption }, 'same');
    return { array: to, isNew: false, write: shouldCopy ? write : undefined };
  }
  if (!isSource(source))
    throw new TypeError(
      'toDevice takes a typed array, nested arrays, one item, a pinned or a device array, not ' +
        formatValue(source),
    );
  if (source instanceof DeviceArray) {
    assertNoOptions(shouldCopy ? { shape } : { shape, ...choice }, 'a device array');
    assertSameDtype(dtype, source, 'source');
    source.assertOpen();
    if (!shouldCopy) return { array: source, isNew: false, write: undefined };
    const { memory, context, device } = choice;
    const hasPlace = memory !== undefined || context !== undefined || device !== undefined;
    const place = hasPlace ? choice : { context: source.context };
    const layout = newLayout(source.shape, source.dtype.itemsize, orderOption);
    const array = DeviceArray.allocate(layout, source.dtype, { ...place, ...streamOption });
    return { array, isNew: true, write: () => beginWrite(array, source, copyOptions, 'same') };
  }
  const givenShape = shape === undefined ? undefined : toShape(shape);
  const items = toHostItems(source, { dtype, shape: givenShape, order });
  const layout = newLayout(items.layout.shape, items.dtype.itemsize, orderOption);
  const array = DeviceArray.allocate(layout, items.dtype, { ...choice, ...streamOption });
  const write = (): Write => makeHostWrite(array, items, checkedStream, wait);
  return { array, isNew: true, write: shouldCopy ? write : undefined };
}

function assertNoOptions(options: Readonly<Record<string, unknown>>, where: string): void {
  const [given] = Object.keys(options).filter((name) => options[name] !== undefined);
  if (given !== undefined)
    throw new TypeError(`${where} has its own ${given}: leave the option out`);
}

function assertSameDtype(dtype: Dtype | undefined, array: DeviceArray, name: string): void {
  if (dtype !== undefined && dtype.name !== array.dtype.name)
    throw new TypeError(`${name} is of ${array.dtype}, not of ${dtype}`);
}
