/** Kernels: what they take and may have, and their launches, run by what is registered. */
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
import type { Driver } from '../functions.ts';
import { allocatePermanent, viewMemory } from '../native.ts';
import { CUresult, type CUresult as Status } from '../results.ts';
import type { HostMemory } from './host.ts';
import { type LaunchShape, readArguments, runKernel } from './launch.ts';
import type { Memory } from './memory.ts';
import type { Kernel, Modules } from './modules.ts';
import { builtinKernels } from './own-kernels.ts';
import type { Stream, StreamQueues, Work } from './queues.ts';

const {
  CUDA_SUCCESS,
  CUDA_ERROR_INVALID_VALUE,
  CUDA_ERROR_INVALID_HANDLE,
  CUDA_ERROR_NOT_SUPPORTED,
} = CUresult;

// As device.ts tells of the device.
const MAX_THREADS = 1024;
const MAX_BLOCK = [1024, 1024, 64] as const;
const MAX_GRID = [2 ** 31 - 1, 65_535, 65_535] as const;
const DEFAULT_SHARED = 49_152;
const MAX_SHARED = 232_448;
const LAST_ATTRIBUTE = 15;

/** Attributes as they are until they are set. */
const defaults = (kernel: Kernel): Readonly<Record<number, number>> => ({
  [CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK]: kernel.maxThreads ?? MAX_THREADS,
  [CU_FUNC_ATTRIBUTE_NUM_REGS]: 16,
  [CU_FUNC_ATTRIBUTE_PTX_VERSION]: kernel.target,
  [CU_FUNC_ATTRIBUTE_BINARY_VERSION]: 90,
  [CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES]: DEFAULT_SHARED,
  [CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT]: -1,
});

/** The least and the most that an attribute can be set to. */
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

/** What a launch does when its stream gets to it, or why there is none. */
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
    // Read now: the caller writes over them as soon as this returns.
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

  const launch = (
    kernel: Kernel | undefined,
    stream: Stream | undefined,
    shape: LaunchShape,
    pointers: number,
  ): Status => {
    if (!kernel || !stream || stream.context !== kernel.context) return CUDA_ERROR_INVALID_HANDLE;
    const work = createLaunch(kernel, shape, pointers);
    if (typeof work === 'number') return work;
    queues.enqueue(stream, work, 'kernel');
    return CUDA_SUCCESS;
  };

  return {
    cuFuncGetAttribute(out, attribute, handle) {
      const kernel = modules.kernel(handle);
      if (!kernel) return CUDA_ERROR_INVALID_HANDLE;
      if (attribute > LAST_ATTRIBUTE) return CUDA_ERROR_INVALID_VALUE;
      host.setInt32(out, attributeOf(kernel, attribute));
      return CUDA_SUCCESS;
    },
    cuFuncSetAttribute(handle, attribute, value) {
      const kernel = modules.kernel(handle);
      if (!kernel) return CUDA_ERROR_INVALID_HANDLE;
      const range = SETTABLE_RANGES.get(attribute);
      if (!range || value < range[0] || value > range[1]) return CUDA_ERROR_INVALID_VALUE;
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
      // Each on a multiple of its own width, as far as widths of structs tell.
      const at = kernel.params.slice(0, index).reduce((end, each) => align(end, each) + each, 0);
      host.setUint64(offset, align(at, size));
      host.setUint64(byteLength, size);
      return CUDA_SUCCESS;
    },
    cuFuncLoad: (handle) => (modules.kernel(handle) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE),
    cuLaunchKernelEx(address, handle, pointers) {
      const config = host.readStruct('CUlaunchConfig', address);
      if (!config) return CUDA_ERROR_INVALID_VALUE;
      const shape: LaunchShape = {
        grid: [config.gridDimX, config.gridDimY, config.gridDimZ],
        block: [config.blockDimX, config.blockDimY, config.blockDimZ],
        sharedBytes: config.sharedMemBytes,
      };
      // Clusters and grids that wait for themselves are the hardware's.
      if (config.numAttrs > 0) return CUDA_ERROR_NOT_SUPPORTED;
      return launch(modules.kernel(handle), queues.get(config.hStream), shape, pointers);
    },
    cuLaunchKernel(handle, gx, gy, gz, bx, by, bz, sharedBytes, stream, pointers) {
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
