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
import { inContext } from './row.ts';

export const kernelRows = {
  cuFuncGetAttribute: inContext(out(int), CUfunction_attribute, CUfunction),
  cuFuncSetAttribute: inContext(CUfunction, CUfunction_attribute, int),
  cuFuncSetCacheConfig: inContext(CUfunction, CUfunc_cache),
  // Since 12.3
  cuFuncGetName: inContext(out(constString), CUfunction),
  // Since 12.4
  cuFuncGetParamInfo: inContext(CUfunction, size_t, out(size_t), out(size_t)),
  cuFuncLoad: inContext(CUfunction),

  // Since 11.8, and quicker to call than the one below. That a launch in a stream that someone made
  // needs a current context is assumed: facts/kernel.ts asks the hardware.
  cuLaunchKernelEx: inContext(CUlaunchConfig, CUfunction, pointers, pointers),
  cuLaunchKernel: inContext(
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
} as const;
