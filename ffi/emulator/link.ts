/** Linking is the hardware's driver's: there is no machine code here. */
import type { Driver } from '../functions.ts';
import { CUresult } from '../results.ts';

const { CUDA_ERROR_NOT_SUPPORTED } = CUresult;

export const linkFunctions: Pick<
  Driver,
  'cuLinkCreate_v2' | 'cuLinkAddData_v2' | 'cuLinkComplete' | 'cuLinkDestroy'
> = {
  cuLinkCreate_v2: () => CUDA_ERROR_NOT_SUPPORTED,
  cuLinkAddData_v2: () => CUDA_ERROR_NOT_SUPPORTED,
  cuLinkComplete: () => CUDA_ERROR_NOT_SUPPORTED,
  cuLinkDestroy: () => CUDA_ERROR_NOT_SUPPORTED,
};
