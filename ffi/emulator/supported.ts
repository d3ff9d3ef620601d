/** Functions of what a device may lack. */
import { CUresult, type CUresult as Status } from '../results.ts';

/** The functions as they are, or all answering NOT_SUPPORTED. */
export function ifSupported<F extends object>(isSupported: boolean, functions: F): F {
  if (isSupported) return functions;
  const refuse = (): Status => CUresult.CUDA_ERROR_NOT_SUPPORTED;
  return Object.fromEntries(Object.keys(functions).map((name) => [name, refuse])) as F;
}
