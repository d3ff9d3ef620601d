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
import { needsContext, needsStreamContext, noContext, since } from './row.ts';

export const kernelRows = {
  cuFuncGetAttribute: noContext(out(int), CUfunction_attribute, CUfunction),
  cuFuncSetAttribute: noContext(CUfunction, CUfunction_attribute, int),
  cuFuncSetCacheConfig: noContext(CUfunction, CUfunc_cache),
  cuFuncGetName: since(12_030, noContext(out(constString), CUfunction)),
  cuFuncGetParamInfo: since(12_040, noContext(CUfunction, size_t, out(size_t), out(size_t))),
  cuFuncLoad: since(12_040, noContext(CUfunction)),

  // Faster to call than cuLaunchKernel. The stream is in the configuration.
  cuLaunchKernelEx: since(
    11_060,
    needsStreamContext(CUlaunchConfig, CUfunction, pointers, pointers),
  ),
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
  cuOccupancyMaxActiveClusters: since(11_070, needsContext(out(int), CUfunction, CUlaunchConfig)),
  cuOccupancyMaxPotentialClusterSize: since(
    11_070,
    needsContext(out(int), CUfunction, CUlaunchConfig),
  ),
} as const;
