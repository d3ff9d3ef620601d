/** Modules: loaded code, its functions and its globals. */
import {
  CUdeviceptr,
  CUfunction,
  CUjit_option,
  CUmodule,
  constPointer,
  constString,
  out,
  pointers,
  size_t,
  uint,
} from '../types.ts';
import { needsContext, noContext, since, unsafeInCapture } from './row.ts';

export const moduleRows = {
  // cuLibraryLoadData (12.0) loads into every context of the process. A module belongs to one
  // context,
  // like everything else here, and every driver supports modules.
  cuModuleLoadDataEx: needsContext(out(CUmodule), constPointer, uint, out(CUjit_option), pointers),
  cuModuleUnload: unsafeInCapture(noContext(CUmodule)),
  cuModuleGetFunction: noContext(out(CUfunction), CUmodule, constString),
  cuModuleGetGlobal_v2: noContext(out(CUdeviceptr), out(size_t), CUmodule, constString),
  cuModuleGetFunctionCount: since(12_040, noContext(out(uint), CUmodule)),
  cuModuleEnumerateFunctions: since(12_040, noContext(out(CUfunction), uint, CUmodule)),
} as const;
