import {
  type AnyDtypeName,
  type Dtype,
  type DtypeOrName,
  dtype as dtypeNamed,
  type NamedDtype,
} from '../dtype.ts';
import { DeviceBuffer } from '../memory/buffer.ts';
import { streamOf } from '../stream.ts';
import { checkBoolean, checkInstance, checkOptions } from '../validate.ts';
import { type FromBufferOptions, toShape } from './array-options.ts';
import { DeviceArray } from './device-array.ts';
import { checkWithinBuffer, makeLayout } from './layout.ts';
import type { Shape } from './shape.ts';

/**
 * Makes an array over the items in a buffer, as NumPy's `frombuffer`. Closing the array does not free
 * the buffer.
 *
 * @param dtype a dtype or its name
 * @throws RangeError if an item lies outside of the buffer; TypeError, ClosedError
 * @example
 * const pixels = cuda.fromBuffer(buffer, [480, 640, 4], 'uint8');
 */
export function fromBuffer<D extends Dtype>(
  buffer: DeviceBuffer,
  shape: number | Shape,
  dtype: D,
  options?: FromBufferOptions,
): DeviceArray<D>;
export function fromBuffer<N extends AnyDtypeName>(
  buffer: DeviceBuffer,
  shape: number | Shape,
  dtype: N,
  options?: FromBufferOptions,
): DeviceArray<NamedDtype<N>>;
export function fromBuffer(
  buffer: DeviceBuffer,
  shape: number | Shape,
  dtype: DtypeOrName,
  options?: FromBufferOptions,
): DeviceArray {
  const { order, strides, byteOffset, stream, readOnly } = checkOptions(
    options,
    ['order', 'strides', 'byteOffset', 'stream', 'readOnly'],
    'fromBuffer',
  );
  checkInstance(buffer, DeviceBuffer, 'buffer').assertOpen();
  const type = dtypeNamed(dtype);
  const layout = makeLayout(toShape(shape), type.itemsize, { order, strides, byteOffset });
  // Also checks empty arrays: an offset beyond the buffer is a mistake.
  checkWithinBuffer(layout, buffer.byteLength);
  return new DeviceArray({
    buffer,
    dtype: type,
    layout,
    stream: streamOf(stream),
    isOwner: false,
    readOnly: checkBoolean(readOnly, 'readOnly', false) || buffer.access === 'read',
  });
}
