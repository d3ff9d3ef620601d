/** DLPack: how tensor libraries exchange tensors, here as the fields of a DLTensor. */

import { type DlpackType, type Dtype, dtypeFromDlpack } from '../dtype.ts';
import { NotSupportedError } from '../errors.ts';
import { type DeviceBuffer, DeviceMemory } from '../memory/buffer.ts';
import { ManagedMemory } from '../memory/managed.ts';
import { MappedMemory } from '../memory/mapped.ts';
import { kindOfPointer, type MemoryKind } from '../memory/pointer-attributes.ts';
import { type Stream, streamOf } from '../stream.ts';
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
import { checkIntegers, checkShape, formatShape } from './shape.ts';

/** DLDeviceType: device memory, page-locked host memory, managed memory. */
const DEVICE_CUDA = 2;
const DEVICE_CUDA_HOST = 3;
const DEVICE_CUDA_MANAGED = 13;

/** The memory of a tensor: DLDevice. */
export interface DlpackDevice {
  /** 2: memory of a CUDA device; 3: page-locked host memory; 13: managed memory. */
  readonly type: number;
  /** The device's ordinal for type 2; otherwise 0. */
  readonly id: number;
}

/** The fields of a DLTensor and of its DLManagedTensorVersioned. */
export interface DlpackTensor {
  readonly version: { readonly major: number; readonly minor: number };
  readonly flags: { readonly readOnly: boolean };
  /** The address of the item at index [0, 0, …], less `byteOffset`; 0 if the tensor is empty. */
  readonly data: number;
  readonly device: DlpackDevice;
  readonly ndim: number;
  readonly dtype: DlpackType;
  readonly shape: readonly number[];
  /** In items, not in bytes. */
  readonly strides: readonly number[];
  readonly byteOffset: number;
}

/** Options of {@link dlpack}. */
export interface DlpackOptions {
  /**
   * The consumer's stream, which will wait for the work on the array; null if nothing needs to wait.
   * Default: the legacy default stream.
   */
  readonly stream?: Stream | null;
}

const VERSION = { major: 1, minor: 1 } as const;

/**
 * Describes an array as the fields of a DLTensor, for other tensor libraries of this process. Plain
 * data.
 *
 * Later work of the consumer's stream waits for the work queued in the array's stream; the call does
 * not block. The tensor object keeps the memory alive, as DLPack does until the deleter is called.
 * Closing the array frees the memory all the same, so only the last user should close it.
 *
 * @throws RangeError if a stride is not a multiple of the item size, or a raw item is longer than 65535 bytes;
 * TypeError, ClosedError
 * @example
 * const { data, shape, strides, dtype } = cuda.dlpack(array, { stream });
 * @see https://dmlc.github.io/dlpack/latest/c_api.html
 */
export function dlpack(array: DeviceArray, options?: DlpackOptions): DlpackTensor {
  const { stream } = checkOptions(options, ['stream'], 'dlpack');
  const { address, buffer, context, ndim, readOnly, shape, size } = checkInstance(
    array,
    DeviceArray,
    'array',
  );
  const tensor: DlpackTensor = {
    version: VERSION,
    flags: { readOnly },
    data: size === 0 ? 0 : address,
    device: dlpackDeviceOf(array),
    ndim,
    dtype: array.dtype.dlpack,
    shape: [...shape],
    strides: stridesInItems(array),
    // Some consumers ignore the offset, so the address includes it.
    byteOffset: 0,
  };
  if (stream !== null) {
    const consumer = streamOrDefault(context, streamOf(stream));
    waitForProducer(streamOrDefault(context, array.stream), consumer);
    buffer.orderUse(consumer);
  }
  return attachMemory(tensor, array);
}

/**
 * Makes an array over the memory of a DLPack tensor. Closing the array does not free the memory.
 *
 * The producer has already made the consumer's stream wait: pass the same stream to both.
 *
 * @param tensor the fields of a DLTensor, as {@link dlpack} returns them. All are checked; `version`,
 * `flags`, `strides` and `byteOffset` may be absent
 * @param options `stream`: the stream for work on the array. Default: the legacy default stream. The
 * context or device is by default that of the tensor
 * @throws NotSupportedError for other device types and for another major version;
 * TypeError, RangeError
 * @example
 * const array = cuda.fromDLPack(library.toDlpack(tensor), { owner: tensor });
 * @see https://dmlc.github.io/dlpack/latest/c_api.html
 */
export function fromDLPack(tensor: unknown, options?: BorrowOptions): DeviceArray {
  const { owner, consumer, place } = checkBorrowOptions(options, 'fromDLPack');
  const fields = checkFields(tensor, 'the tensor');
  checkVersion(fields['version']);
  if (!('data' in fields || 'dtype' in fields))
    throw new TypeError(
      'the tensor has no field of DLPack: pass an object with data, device, dtype and shape, as ' +
        'dlpack() returns it',
    );
  const items = checkTensor(fields);
  const contexts = contextsOfExternal(items, place, fields, deviceOrdinal(fields['device']));
  return borrow(items, contexts.consumer, consumer, ownerOrDescription(fields, owner));
}

// ---- The fields of tensors ----

function dlpackDeviceOf({ buffer, context: { device } }: DeviceArray): DlpackDevice {
  switch (memoryKindOf(buffer)) {
    case 'host':
      return { type: DEVICE_CUDA_HOST, id: 0 };
    case 'managed':
      return { type: DEVICE_CUDA_MANAGED, id: 0 };
    default:
      return { type: DEVICE_CUDA, id: device.ordinal };
  }
}

/** Asks the driver about memory that cuffi did not allocate, and about that of a user's resource. */
function memoryKindOf({ resource, readableAddress, byteLength }: DeviceBuffer): MemoryKind {
  if (byteLength === 0 || resource instanceof DeviceMemory) return 'device';
  if (resource instanceof MappedMemory) return 'host';
  if (resource instanceof ManagedMemory) return 'managed';
  return kindOfPointer(readableAddress);
}

function stridesInItems({ dtype: { itemsize }, shape, size, strides }: DeviceArray): number[] {
  return strides.map((stride, axis) => {
    if (stride % itemsize === 0) return stride / itemsize;
    // The axis has at most one index, so its stride is never used.
    if (size === 0 || shape[axis] === 1) return 1;
    throw new RangeError(
      `DLPack strides are in items, but ${formatShape(strides)} bytes are not multiples of the item size ${itemsize}: pass a copy, array.copy()`,
    );
  });
}

function checkFields(value: unknown, name: string): Record<string, unknown> {
  if (typeof value !== 'object' || value === null)
    throw new TypeError(`${name} must be an object with the fields of DLPack`);
  return value as Record<string, unknown>;
}

function checkVersion(version: unknown): void {
  if (version === undefined) return;
  const { major } = checkFields(version, 'version');
  if (checkInteger(major, 'version.major') !== VERSION.major)
    throw new NotSupportedError(
      `the tensor uses DLPack ${major}: only major version ${VERSION.major} is supported`,
    );
}

function checkTensor({
  data,
  byteOffset = 0,
  ndim,
  shape,
  strides,
  dtype,
  flags = {},
}: Record<string, unknown>): ExternalItems<Dtype> {
  const { code, bits, lanes } = checkFields(dtype, 'dtype') as unknown as DlpackType;
  const type = dtypeFromDlpack({ code, bits, lanes });
  const sizes = checkShape(shape);
  if (ndim !== sizes.length)
    throw new RangeError(
      `ndim is ${String(ndim)}, and shape ${formatShape(sizes)} has ${sizes.length}`,
    );
  const { readOnly } = checkFields(flags, 'flags');
  return {
    address: checkInteger(data, 'data') + checkInteger(byteOffset, 'byteOffset'),
    layout: newLayout(sizes, type.itemsize, { strides: stridesInBytes(strides, type) }),
    dtype: type,
    readOnly: checkBoolean(readOnly, 'flags.readOnly', false),
  };
}

function stridesInBytes(strides: unknown, { itemsize }: Dtype): number[] | undefined {
  if (strides === undefined || strides === null) return undefined;
  if (!Array.isArray(strides)) throw new TypeError('strides must be an array of integers');
  const least = Number.MIN_SAFE_INTEGER;
  return checkIntegers(strides, 'strides', least).map((stride) => stride * itemsize + 0);
}

/**
 * The ordinal of the tensor's device; undefined for host and managed memory.
 *
 * @throws NotSupportedError for another device type
 */
function deviceOrdinal(device: unknown): number | undefined {
  const { type, id } = checkFields(device, 'device');
  checkInteger(type, 'device.type');
  const ordinal = checkInteger(id, 'device.id');
  if (type !== DEVICE_CUDA && type !== DEVICE_CUDA_HOST && type !== DEVICE_CUDA_MANAGED)
    throw new NotSupportedError(
      `the tensor is on a device of DLPack type ${type}; supported: ${DEVICE_CUDA} (CUDA), ${DEVICE_CUDA_HOST} (page-locked), ${DEVICE_CUDA_MANAGED} (managed)`,
    );
  return type === DEVICE_CUDA ? ordinal : undefined;
}
