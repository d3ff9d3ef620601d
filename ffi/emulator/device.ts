/** Devices: count, names, attributes and memory; the driver's version and error texts. */
import { type DeviceAttribute, deviceAttributes } from '../attributes.ts';
import type { Driver } from '../functions.ts';
import { allocatePermanent, viewMemory } from '../native.ts';
import { CUresult } from '../results.ts';
import type { HostMemory } from './host-memory.ts';
import type { Settings } from './settings.ts';
import { uuidOf } from './visible-devices.ts';

const { CUDA_SUCCESS, CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_INVALID_DEVICE } = CUresult;

const NAME = 'cuffi emulated device';

/** The largest distance of two rows in a copy. */
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
  // File descriptors and fabric, as on hardware. Only descriptors are emulated.
  mempoolSupportedHandleTypes: 9,
  canUse64BitStreamMemOps: 1,
  canUseStreamWaitValueNor: 1,
  ipcEventSupported: 1,
  unifiedFunctionPointers: 1,
  numaId: -1,
  hostNumaId: -1,
};

const attributeNames = new Map<number, DeviceAttribute>(
  Object.entries(deviceAttributes).map(([name, number]) => [number, name as DeviceAttribute]),
);

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

/** The last attribute that a driver knows: by the headers of CUDA 11.4 to 11.8, and 12.0. */
const lastAttribute = (version: number): number => {
  if (version < 11_070) return 119;
  return version < 11_080 ? 124 : Number.POSITIVE_INFINITY;
};

export function deviceFunctions(settings: Settings, host: HostMemory): DeviceFunctions {
  const visible = settings.visible.devices;
  const exists = (device: number): boolean => visible[device] !== undefined;
  const attribute = (number: number, device: number): number | undefined => {
    const name = attributeNames.get(number);
    if (name === undefined || number > lastAttribute(settings.version)) return undefined;
    const given = settings.attributes.get(number);
    if (given !== undefined) return given;
    return name === 'pciBusId' ? (visible[device] as number) + 1 : (defaults[name] ?? 0);
  };
  return {
    cuDriverGetVersion(out) {
      host.setInt32(out, settings.version);
      return CUDA_SUCCESS;
    },
    cuDeviceGetCount(out) {
      host.setInt32(out, visible.length);
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
      const physical = visible[device];
      if (physical === undefined) return CUDA_ERROR_INVALID_DEVICE;
      return host.write(out, uuidOf(physical)) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
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

// ---- Error texts: cuGetErrorString ----

const errorTexts: Readonly<Record<number, string>> = {
  0: 'no error',
  1: 'invalid argument',
  2: 'out of memory',
  3: 'initialization error',
  4: 'driver shutting down',
  34: 'CUDA driver is a stub library',
  46: 'CUDA-capable device(s) is/are busy or unavailable',
  100: 'no CUDA-capable device is detected',
  101: 'invalid device ordinal',
  200: 'device kernel image is invalid',
  201: 'invalid device context',
  205: 'mapping of buffer object failed',
  208: 'resource already mapped',
  209: 'no kernel image is available for execution on the device',
  215: 'limit is not supported on this architecture',
  217: 'peer access is not supported between these two devices',
  218: 'a PTX JIT compilation failed',
  304: 'OS call failed or operation not supported on this OS',
  400: 'invalid resource handle',
  401: 'the operation cannot be performed in the present state',
  500: 'named symbol not found',
  600: 'device not ready',
  700: 'an illegal memory access was encountered',
  704: 'peer access is already enabled',
  705: 'peer access has not been enabled',
  708: 'cannot set while device is active in this process',
  709: 'context is destroyed',
  712: 'part or all of the requested memory range is already mapped',
  713: 'pointer does not correspond to a registered memory region',
  716: 'misaligned address',
  719: 'unspecified launch failure',
  800: 'operation not permitted',
  801: 'operation not supported',
  802: 'system not yet initialized',
  999: 'unknown error',
};

const statusNames = new Map<number, string>(
  Object.entries(CUresult).map(([name, code]) => [code, name]),
);

/** Other codes get a text from the words of their names. */
const errorText = (status: number): string | undefined =>
  errorTexts[status] ??
  statusNames
    .get(status)
    ?.replace(/^CUDA_(ERROR_)?/, '')
    .toLowerCase()
    .replaceAll('_', ' ');

export function errorStringFunctions(host: HostMemory): Pick<Driver, 'cuGetErrorString'> {
  const addresses = new Map<number, number>();
  const addressOfText = (status: number): number => {
    const known = addresses.get(status);
    if (known !== undefined) return known;
    const message = errorText(status);
    if (message === undefined) return 0;
    const bytes = Buffer.from(`${message}\0`);
    const address = allocatePermanent(bytes.length);
    new Uint8Array(viewMemory(address, bytes.length)).set(bytes);
    addresses.set(status, address);
    return address;
  };
  return {
    cuGetErrorString(status, out) {
      const address = addressOfText(status);
      host.setUint64(out, address);
      return address === 0 ? CUresult.CUDA_ERROR_INVALID_VALUE : CUresult.CUDA_SUCCESS;
    },
  };
}
