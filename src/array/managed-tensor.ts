/** DLPack for native libraries: a DLManagedTensorVersioned, whose ownership they take. */
import { permanentCallback } from '../../ffi/callback.ts';
import { allocateNative, freeNative, viewMemory } from '../../ffi/native.ts';
import type { Address } from '../../ffi/types.ts';
import { releaseOrWarn } from '../lifetime.ts';
import { keepMemoryAlive } from '../memory/buffer.ts';
import type { DeviceArray } from './device-array.ts';
import { type DlpackOptions, type DlpackTensor, dlpack } from './dlpack.ts';

/** A tensor whose ownership a native library of this process may take. */
export interface ManagedTensor {
  /** The address of the DLManagedTensorVersioned, to pass to the library. */
  readonly address: number;
  /** Whether the deleter was called. */
  readonly deleted: boolean;
  /** Calls the deleter, for a tensor that no library has taken. Does nothing the second time. */
  delete(): void;
}

/** Tensors whose deleter was not called yet, by address. */
const liveTensors = new Map<Address, NativeTensor>();

/** The address of the native deleter that all tensors share. */
let deleter: Address | undefined;

/**
 * Makes a DLManagedTensorVersioned of an array in native memory. A native library of this process,
 * called through an addon or koffi, takes its ownership and calls the deleter once. Until then the
 * memory stays allocated, even if the array is closed or garbage collected.
 *
 * The deleter may be called on any thread. On other threads it returns after the main thread's event
 * loop has run it, so the main thread must not block on that thread. At most 256 threads may be in
 * the deleter at a time. A pending deleter does not keep the process alive.
 *
 * @throws as {@link dlpack}
 * @example
 * library.consume(cuda.managedTensor(array).address);
 * @see https://dmlc.github.io/dlpack/latest/c_api.html
 */
export function managedTensor(array: DeviceArray, options?: DlpackOptions): ManagedTensor {
  const fields = dlpack(array, options);
  deleter ??= permanentCallback((address) =>
    releaseOrWarn(() => liveTensors.get(address)?.delete()),
  );
  const releaseMemory = keepMemoryAlive(array.buffer, 'a tensor of a native library');
  const address = allocateNative(STRUCT_BYTE_LENGTH + 2 * WORD * fields.ndim);
  writeTensor(address, fields, deleter);
  const tensor = new NativeTensor(address, releaseMemory);
  liveTensors.set(address, tensor);
  return tensor;
}

class NativeTensor implements ManagedTensor {
  readonly address: Address;
  #releaseMemory: (() => void) | undefined;

  constructor(address: Address, releaseMemory: () => void) {
    this.address = address;
    this.#releaseMemory = releaseMemory;
  }

  get deleted(): boolean {
    return this.#releaseMemory === undefined;
  }

  delete(): void {
    const releaseMemory = this.#releaseMemory;
    if (!releaseMemory) return;
    this.#releaseMemory = undefined;
    liveTensors.delete(this.address);
    freeNative(this.address);
    releaseMemory();
  }
}

const STRUCT_BYTE_LENGTH = 80;
const WORD = 8;
const READ_ONLY = 1n;

/** Writes the struct, followed by its shape and strides. */
function writeTensor(address: Address, tensor: DlpackTensor, deleterAddress: Address): void {
  const { version, flags, data, device, ndim, dtype, shape, strides, byteOffset } = tensor;
  const shapeAt = STRUCT_BYTE_LENGTH;
  const stridesAt = shapeAt + WORD * ndim;
  const view = new DataView(viewMemory(address, stridesAt + WORD * ndim));
  const write = (at: number, value: number): void => view.setBigInt64(at, BigInt(value), true);
  view.setUint32(0, version.major, true);
  view.setUint32(4, version.minor, true);
  write(8, 0); // manager_ctx
  write(16, deleterAddress);
  view.setBigUint64(24, flags.readOnly ? READ_ONLY : 0n, true);
  write(32, data);
  view.setInt32(40, device.type, true);
  view.setInt32(44, device.id, true);
  view.setInt32(48, ndim, true);
  view.setUint8(52, dtype.code);
  view.setUint8(53, dtype.bits);
  view.setUint16(54, dtype.lanes, true);
  write(56, address + shapeAt);
  write(64, address + stridesAt);
  write(72, byteOffset);
  for (const [axis, size] of shape.entries()) write(shapeAt + WORD * axis, size);
  for (const [axis, stride] of strides.entries()) write(stridesAt + WORD * axis, stride);
}
