import { DeviceArray } from '../../array/device-array.ts';
import { formatShape } from '../../array/shape.ts';
import { IpcError } from '../../errors.ts';
import { DeviceBuffer } from '../../memory/buffer.ts';
import { MemoryPool } from '../../memory/pool.ts';
import { VirtualMemory } from '../../memory/virtual.ts';
import { checkInteger, checkOptions, formatValue } from '../../validate.ts';
import { processName } from '../identity.ts';
import { exportLegacy } from './legacy.ts';
import { sourceOf } from './memory.ts';

/** Options of {@link tritonRegion}. */
export interface TritonRegionOptions {
  /** The name of the region. Default: a name that no other allocation of the machine has. */
  readonly name?: string;
  /** The ordinal of the GPU in the server. Default: its ordinal in this process. */
  readonly deviceId?: number;
}

/** Memory as Triton Inference Server knows it: the texts of its HTTP calls. */
export interface TritonRegion {
  /** The name of the region. Memory of one allocation has one name. */
  readonly name: string;
  /** The body of `POST v2/cudasharedmemory/region/NAME/register`, for the whole allocation. */
  readonly registration: {
    /** The driver's 64 bytes in base64. */
    readonly raw_handle: { readonly b64: string };
    readonly device_id: number;
    /** The size of the allocation, in bytes. */
    readonly byte_size: number;
  };
  /** The `parameters` of an input or output in `POST v2/models/MODEL/infer`. */
  readonly parameters: {
    readonly shared_memory_region: string;
    /** Where the memory begins in the allocation, in bytes. */
    readonly shared_memory_offset: number;
    readonly shared_memory_byte_size: number;
  };
}

/**
 * Returns what Triton Inference Server needs to use a buffer or an array in place, as an input or an
 * output: the body that registers its allocation, and the parameters that name its bytes.
 *
 * The result is only data and keeps nothing: unregister the region before you close the memory. Views of
 * one buffer have one region, which is registered once. Triton sees the whole allocation, and small
 * allocations share blocks of 2 MiB (`DeviceMemory` with `{ private: true }` shares none). Triton knows
 * no events: wait for the work on an input before `infer`.
 *
 * @param memory plain device memory of this process (`DeviceBuffer.allocate`, `deviceArray`)
 * @throws IpcError `not-supported` for memory of a pool, virtual memory, read-only memory, memory of
 * another process, and arrays that are not contiguous; RangeError for memory without bytes; ClosedError
 * @example
 * const { name, registration, parameters } = tritonRegion(image);
 * await post(`v2/cudasharedmemory/region/${name}/register`, registration);
 * const inputs = [{ name: 'INPUT', datatype: 'FP32', shape: image.shape, parameters }];
 * @see https://docs.nvidia.com/deeplearning/triton-inference-server/user-guide/docs/protocol/extension_shared_memory.html
 */
export function tritonRegion(
  memory: DeviceBuffer | DeviceArray,
  options?: TritonRegionOptions,
): TritonRegion {
  const { name, deviceId } = checkOptions(options, ['name', 'deviceId'], 'tritonRegion');
  const buffer = bytesOf(memory);
  const { device } = buffer.context;
  const ordinal = checkInteger(deviceId ?? device.ordinal, 'deviceId');
  if (name !== undefined && (typeof name !== 'string' || !/^[\w.-]+$/.test(name)))
    throw new TypeError(
      `name must be letters, digits, '.', '_' and '-', because it is a part of a URL, not ${formatValue(name)}`,
    );
  checkIsPlain(buffer);
  const fields = exportLegacy(buffer);
  // Another allocation at the same address has another id.
  const region = name ?? `cuffi-${fields.pid}-${fields.bufferId.toString(36)}`;
  return {
    name: region,
    registration: {
      raw_handle: { b64: fields.handle },
      device_id: ordinal,
      byte_size: fields.baseByteLength,
    },
    parameters: {
      shared_memory_region: region,
      shared_memory_offset: fields.byteOffset,
      shared_memory_byte_size: fields.byteLength,
    },
  };
}

/** The bytes of the items, as Triton reads them: one after the other. */
function bytesOf(memory: DeviceBuffer | DeviceArray): DeviceBuffer {
  if (!(memory instanceof DeviceBuffer || memory instanceof DeviceArray))
    throw new TypeError(
      `tritonRegion takes a DeviceBuffer or a DeviceArray, not ${formatValue(memory)}`,
    );
  memory.assertOpen();
  if (memory instanceof DeviceBuffer) return memory;
  const { buffer, byteOffset, dtype, isCContiguous, readOnly, shape, size, strides } = memory;
  if (!isCContiguous)
    throw notSupported(
      `the items of shape ${formatShape(shape)} with strides ${formatShape(strides)} are not contiguous`,
    );
  const bytes = buffer.subarray(byteOffset, byteOffset + size * dtype.itemsize);
  return readOnly ? bytes.readOnly() : bytes;
}

/** @throws IpcError for memory that has no handle of this process */
function checkIsPlain(buffer: DeviceBuffer): void {
  const { access, origin, resource, root } = buffer;
  if (origin === 'imported') {
    const source = sourceOf(buffer);
    const owner = source ? processName(source.descriptor) : 'another process';
    throw new IpcError(
      `this memory belongs to ${owner}: call tritonRegion there, and send what it returns`,
      undefined,
      'not-supported',
    );
  }
  if (resource instanceof MemoryPool) throw notSupported('this is memory of a pool');
  if (root.keepalive instanceof VirtualMemory) throw notSupported('this is virtual memory');
  if (access === 'read') throw notSupported('this memory is read-only');
}

const notSupported = (what: string): IpcError =>
  new IpcError(
    `${what}: Triton opens plain device memory, in order C, and may write to all of it. Copy it to an array of ` +
      'deviceArray() or a buffer of DeviceBuffer.allocate()',
    undefined,
    'not-supported',
  );
