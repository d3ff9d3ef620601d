import { CU_IPC_HANDLE_SIZE } from '../../ffi/constants.ts';
import { checkInteger, checkOptions } from '../arguments.ts';
import { checkDtype } from '../array/allocate-items.ts';
import type { LayoutChoice } from '../array/array-options.ts';
import { DeviceArray } from '../array/device-array.ts';
import { extents, type Layout, makeLayout } from '../array/layout.ts';
import { checkShape, type Shape } from '../array/shape.ts';
import { Context, type PlaceOptions } from '../context.ts';
import type { Dtype } from '../dtype.ts';
import { dtype as dtypeNamed } from '../dtype-lookup.ts';
import { IpcError } from '../errors.ts';
import { DeviceBuffer } from '../memory/buffer.ts';
import { streamOf } from '../memory/buffer-copies.ts';
import type { StreamOption } from '../memory/buffer-options.ts';
import { bytesOfView, typedArrayKind } from '../typed-array.ts';
import type { IpcMemoryDescriptor } from './descriptor.ts';
import { checkIsArray } from './descriptor-layout.ts';
import { MEMORY, openAs, openParsed } from './import.ts';
import { mapRaw } from './legacy-import.ts';
import type { OpenOptions } from './open-options.ts';
import { asArray } from './opened-array.ts';

/** An array in memory of another process, by the driver's handle alone. */
export interface RawIpcArray<D extends Dtype = Dtype> extends LayoutChoice {
  /** The driver's 64 bytes, or these in base64. */
  readonly handle: Uint8Array | string;
  readonly shape: Shape;
  /** A dtype, its name or its typestr. */
  readonly dtype: D | string;
  /** The byte of the allocation at which the item of index [0, 0, …] begins. Default 0. */
  readonly byteOffset?: number;
}

/** Options of {@link openIpcArray} for the driver's handle alone. */
export interface OpenRawArrayOptions extends PlaceOptions, StreamOption {}

/** Options of {@link openIpcArray} for a descriptor. */
export interface OpenArrayOptions extends OpenOptions, StreamOption {}

/**
 * Opens an array of another process, without copying it: by its descriptor, as `getIpcHandle(array)`
 * or `exportIpc(array)` gave it, or by the driver's handle alone, which Python or C shared: numba's
 * `open_ipc_array`.
 *
 * Opened twice, the memory is mapped once. Closing the array closes all its views; the memory is
 * unmapped when the last array was closed and the work queued here before is done. A handle alone
 * does not tell an allocation from an earlier one: close what was opened before its exporter frees.
 *
 * @param options the context to open it in, by default that of the descriptor's GPU, and for a handle
 * alone the primary one of device 0; the stream that work on the array goes to
 * @throws IpcError for what cannot be opened, for a descriptor of plain bytes, and for items beyond
 * the allocation; TypeError, RangeError
 * @example
 * using array = openIpcArray(message);
 * @example
 * using array = openIpcArray({ handle, shape: [480, 640], dtype: cuda.float32, byteOffset: 512 });
 * @see https://numba.readthedocs.io/en/stable/cuda/ipc.html
 */
export function openIpcArray<D extends Dtype>(
  source: RawIpcArray<D> & { readonly dtype: D },
  options?: OpenRawArrayOptions,
): DeviceArray<D>;
export function openIpcArray(source: RawIpcArray, options?: OpenRawArrayOptions): DeviceArray;
export function openIpcArray(
  descriptor: IpcMemoryDescriptor,
  options?: OpenArrayOptions,
): DeviceArray;
export function openIpcArray(
  source: RawIpcArray | IpcMemoryDescriptor,
  options?: OpenArrayOptions,
): DeviceArray {
  const isDescribed = typeof source === 'object' && source !== null && 'kind' in source;
  return isDescribed ? openDescribed(source, options) : openRawArray(source, options);
}

function openDescribed(source: IpcMemoryDescriptor, options: OpenArrayOptions = {}): DeviceArray {
  const { stream, ...rest } = options;
  const ordered = streamOf(stream);
  return openAs(MEMORY, source, rest, 'openIpcArray', (descriptor, fds, checked) => {
    checkIsArray(descriptor);
    return asArray(openParsed(descriptor, fds, checked), descriptor, ordered) as DeviceArray;
  });
}

function openRawArray(source: RawIpcArray, options?: OpenRawArrayOptions): DeviceArray {
  const { stream, ...place } = checkOptions(
    options,
    ['stream', 'context', 'device'],
    'openIpcArray',
  );
  const { handle, shape, dtype, byteOffset, order, strides } = checkOptions(
    source,
    ['handle', 'shape', 'dtype', 'byteOffset', 'order', 'strides'],
    'openIpcArray',
  );
  const ordered = streamOf(stream);
  const type = checkDtype(dtypeNamed(dtype as Dtype | string));
  const layout = makeLayout(checkShape(shape), type.itemsize, {
    order,
    strides,
    byteOffset: checkInteger(byteOffset ?? 0, 'byteOffset'),
  });
  const buffer = openHandle(Context.of(place), checkHandle(handle), layout);
  const traits = { stream: ordered, isOwner: true, readOnly: false };
  return new DeviceArray({ buffer, dtype: type, layout, ...traits });
}

function checkHandle(handle: unknown): string {
  if (typeof handle !== 'string' && typedArrayKind(handle) !== 'Uint8Array')
    throw new TypeError('handle must be a Uint8Array, or its bytes in base64');
  const bytes =
    typeof handle === 'string'
      ? Buffer.from(handle, 'base64')
      : Buffer.from(bytesOfView(handle as Uint8Array));
  if (bytes.byteLength !== CU_IPC_HANDLE_SIZE)
    throw new RangeError(`handle has ${bytes.byteLength} bytes, not ${CU_IPC_HANDLE_SIZE}`);
  return bytes.toString('base64');
}

function openHandle(context: Context, handle: string, layout: Layout): DeviceBuffer {
  const { mapping, release } = mapRaw(context, handle);
  const { base, byteLength } = mapping;
  const { low, high } = extents(layout);
  if (low < 0 || high > byteLength) {
    release();
    throw new IpcError(
      `the items reach from byte ${low} to ${high} of an allocation of another process that has ${byteLength}`,
    );
  }
  return new DeviceBuffer({ context, address: base, byteLength, origin: 'imported', release });
}
