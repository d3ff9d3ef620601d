/** The options of arrays. */
import type { PlaceOptions } from '../context.ts';
import type { Dtype, DtypeOrName } from '../dtype.ts';
import type { MemoryResource } from '../memory/buffer.ts';
import type { StreamOption } from '../stream.ts';
import type { Order } from './layout.ts';

/** Options of calls that take or return items in sequence. */
export interface OrderOption {
  /** Which index runs fastest: the last one (C) or the first one (F). Default C. */
  readonly order?: Order;
}

/** The memory layout of an array. */
export interface OrderOrStrides extends OrderOption {
  /** In bytes; may be 0 or negative. Default: contiguous, in `order`. */
  readonly strides?: readonly number[];
}

/** Where the memory of an array comes from. */
export interface MemorySourceOptions extends PlaceOptions {
  /** Default: plain device memory. */
  readonly memory?: MemoryResource;
}

/** Options of {@link deviceArray}. */
export interface DeviceArrayOptions extends OrderOrStrides, MemorySourceOptions, StreamOption {}

/** Options of {@link deviceArrayLike}. */
export interface DeviceArrayLikeOptions<D extends Dtype = Dtype>
  extends OrderOption,
    MemorySourceOptions,
    StreamOption {
  /** A dtype or its name. Default: the dtype of the other array. */
  readonly dtype?: DtypeOrName<D>;
}

/** Options of {@link DeviceArray.copy}. */
export interface ArrayCopyOptions extends OrderOption, StreamOption {
  /** The memory resource of the copy. Default: plain memory of the same device. */
  readonly memory?: MemoryResource;
}

/** Options of {@link fromBuffer}. */
export interface FromBufferOptions extends OrderOrStrides, StreamOption {
  /** The byte offset in the buffer of the item at index [0, 0, …]. Default 0. */
  readonly byteOffset?: number;
  /** Whether writes to the array throw. Default false. */
  readonly readOnly?: boolean;
}
