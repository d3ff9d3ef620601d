/** Arrays as text, for printing: dtype, shape, and the first values if they can be read at once. */
import { inspect } from 'node:util';
import { isCapturing } from '../graph-capture.ts';
import { closedWord, describeObject, placeName } from '../inspect.ts';
import { Stream } from '../stream.ts';
import type { CopyableArray } from './array-copy.ts';
import { readItem } from './items.ts';
import { contiguousStrides } from './layout.ts';
import { formatShape } from './shape.ts';

/** A {@link DeviceArray}, as far as printing needs it: the class stands above this file. */
interface PrintableArray extends CopyableArray {
  readonly strides: readonly number[];
  readonly isCContiguous: boolean;
  readonly isFContiguous: boolean;
  readonly readOnly: boolean;
  readonly closed: boolean;
}

/** How many values are printed. */
const MAX_VALUES = 6;

/** Formats an array, e.g. `DeviceArray(float32 [2, 3] on cuda:0, C)`. */
export function describeArray(array: PrintableArray): string {
  const { dtype, shape, strides, context } = array;
  const memoryOrder = array.isCContiguous
    ? 'C'
    : array.isFContiguous
      ? 'F'
      : `strides ${formatShape(strides)}`;
  return describeObject('DeviceArray', () => [
    `${dtype} ${formatShape(shape)} ${placeName(context)}`,
    memoryOrder,
    array.readOnly && 'read only',
    closedWord(array),
  ]);
}

/**
 * Formats the first values in order C, e.g. `[1, 2, … 4 more]`; an empty string for a closed or empty
 * array. Printing must not wait or throw: values that queued work may change are not read.
 */
export function formatFirstValues(array: PrintableArray): string {
  if (array.closed || array.size === 0) return '';
  // Querying the context for queued work would invalidate the capture.
  if (isCapturing()) return '[not read: a graph is captured]';
  try {
    if (!array.context.workTracker.isIdle()) return '[not read: work is queued]';
    const values = readFirstItems(array).map((value) => inspect(value));
    const left = array.size - values.length;
    return `[${values.join(', ')}${left > 0 ? `, … ${left} more` : ''}]`;
  } catch {
    return '[cannot be read]';
  }
}

function readFirstItems({ buffer, layout, size, dtype }: PrintableArray): unknown[] {
  // A non-blocking stream does not wait for other streams.
  const stream = Stream.create({ context: buffer.context, nonBlocking: true });
  try {
    const { shape, strides, itemsize, byteOffset } = layout;
    const steps = contiguousStrides(shape, 1);
    return Array.from({ length: Math.min(size, MAX_VALUES) }, (_, at) => {
      const begin = steps.reduce(
        (byte, step, axis) =>
          byte + (Math.floor(at / step) % (shape[axis] as number)) * (strides[axis] as number),
        byteOffset,
      );
      const values = new dtype.TypedArray(dtype.elementsPerItem);
      buffer.subarray(begin, begin + itemsize).copyToHostSync(values, { stream });
      return readItem(values, 0, dtype);
    });
  } finally {
    stream.close();
  }
}
