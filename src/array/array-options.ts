/** The options of arrays. */
import type { PlaceOptions } from '../context.ts';
import type { Dtype } from '../dtype.ts';
import type { MemoryResource } from '../memory/buffer.ts';
import type { StreamOption } from '../stream.ts';
import type { Order } from './layout.ts';

/** Options of calls that take or give items one after the other. */
export interface OrderOption {
  /** Which index runs fastest: the last one (C) or the first one (F). Default C. */
  readonly order?: Order;
}

/** How the items of an array lie. */
export interface OrderOrStrides extends OrderOption {
  /** In bytes; 0 and negative ones are legal. Default: contiguous, in `order`. */
  readonly strides?: readonly number[];
}

/** Where the memory of an array comes from, and the stream that it is for. */
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
  /** Default: that of the other array. */
  readonly dtype?: D;
}

/** Options of {@link DeviceArray.copy}. */
export interface ArrayCopyOptions extends OrderOption, StreamOption {
  /** Where the copy's memory comes from. Default: plain memory of the same device. */
  readonly memory?: MemoryResource;
}

/** Options of {@link DeviceArray.fromBuffer}. */
export interface FromBufferOptions extends OrderOrStrides, StreamOption {
  /** The byte of the buffer at which the item of index [0, 0, …] begins. Default 0. */
  readonly byteOffset?: number;
  /** Whether cuffi refuses to write to the array. Default false. */
  readonly readOnly?: boolean;
}
