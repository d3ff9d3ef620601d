/** Kernels: attributes and launches, which run the registered TypeScript implementations. */
import {
  CU_FUNC_ATTRIBUTE_BINARY_VERSION,
  CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
  CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK,
  CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED,
  CU_FUNC_ATTRIBUTE_NUM_REGS,
  CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT,
  CU_FUNC_ATTRIBUTE_PTX_VERSION,
  CU_FUNC_CACHE_PREFER_EQUAL,
} from '../constants.ts';
import {
  type EmulatedLaunch,
  type EmulatedParameter,
  emulatedByteLength,
  type RegisteredKernel,
} from '../emulated-kernels.ts';
import type { Driver } from '../functions.ts';
import { allocatePermanent, viewMemory } from '../native.ts';
import { CUresult, type CUresult as Status } from '../results.ts';
import type { Address } from '../types.ts';
import { builtinKernels } from './builtin-kernels.ts';
import type { HostMemory } from './host-memory.ts';
import type { Memory } from './memory.ts';
import type { Kernel, Modules } from './modules.ts';
import type { Stream, StreamQueues, Work } from './stream-queues.ts';

const {
  CUDA_SUCCESS,
  CUDA_ERROR_INVALID_VALUE,
  CUDA_ERROR_INVALID_HANDLE,
  CUDA_ERROR_NOT_SUPPORTED,
} = CUresult;

// As the device attributes in device.ts.
const MAX_THREADS = 1024;
const MAX_BLOCK = [1024, 1024, 64] as const;
const MAX_GRID = [2 ** 31 - 1, 65_535, 65_535] as const;
const DEFAULT_SHARED = 49_152;
const MAX_SHARED = 232_448;
const LAST_ATTRIBUTE = 15;

/** The attributes before they are set. */
const defaults = (kernel: Kernel): Readonly<Record<number, number>> => ({
  [CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK]: kernel.maxThreads ?? MAX_THREADS,
  [CU_FUNC_ATTRIBUTE_NUM_REGS]: 16,
  [CU_FUNC_ATTRIBUTE_PTX_VERSION]: kernel.target,
  [CU_FUNC_ATTRIBUTE_BINARY_VERSION]: 90,
  [CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES]: DEFAULT_SHARED,
  [CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT]: -1,
});

/** The minimum and maximum of the attributes that can be set. */
const SETTABLE_RANGES: ReadonlyMap<number, readonly [number, number]> = new Map([
  [CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, [0, MAX_SHARED]],
  [CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT, [-1, 100]],
  [CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, [0, 1]],
]);

const attributeOf = (kernel: Kernel, attribute: number): number =>
  kernel.attributes.get(attribute) ?? defaults(kernel)[attribute] ?? 0;

const isWithin = (extents: readonly number[], most: readonly number[]): boolean =>
  extents.every((extent, axis) => extent >= 1 && extent <= (most[axis] as number));

export type KernelFunctions = Pick<
  Driver,
  | 'cuFuncGetAttribute'
  | 'cuFuncSetAttribute'
  | 'cuFuncSetCacheConfig'
  | 'cuFuncGetName'
  | 'cuFuncGetParamInfo'
  | 'cuFuncLoad'
  | 'cuLaunchKernelEx'
  | 'cuLaunchKernel'
  | 'cuOccupancyMaxActiveBlocksPerMultiprocessor'
  | 'cuOccupancyMaxPotentialBlockSize'
  | 'cuOccupancyMaxActiveClusters'
  | 'cuOccupancyMaxPotentialClusterSize'
>;

/** Creates the work of a launch, or returns the status if it is invalid. */
export type LaunchFactory = (kernel: Kernel, shape: LaunchShape, pointers: number) => Work | Status;

export function launchFactory(modules: Modules, memory: Memory, host: HostMemory): LaunchFactory {
  return (kernel, { grid, block, sharedBytes }, pointers) => {
    const threads = block.reduce((product, extent) => product * extent, 1);
    const fits =
      isWithin(grid, MAX_GRID) &&
      isWithin(block, MAX_BLOCK) &&
      threads <= attributeOf(kernel, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK) &&
      sharedBytes <= attributeOf(kernel, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES);
    if (!fits) return CUDA_ERROR_INVALID_VALUE;
    const registered = modules.registered.get(kernel.name) ?? builtinKernels.get(kernel.name);
    if (!registered) return CUDA_ERROR_NOT_SUPPORTED;
    // Read now: the caller may overwrite them as soon as the call returns.
    const args = readArguments(host, kernel, registered, pointers);
    if (!args) return CUDA_ERROR_INVALID_VALUE;
    return () => {
      runKernel(memory, kernel, registered, { grid, block, sharedBytes }, args);
      return true;
    };
  };
}

export function kernelFunctions(
  modules: Modules,
  createLaunch: LaunchFactory,
  queues: StreamQueues,
  host: HostMemory,
): KernelFunctions {
  const names = new Map<string, number>();
  const addressOfName = (name: string): number => {
    const known = names.get(name);
    if (known !== undefined) return known;
    const bytes = Buffer.from(`${name}\0`);
    const address = allocatePermanent(bytes.length);
    new Uint8Array(viewMemory(address, bytes.length)).set(bytes);
    names.set(name, address);
    return address;
  };

  /** Code comes to the device when all work of the context is done. */
  const load = (kernel: Kernel): void => {
    if (!kernel.isLoaded) queues.drain(kernel.context);
    kernel.isLoaded = true;
  };

  const launch = (
    kernel: Kernel | undefined,
    stream: Stream | undefined,
    shape: LaunchShape,
    pointers: number,
  ): Status => {
    if (!kernel || !stream || stream.context !== kernel.context) return CUDA_ERROR_INVALID_HANDLE;
    const work = createLaunch(kernel, shape, pointers);
    if (typeof work === 'number') return work;
    load(kernel);
    queues.enqueue(stream, work, 'kernel');
    return CUDA_SUCCESS;
  };

  return {
    cuFuncGetAttribute(out, attribute, handle) {
      const kernel = modules.kernel(handle);
      if (!kernel) return CUDA_ERROR_INVALID_HANDLE;
      if (attribute > LAST_ATTRIBUTE) return CUDA_ERROR_INVALID_VALUE;
      load(kernel);
      host.setInt32(out, attributeOf(kernel, attribute));
      return CUDA_SUCCESS;
    },
    cuFuncSetAttribute(handle, attribute, value) {
      const kernel = modules.kernel(handle);
      if (!kernel) return CUDA_ERROR_INVALID_HANDLE;
      const range = SETTABLE_RANGES.get(attribute);
      if (!range || value < range[0] || value > range[1]) return CUDA_ERROR_INVALID_VALUE;
      load(kernel);
      kernel.attributes.set(attribute, value);
      return CUDA_SUCCESS;
    },
    cuFuncSetCacheConfig(handle, config) {
      if (!modules.kernel(handle)) return CUDA_ERROR_INVALID_HANDLE;
      return config <= CU_FUNC_CACHE_PREFER_EQUAL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    },
    cuFuncGetName(out, handle) {
      const kernel = modules.kernel(handle);
      if (!kernel) return CUDA_ERROR_INVALID_HANDLE;
      host.setUint64(out, addressOfName(kernel.name));
      return CUDA_SUCCESS;
    },
    cuFuncGetParamInfo(handle, index, offset, byteLength) {
      const kernel = modules.kernel(handle);
      if (!kernel) return CUDA_ERROR_INVALID_HANDLE;
      const size = kernel.params[index];
      if (size === undefined) return CUDA_ERROR_INVALID_VALUE;
      // Each parameter is aligned to its size, as far as sizes of structs tell.
      const at = kernel.params.slice(0, index).reduce((end, each) => align(end, each) + each, 0);
      host.setUint64(offset, align(at, size));
      host.setUint64(byteLength, size);
      return CUDA_SUCCESS;
    },
    cuFuncLoad(handle) {
      const kernel = modules.kernel(handle);
      if (!kernel) return CUDA_ERROR_INVALID_HANDLE;
      load(kernel);
      return CUDA_SUCCESS;
    },
    cuLaunchKernelEx(address, handle, pointers, extra) {
      const config = host.readStruct('CUlaunchConfig', address);
      if (!config) return CUDA_ERROR_INVALID_VALUE;
      const shape: LaunchShape = {
        grid: [config.gridDimX, config.gridDimY, config.gridDimZ],
        block: [config.blockDimX, config.blockDimY, config.blockDimZ],
        sharedBytes: config.sharedMemBytes,
      };
      // Clusters and cooperative grids are not emulated, nor arguments as one block of bytes.
      if ((config.attrs !== 0 && config.numAttrs > 0) || extra !== 0)
        return CUDA_ERROR_NOT_SUPPORTED;
      return launch(modules.kernel(handle), queues.get(config.hStream), shape, pointers);
    },
    cuLaunchKernel(handle, gx, gy, gz, bx, by, bz, sharedBytes, stream, pointers, extra) {
      if (extra !== 0) return CUDA_ERROR_NOT_SUPPORTED;
      const shape: LaunchShape = { grid: [gx, gy, gz], block: [bx, by, bz], sharedBytes };
      return launch(modules.kernel(handle), queues.get(stream), shape, pointers);
    },
    cuOccupancyMaxActiveBlocksPerMultiprocessor: () => CUDA_ERROR_NOT_SUPPORTED,
    cuOccupancyMaxPotentialBlockSize: () => CUDA_ERROR_NOT_SUPPORTED,
    cuOccupancyMaxActiveClusters: () => CUDA_ERROR_NOT_SUPPORTED,
    cuOccupancyMaxPotentialClusterSize: () => CUDA_ERROR_NOT_SUPPORTED,
  };
}

const align = (at: number, byteLength: number): number => {
  const width = Math.min(byteLength & -byteLength, 8);
  return Math.ceil(at / width) * width;
};

// ---- Launches: reading the arguments, running the kernel ----

type Extents = readonly [x: number, y: number, z: number];
type Argument = number | bigint | boolean | Uint8Array;

/** The shape of a launch. */
export interface LaunchShape {
  readonly grid: Extents;
  readonly block: Extents;
  readonly sharedBytes: number;
}

/** An error of a kernel that fails its context. */
class KernelTrap extends Error {
  readonly status: Status;

  constructor(status: Status, message: string) {
    super(message);
    this.status = status;
  }
}

/** Memory that a kernel may only read: a copy of its contents, and the copy that the kernel gets. */
interface ReadOnlyCopy {
  readonly address: number;
  readonly before: ArrayBuffer;
  readonly after: ArrayBuffer;
}

/** Reads the arguments of a launch. Undefined if one is not readable or has another size. */
function readArguments(
  host: HostMemory,
  kernel: Kernel,
  { params }: RegisteredKernel,
  pointers: number,
): readonly Argument[] | undefined {
  if (params.length !== kernel.params.length) return undefined;
  const args: Argument[] = [];
  for (const [at, param] of params.entries()) {
    const byteLength = emulatedByteLength(param);
    const address = host.getUint64(pointers + 8 * at);
    const bytes =
      address === undefined || byteLength !== kernel.params[at]
        ? undefined
        : host.read(Number(address), byteLength);
    if (!bytes) return undefined;
    args.push(decode(param, bytes));
  }
  return args;
}

function decode(param: EmulatedParameter, bytes: Uint8Array): Argument {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  switch (param) {
    case 'bool':
      return view.getUint8(0) !== 0;
    case 'int8':
      return view.getInt8(0);
    case 'uint8':
      return view.getUint8(0);
    case 'int16':
      return view.getInt16(0, true);
    case 'uint16':
    case 'float16':
    case 'bfloat16':
      return view.getUint16(0, true);
    case 'int32':
      return view.getInt32(0, true);
    case 'uint32':
      return view.getUint32(0, true);
    case 'int64':
      return view.getBigInt64(0, true);
    case 'uint64':
      return view.getBigUint64(0, true);
    case 'float32':
      return view.getFloat32(0, true);
    case 'float64':
      return view.getFloat64(0, true);
    case 'pointer':
      return Number(view.getBigUint64(0, true));
    default:
      return bytes;
  }
}

/** Runs a kernel. If it fails, its context fails. */
function runKernel(
  memory: Memory,
  { name, context }: Kernel,
  { run }: RegisteredKernel,
  shape: LaunchShape,
  args: readonly Argument[],
): void {
  const readOnly: ReadOnlyCopy[] = [];
  const launch: EmulatedLaunch = {
    ...shape,
    view(address, type, length) {
      const byteLength = length * type.BYTES_PER_ELEMENT;
      if (address % type.BYTES_PER_ELEMENT !== 0)
        throw new KernelTrap(CUresult.CUDA_ERROR_MISALIGNED_ADDRESS, `${address} is misaligned`);
      if (byteLength === 0) return new type(new ArrayBuffer(0), 0, 0);
      const canWrite = memory.canStillWrite(address, byteLength, context.device);
      const canRead = canWrite || memory.canStillRead(address, byteLength, context.device);
      if (!canRead || memory.isInaccessible(address, context))
        throw new KernelTrap(
          CUresult.CUDA_ERROR_ILLEGAL_ADDRESS,
          `the device cannot access all ${byteLength} bytes at ${address}`,
        );
      const bytes = viewMemory(address as Address, byteLength);
      if (canWrite) return new type(bytes, 0, length);
      const lent = { address, before: bytes.slice(0), after: bytes.slice(0) };
      readOnly.push(lent);
      return new type(lent.after, 0, length);
    },
  };
  try {
    run(launch, args);
    for (const { address, before, after } of readOnly)
      if (Buffer.compare(new Uint8Array(before), new Uint8Array(after)) !== 0)
        throw new KernelTrap(
          CUresult.CUDA_ERROR_ILLEGAL_ADDRESS,
          `the device may only read the memory at ${address}`,
        );
  } catch (error) {
    context.failure =
      error instanceof KernelTrap ? error.status : CUresult.CUDA_ERROR_LAUNCH_FAILED;
    if (error instanceof KernelTrap) return;
    process.emitWarning(`the emulated kernel ${name} threw: ${describe(error)}`, {
      code: 'CUFFI_EMULATED_KERNEL',
    });
  }
}

const describe = (error: unknown): string =>
  error instanceof Error ? (error.stack ?? error.message) : String(error);
