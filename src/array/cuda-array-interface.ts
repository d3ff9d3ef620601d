/** The CUDA array interface, version 3: how Python libraries exchange arrays. */
import { CU_STREAM_LEGACY, CU_STREAM_PER_THREAD } from '../../ffi/constants.ts';
import type { Context } from '../context.ts';
import { type Dtype, dtype as dtypeNamed } from '../dtype.ts';
import { NotSupportedError } from '../errors.ts';
import { Stream, streamOf } from '../stream.ts';
import { checkBoolean, checkInstance, checkInteger, checkOptions } from '../validate.ts';
import { newLayout } from './array-options.ts';
import {
  attachMemory,
  type BorrowOptions,
  borrow,
  checkBorrowOptions,
  contextsOfExternal,
  type ExternalItems,
  ownerOrDescription,
  streamOrDefault,
  waitForProducer,
} from './borrow.ts';
import { DeviceArray } from './device-array.ts';
import { checkShape } from './shape.ts';

/** An array as the CUDA array interface describes it. */
export interface CudaArrayInterface {
  readonly shape: readonly number[];
  /** In bytes; null if the items are contiguous in order C. */
  readonly strides: readonly number[] | null;
  /** The dtype, e.g. `<f4`. */
  readonly typestr: string;
  /** The address of the item at index [0, 0, …], or 0 if empty; and whether it is read only. */
  readonly data: readonly [address: number, readOnly: boolean];
  readonly version: 3;
  /**
   * The stream whose work the consumer must wait for: 1 is the legacy default stream, 2 the
   * per-thread default stream, others are handles. Null if there is nothing to wait for.
   */
  readonly stream: number | null;
}

/** Options of {@link cudaArrayInterface}. */
export interface CudaArrayInterfaceOptions {
  /**
   * The stream with the work that the consumer must wait for; null if all work is done. Default: the
   * array's stream, or the legacy default stream.
   */
  readonly stream?: Stream | null;
}

const VERSION = 3;

/**
 * Describes an array as the dictionary of the CUDA array interface, which is plain, JSON-safe data.
 * Other libraries of this process can use it, and other processes that have opened the memory.
 *
 * The dictionary keeps the memory alive; closing the array frees it all the same.
 *
 * @throws TypeError, ClosedError
 * @example
 * const { data, strides } = cuda.cudaArrayInterface(array);
 * @see https://numba.readthedocs.io/en/stable/cuda/cuda_array_interface.html
 */
export function cudaArrayInterface(
  array: DeviceArray,
  options?: CudaArrayInterfaceOptions,
): CudaArrayInterface {
  const { stream } = checkOptions(options, ['stream'], 'cudaArrayInterface');
  const { address, dtype, isCContiguous, readOnly, shape, size, strides } = checkInstance(
    array,
    DeviceArray,
    'array',
  );
  const consumed = stream === null ? undefined : (streamOf(stream) ?? array.stream);
  if (stream !== null) array.buffer.orderUse(consumed);
  // The handle of a default stream names that of the memory's context.
  if (consumed && isDefaultStream(consumed.handle))
    waitForProducer(consumed, Stream.fromHandle(consumed.handle, { context: array.context }));
  const described: CudaArrayInterface = {
    shape: [...shape],
    strides: isCContiguous ? null : [...strides],
    typestr: dtype.typestr,
    data: [size === 0 ? 0 : address, readOnly],
    version: VERSION,
    stream: stream === null ? null : (consumed?.handle ?? CU_STREAM_LEGACY),
  };
  return attachMemory(described, array);
}

/**
 * Makes an array over the memory that a dictionary of the CUDA array interface describes, as numba's
 * `from_cuda_array_interface`. Closing the array does not free the memory.
 *
 * Later work of `stream` waits for the work of the dictionary's stream; the call does not block.
 * With `{ ...description, stream: null }` nothing waits. cuffi cannot check that the items belong to
 * the memory, nor that a stream's handle is valid; it checks everything else.
 *
 * @param description the dictionary; structured items become raw bytes
 * @param options `stream`: the stream for work on the array. Default: the legacy default stream.
 * The context or device is by default that of the memory
 * @throws NotSupportedError for a masked array; TypeError, RangeError, CudaError
 * @example
 * const array = cuda.fromCudaArrayInterface(tensor.cudaArrayInterface, { owner: tensor, stream });
 * @see https://numba.readthedocs.io/en/stable/cuda/cuda_array_interface.html
 */
export function fromCudaArrayInterface(description: unknown, options?: BorrowOptions): DeviceArray {
  const { owner, consumer, place } = checkBorrowOptions(options, 'fromCudaArrayInterface');
  if (typeof description !== 'object' || description === null)
    throw new TypeError('the description must be a dictionary of the CUDA array interface');
  const described = description as Record<string, unknown>;
  assertIsDescription(described);
  const items = checkDescription(described);
  const handle = checkStream(described['stream']);
  const contexts = contextsOfExternal(items, place, description);
  if (handle !== undefined)
    waitForProducer(
      producerStream(handle, contexts.producer),
      streamOrDefault(contexts.consumer, consumer),
    );
  return borrow(items, contexts.consumer, consumer, ownerOrDescription(description, owner));
}

function assertIsDescription(described: Record<string, unknown>): void {
  if (described instanceof DeviceArray)
    throw new TypeError('this is a DeviceArray of cuffi already: use it as it is');
  if ('__cuda_array_interface__' in described)
    throw new TypeError(
      'pass the dictionary itself: fromCudaArrayInterface(object.__cuda_array_interface__)',
    );
  if (!('version' in described))
    throw new TypeError(
      'the description has no version: pass the dictionary of the CUDA array interface, with shape, ' +
        'typestr, data and version',
    );
}

function checkDescription({
  shape,
  strides,
  typestr,
  data,
  version,
  mask,
}: Record<string, unknown>): ExternalItems<Dtype> {
  checkInteger(version, 'version', 0, VERSION);
  if (mask !== undefined && mask !== null)
    throw new NotSupportedError(
      'a masked array is not supported: describe its values and its mask as an array each',
    );
  if (typeof typestr !== 'string') throw new TypeError('typestr must be a string');
  const dtype = dtypeNamed(typestr);
  const sizes = checkShape(shape);
  const layout = newLayout(sizes, dtype.itemsize, {
    strides: strides === null ? undefined : (strides as readonly number[] | undefined),
  });
  if (!Array.isArray(data) || data.length !== 2)
    throw new TypeError('data must be [address, readOnly]');
  return {
    address: checkInteger(data[0], 'data[0]'),
    layout,
    dtype,
    readOnly: checkBoolean(data[1], 'data[1]', false),
  };
}

function checkStream(stream: unknown): number | undefined {
  if (stream === undefined || stream === null) return undefined;
  if (stream === 0)
    throw new RangeError(
      'stream 0 is ambiguous, and the interface forbids it: 1 is the legacy default stream, 2 that of the thread',
    );
  return checkInteger(stream, 'stream', 1);
}

/** A default stream is that of the producer's context; the driver knows the context of other streams. */
const producerStream = (handle: number, context: Context): Stream =>
  Stream.fromHandle(handle, isDefaultStream(handle) ? { context } : {});

const isDefaultStream = (handle: number): boolean => handle <= CU_STREAM_PER_THREAD;
