/** Arrays of other processes by the driver's handle alone, without a descriptor. */

import { CU_IPC_HANDLE_SIZE } from '../../../ffi/constants.ts';
import type { OrderOrStrides } from '../../array/array-options.ts';
import { DeviceArray } from '../../array/device-array.ts';
import { type Layout, layoutExtents, makeLayout } from '../../array/layout.ts';
import { checkShape, type Shape } from '../../array/shape.ts';
import { Context, type PlaceOptions } from '../../context.ts';
import { type Dtype, type DtypeOrName, dtype as dtypeNamed } from '../../dtype.ts';
import { IpcError } from '../../errors.ts';
import { DeviceBuffer } from '../../memory/buffer.ts';
import { type StreamOption, streamOf } from '../../stream.ts';
import { bytesOfView, typedArrayKind } from '../../typed-array.ts';
import { checkInteger, checkOptions } from '../../validate.ts';
import { mapRaw } from './legacy.ts';

/** An array in memory of another process, by the driver's handle alone. */
export interface RawIpcArray<D extends Dtype = Dtype> extends OrderOrStrides {
  /** The driver's 64 bytes, or the same in base64. */
  readonly handle: Uint8Array | string;
  readonly shape: Shape;
  /** A dtype, its name or its typestr. */
  readonly dtype: DtypeOrName<D>;
  /** The offset of the item [0, 0, …] in the allocation, in bytes. Default 0. */
  readonly byteOffset?: number;
}

/** Options of {@link openIpcArray} for the driver's handle alone. */
export interface OpenRawArrayOptions extends PlaceOptions, StreamOption {}

/** Opens an array by the driver's handle alone. @throws IpcError, TypeError, RangeError */
export function openRawArray(source: RawIpcArray, options?: OpenRawArrayOptions): DeviceArray {
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
  const type = dtypeNamed(dtype as DtypeOrName);
  const layout = makeLayout(checkShape(shape), type.itemsize, {
    order,
    strides,
    byteOffset: checkInteger(byteOffset ?? 0, 'byteOffset'),
  });
  const buffer = openRawHandle(Context.resolve(place), checkHandle(handle), layout);
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

function openRawHandle(context: Context, handle: string, layout: Layout): DeviceBuffer {
  const { mapping, release } = mapRaw(context, handle);
  const { base, byteLength } = mapping;
  const { low, high } = layoutExtents(layout);
  if (low < 0 || high > byteLength) {
    release();
    throw new IpcError(
      `the items reach from byte ${low} to ${high} of an allocation of another process that has ${byteLength}`,
    );
  }
  return new DeviceBuffer({ context, address: base, byteLength, origin: 'imported', release });
}
