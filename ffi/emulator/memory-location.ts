/** Checks of memory locations and handle types in structs. */
import {
  CU_MEM_HANDLE_TYPE_NONE,
  CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
  CU_MEM_LOCATION_TYPE_DEVICE,
  CU_MEM_LOCATION_TYPE_HOST,
  CU_MEM_LOCATION_TYPE_HOST_NUMA,
} from '../constants.ts';
import { CUresult, type CUresult as Status } from '../results.ts';
import type { Contexts } from './context.ts';

const HOST_NUMA_CURRENT = CU_MEM_LOCATION_TYPE_HOST_NUMA + 1;

/** The status for a memory location: success for an existing device. */
export function locationStatus(contexts: Contexts, type: number, id: number): Status {
  if (type === CU_MEM_LOCATION_TYPE_DEVICE)
    return contexts.hasDevice(id) ? CUresult.CUDA_SUCCESS : CUresult.CUDA_ERROR_INVALID_DEVICE;
  return type >= CU_MEM_LOCATION_TYPE_HOST && type <= HOST_NUMA_CURRENT
    ? CUresult.CUDA_ERROR_NOT_SUPPORTED
    : CUresult.CUDA_ERROR_INVALID_VALUE;
}

/**
 * The status for handle types: success for none, and for file descriptors. Fabric is not emulated.
 */
export const handleTypesStatus = (types: number): Status =>
  types === CU_MEM_HANDLE_TYPE_NONE || types === CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
    ? CUresult.CUDA_SUCCESS
    : CUresult.CUDA_ERROR_NOT_SUPPORTED;
