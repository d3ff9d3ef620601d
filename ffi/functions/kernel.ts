/** Kernels: attributes, parameters, launches and occupancy. */
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
import { needsContext, needsStreamContext, noContext } from './row.ts';

export const kernelRows = {
  cuFuncGetAttribute: noContext(out(int), CUfunction_attribute, CUfunction),
  cuFuncSetAttribute: noContext(CUfunction, CUfunction_attribute, int),
  cuFuncSetCacheConfig: noContext(CUfunction, CUfunc_cache),
  // Since 12.3
  cuFuncGetName: noContext(out(constString), CUfunction),
  // Since 12.4
  cuFuncGetParamInfo: noContext(CUfunction, size_t, out(size_t), out(size_t)),
  cuFuncLoad: noContext(CUfunction),

  // Since 11.8. Faster to call than cuLaunchKernel. The stream is in the configuration.
  cuLaunchKernelEx: needsStreamContext(CUlaunchConfig, CUfunction, pointers, pointers),
  cuLaunchKernel: needsStreamContext(
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

  cuOccupancyMaxActiveBlocksPerMultiprocessor: needsContext(out(int), CUfunction, int, size_t),
  cuOccupancyMaxPotentialBlockSize: needsContext(
    out(int),
    out(int),
    CUfunction,
    CUoccupancyB2DSize,
    size_t,
    int,
  ),
  // Since 11.8
  cuOccupancyMaxActiveClusters: needsContext(out(int), CUfunction, CUlaunchConfig),
  cuOccupancyMaxPotentialClusterSize: needsContext(out(int), CUfunction, CUlaunchConfig),
} as const;
