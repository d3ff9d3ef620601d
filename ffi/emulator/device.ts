/** Devices: how many, their names, attributes and memory. */
import { createHash } from 'node:crypto';
import { type DeviceAttribute, deviceAttributes } from '../attributes.ts';
import type { Driver } from '../functions.ts';
import { bootId } from '../linux/process.ts';
import { CUresult } from '../results.ts';
import type { HostMemory } from './host.ts';
import type { Settings } from './settings.ts';

const { CUDA_SUCCESS, CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_INVALID_DEVICE } = CUresult;

const DRIVER_VERSION = 13_000;
const NAME = 'cuffi emulated device';

/** The most bytes between two rows of a copy. */
const MAX_PITCH = 2 ** 31 - 1;

const defaults: Partial<Record<DeviceAttribute, number>> = {
  maxThreadsPerBlock: 1024,
  maxBlockDimX: 1024,
  maxBlockDimY: 1024,
  maxBlockDimZ: 64,
  maxGridDimX: 2 ** 31 - 1,
  maxGridDimY: 65_535,
  maxGridDimZ: 65_535,
  maxSharedMemoryPerBlock: 49_152,
  totalConstantMemory: 65_536,
  warpSize: 32,
  maxPitch: MAX_PITCH,
  maxRegistersPerBlock: 65_536,
  clockRate: 1_980_000,
  textureAlignment: 512,
  gpuOverlap: 1,
  multiprocessorCount: 132,
  canMapHostMemory: 1,
  surfaceAlignment: 512,
  concurrentKernels: 1,
  pciBusId: 1,
  memoryClockRate: 2_619_000,
  globalMemoryBusWidth: 5120,
  l2CacheSize: 50 * 2 ** 20,
  maxThreadsPerMultiprocessor: 2048,
  asyncEngineCount: 3,
  unifiedAddressing: 1,
  texturePitchAlignment: 32,
  computeCapabilityMajor: 9,
  computeCapabilityMinor: 0,
  streamPrioritiesSupported: 1,
  globalL1CacheSupported: 1,
  localL1CacheSupported: 1,
  maxSharedMemoryPerMultiprocessor: 233_472,
  maxRegistersPerMultiprocessor: 65_536,
  singleToDoublePrecisionPerfRatio: 2,
  managedMemory: 1,
  concurrentManagedAccess: 1,
  computePreemptionSupported: 1,
  canUseHostPointerForRegisteredMem: 1,
  cooperativeLaunch: 1,
  maxSharedMemoryPerBlockOptin: 232_448,
  hostRegisterSupported: 1,
  virtualMemoryManagementSupported: 1,
  handleTypePosixFileDescriptorSupported: 1,
  maxBlocksPerMultiprocessor: 32,
  reservedSharedMemoryPerBlock: 1024,
  memoryPoolsSupported: 1,
  // File descriptors and fabric, as on hardware; only descriptors are emulated.
  mempoolSupportedHandleTypes: 9,
  canUse64BitStreamMemOps: 1,
  canUseStreamWaitValueNor: 1,
  ipcEventSupported: 1,
  unifiedFunctionPointers: 1,
  numaId: -1,
  hostNumaId: -1,
};

const names = new Map<number, DeviceAttribute>(
  Object.entries(deviceAttributes).map(([name, number]) => [number, name as DeviceAttribute]),
);

/** The same for every process of the machine until it is started again. */
function uuid(ordinal: number): Uint8Array {
  return createHash('sha256').update(`${bootId()} device ${ordinal}`).digest().subarray(0, 16);
}

export type DeviceFunctions = Pick<
  Driver,
  | 'cuDriverGetVersion'
  | 'cuDeviceGetCount'
  | 'cuDeviceGet'
  | 'cuDeviceGetName'
  | 'cuDeviceGetUuid_v2'
  | 'cuDeviceGetAttribute'
  | 'cuDeviceTotalMem_v2'
>;

export function deviceFunctions(settings: Settings, host: HostMemory): DeviceFunctions {
  const exists = (device: number): boolean => device >= 0 && device < settings.deviceCount;
  const attribute = (number: number, device: number): number | undefined => {
    const name = names.get(number);
    if (name === undefined) return undefined;
    if (name === 'pciDeviceId') return settings.attributes.get(number) ?? device;
    return settings.attributes.get(number) ?? defaults[name] ?? 0;
  };
  return {
    cuDriverGetVersion(out) {
      host.setInt32(out, DRIVER_VERSION);
      return CUDA_SUCCESS;
    },
    cuDeviceGetCount(out) {
      host.setInt32(out, settings.deviceCount);
      return CUDA_SUCCESS;
    },
    cuDeviceGet(out, ordinal) {
      if (!exists(ordinal)) return CUDA_ERROR_INVALID_DEVICE;
      host.setInt32(out, ordinal);
      return CUDA_SUCCESS;
    },
    cuDeviceGetName(out, byteLength, device) {
      if (!exists(device)) return CUDA_ERROR_INVALID_DEVICE;
      if (byteLength <= 0) return CUDA_ERROR_INVALID_VALUE;
      const name = Buffer.from(`${NAME.slice(0, byteLength - 1)}\0`);
      return host.write(out, name) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    },
    cuDeviceGetUuid_v2(out, device) {
      if (!exists(device)) return CUDA_ERROR_INVALID_DEVICE;
      return host.write(out, uuid(device)) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    },
    cuDeviceGetAttribute(out, number, device) {
      if (!exists(device)) return CUDA_ERROR_INVALID_DEVICE;
      const value = attribute(number, device);
      if (value === undefined) return CUDA_ERROR_INVALID_VALUE;
      host.setInt32(out, value);
      return CUDA_SUCCESS;
    },
    cuDeviceTotalMem_v2(out, device) {
      if (!exists(device)) return CUDA_ERROR_INVALID_DEVICE;
      host.setUint64(out, settings.memoryByteLength);
      return CUDA_SUCCESS;
    },
  };
}
