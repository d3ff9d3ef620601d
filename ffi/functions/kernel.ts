/** Kernels: what they take and need, and their launches. */
import {
  CUfunc_cache,
  CUfunction,
  CUfunction_attribute,
  CUlaunchConfig,
  CUoccupancyB2DSize,
  CUstream,
  constString,
  int,
  out,
  pointers,
  size_t,
  uint,
} from '../types.ts';
import { anywhere, inContext, onStream } from './row.ts';

export const kernelRows = {
  cuFuncGetAttribute: anywhere(out(int), CUfunction_attribute, CUfunction),
  cuFuncSetAttribute: anywhere(CUfunction, CUfunction_attribute, int),
  cuFuncSetCacheConfig: anywhere(CUfunction, CUfunc_cache),
  // Since 12.3
  cuFuncGetName: anywhere(out(constString), CUfunction),
  // Since 12.4
  cuFuncGetParamInfo: anywhere(CUfunction, size_t, out(size_t), out(size_t)),
  cuFuncLoad: anywhere(CUfunction),

  // Since 11.8, and quicker to call than the one below. The stream is in the configuration.
  cuLaunchKernelEx: onStream(CUlaunchConfig, CUfunction, pointers, pointers),
  cuLaunchKernel: onStream(
    CUfunction,
    uint,
    uint,
    uint,
    uint,
    uint,
    uint,
    uint,
    CUstream,
    pointers,
    pointers,
  ),

  cuOccupancyMaxActiveBlocksPerMultiprocessor: inContext(out(int), CUfunction, int, size_t),
  cuOccupancyMaxPotentialBlockSize: inContext(
    out(int),
    out(int),
    CUfunction,
    CUoccupancyB2DSize,
    size_t,
    int,
  ),
  // Since 11.8
  cuOccupancyMaxActiveClusters: inContext(out(int), CUfunction, CUlaunchConfig),
  cuOccupancyMaxPotentialClusterSize: inContext(out(int), CUfunction, CUlaunchConfig),
} as const;
