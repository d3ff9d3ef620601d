/** The functions of a module as newer drivers tell of them. */
import { OUT0, OUT1, readHandle, readSize, readUint32 } from '../../ffi/arena.ts';
import { cu } from '../../ffi/driver.ts';
import type { FunctionName } from '../../ffi/functions.ts';
import { stringAt, withAddress } from '../../ffi/native.ts';
import { CUresult } from '../../ffi/results.ts';
import type { Address, CUfunction, CUmodule } from '../../ffi/types.ts';
import { check } from '../check.ts';
import { NotSupportedError } from '../errors.ts';
import { byteLengthOf, type Parameter, parameterName } from './parameters.ts';

function checkNewer(status: CUresult, call: FunctionName): void {
  if (status === CUresult.CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER)
    throw new NotSupportedError(
      'the driver cannot list the kernels of a module: it is older than CUDA 12.4',
    );
  check(status, call);
}

/** The functions of a module. @throws NotSupportedError before 12.4 */
function functionsOf(module: CUmodule): readonly CUfunction[] {
  checkNewer(cu.cuModuleGetFunctionCount(OUT0, module), 'cuModuleGetFunctionCount');
  const count = readUint32(OUT0);
  if (count === 0) return [];
  const handles = new BigUint64Array(count);
  const status = withAddress(handles, (at) => cu.cuModuleEnumerateFunctions(at, count, module));
  checkNewer(status, 'cuModuleEnumerateFunctions');
  return Array.from(handles, (handle) => Number(handle) as CUfunction);
}

/** @throws NotSupportedError before 12.4 */
export const functionNames = (module: CUmodule): readonly string[] =>
  functionsOf(module).map((each) => {
    checkNewer(cu.cuFuncGetName(OUT0, each), 'cuFuncGetName');
    return stringAt(readHandle<Address>(OUT0));
  });

/** Brings all functions of a module to the device; unloads the module where that fails. */
export function loadFunctions(module: CUmodule): void {
  try {
    for (const each of functionsOf(module)) checkNewer(cu.cuFuncLoad(each), 'cuFuncLoad');
  } catch (error) {
    cu.cuModuleUnload(module);
    throw error;
  }
}

/**
 * Compares parameters with those that a kernel has, where the driver can tell: a wrong one would
 * have the driver read beyond the arguments.
 *
 * @throws TypeError
 */
export function requireSizes(kernel: CUfunction, name: string, params: readonly Parameter[]): void {
  const theirs: number[] = [];
  for (;;) {
    const status = cu.cuFuncGetParamInfo(kernel, theirs.length, OUT0, OUT1);
    if (status === CUresult.CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER) return;
    if (status === CUresult.CUDA_ERROR_INVALID_VALUE) break;
    check(status, 'cuFuncGetParamInfo');
    theirs.push(readSize(OUT1));
  }
  if (theirs.length !== params.length)
    throw new TypeError(`kernel ${name} takes ${theirs.length} parameters, not ${params.length}`);
  params.forEach((param, at) => {
    if (byteLengthOf(param) !== theirs[at])
      throw new TypeError(
        `parameter ${at} of kernel ${name} has ${theirs[at]} bytes: ${parameterName(param)} has ${byteLengthOf(param)}`,
      );
  });
}
