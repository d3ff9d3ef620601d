/** The functions of pools: made, asked, trimmed, given access to. */
import {
  CU_MEM_ACCESS_FLAGS_PROT_NONE,
  CU_MEM_ACCESS_FLAGS_PROT_READ,
  CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
} from '../constants.ts';
import type { Driver } from '../functions.ts';
import { CUresult, type CUresult as Status } from '../results.ts';
import { structs } from '../structs.ts';
import type { Contexts } from './context.ts';
import type { HostMemory } from './host.ts';
import { locationStatus } from './location.ts';
import type { Memory } from './memory.ts';
import type { Pool } from './pool.ts';
import type { ImportedPool, ImportedPools } from './pool-import.ts';
import { type Pools, poolAttribute, poolAttributeWidth, setPoolAttribute } from './pools.ts';
import type { StreamQueues } from './queues.ts';

const {
  CUDA_SUCCESS,
  CUDA_ERROR_INVALID_VALUE,
  CUDA_ERROR_OUT_OF_MEMORY,
  CUDA_ERROR_INVALID_DEVICE,
  CUDA_ERROR_NOT_SUPPORTED,
} = CUresult;

/** The rooms that the functions of pools work on. */
export interface EmulatorParts {
  readonly pools: Pools;
  readonly imported: ImportedPools;
  readonly memory: Memory;
  readonly contexts: Contexts;
  readonly queues: StreamQueues;
  readonly host: HostMemory;
}

type PoolFunctions = Pick<
  Driver,
  | 'cuDeviceGetDefaultMemPool'
  | 'cuDeviceGetMemPool'
  | 'cuDeviceSetMemPool'
  | 'cuMemPoolCreate'
  | 'cuMemPoolDestroy'
  | 'cuMemPoolTrimTo'
  | 'cuMemPoolSetAttribute'
  | 'cuMemPoolGetAttribute'
  | 'cuMemPoolSetAccess'
  | 'cuMemPoolGetAccess'
>;

export function poolFunctions({ pools, imported, contexts, host }: EmulatorParts): PoolFunctions {
  const writeHandle = (out: number, pool: Pool | undefined): Status => {
    if (!pool) return CUDA_ERROR_OUT_OF_MEMORY;
    host.setUint64(out, pool.handle);
    return CUDA_SUCCESS;
  };
  const anyPool = (handle: number): Pool | ImportedPool | undefined =>
    pools.get(handle) ?? imported.get(handle);

  /** What the hardware says of access that the owner's own device is to have. */
  const setAccess = (pool: Pool | ImportedPool, device: number, flags: number): Status => {
    if (device !== pool.device) {
      pool.accessFlags.set(device, flags);
      return CUDA_SUCCESS;
    }
    if (flags === CU_MEM_ACCESS_FLAGS_PROT_NONE) return CUDA_ERROR_INVALID_DEVICE;
    return flags === CU_MEM_ACCESS_FLAGS_PROT_READ ? CUDA_ERROR_NOT_SUPPORTED : CUDA_SUCCESS;
  };

  return {
    cuDeviceGetDefaultMemPool: (out, device) =>
      contexts.hasDevice(device)
        ? writeHandle(out, pools.default(device))
        : CUDA_ERROR_INVALID_DEVICE,
    cuDeviceGetMemPool: (out, device) =>
      contexts.hasDevice(device)
        ? writeHandle(out, pools.current(device))
        : CUDA_ERROR_INVALID_VALUE,
    cuDeviceSetMemPool(device, handle) {
      if (!contexts.hasDevice(device)) return CUDA_ERROR_INVALID_DEVICE;
      const pool = pools.get(handle);
      return pool ? pools.setCurrent(device, pool) : CUDA_ERROR_INVALID_VALUE;
    },
    cuMemPoolCreate(out, address) {
      const bytes = host.read(address, structs.CUmemPoolProps.byteLength);
      const properties = host.readStruct('CUmemPoolProps', address);
      const [reservedAt] = structs.CUmemPoolProps.fields.reserved;
      if (!bytes || !properties || bytes.subarray(reservedAt).some((byte) => byte !== 0))
        return CUDA_ERROR_INVALID_VALUE;
      const pool = pools.create(properties);
      return typeof pool === 'number' ? pool : writeHandle(out, pool);
    },
    cuMemPoolDestroy(handle) {
      const foreign = imported.get(handle);
      if (foreign) return imported.destroy(foreign) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
      if (imported.wasDestroyed(handle)) return CUDA_SUCCESS;
      const pool = pools.get(handle);
      return pool ? pools.destroy(pool) : CUDA_ERROR_INVALID_VALUE;
    },
    cuMemPoolTrimTo(handle, keep) {
      pools.get(handle)?.trim(keep);
      return anyPool(handle) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    },
    cuMemPoolSetAttribute(handle, attribute, address) {
      const pool = pools.get(handle);
      const width = poolAttributeWidth(attribute);
      const bytes = width && host.read(address, width);
      if (!pool || !bytes) return CUDA_ERROR_INVALID_VALUE;
      const buffer = Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength);
      const value = width === 4 ? BigInt(buffer.readUInt32LE()) : buffer.readBigUInt64LE();
      return setPoolAttribute(pool, attribute, value);
    },
    cuMemPoolGetAttribute(handle, attribute, address) {
      const pool = pools.get(handle);
      const width = poolAttributeWidth(attribute);
      if (!pool || width === undefined || !host.isWritable(address))
        return CUDA_ERROR_INVALID_VALUE;
      const value = poolAttribute(pool, attribute);
      if (width === 4) host.setInt32(address, Number(value));
      else host.setBigUint64(address, value);
      return CUDA_SUCCESS;
    },
    cuMemPoolSetAccess(handle, descriptors, count) {
      const pool = anyPool(handle);
      if (!pool || !(count >= 0)) return CUDA_ERROR_INVALID_VALUE;
      const { byteLength } = structs.CUmemAccessDesc;
      for (let at = 0; at < count; at += 1) {
        const given = host.readStruct('CUmemAccessDesc', descriptors + at * byteLength);
        const isRights =
          given?.flags === CU_MEM_ACCESS_FLAGS_PROT_NONE ||
          given?.flags === CU_MEM_ACCESS_FLAGS_PROT_READ ||
          given?.flags === CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
        if (!given || !isRights) return CUDA_ERROR_INVALID_VALUE;
        const device = given['location.id'];
        const located = locationStatus(contexts, given['location.type'], device);
        const status = located === CUDA_SUCCESS ? setAccess(pool, device, given.flags) : located;
        if (status !== CUDA_SUCCESS) return status;
      }
      return CUDA_SUCCESS;
    },
    cuMemPoolGetAccess(out, handle, location) {
      const pool = anyPool(handle);
      const place = host.readStruct('CUmemLocation', location);
      if (!pool || !place) return CUDA_ERROR_INVALID_VALUE;
      const status = locationStatus(contexts, place.type, place.id);
      if (status === CUDA_SUCCESS) host.setInt32(out, pool.access(place.id));
      return status;
    },
  };
}
