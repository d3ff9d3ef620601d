/** Why a launch failed, with the numbers of both sides. */
import type { FunctionName } from '../../ffi/functions.ts';
import { CUresult } from '../../ffi/results.ts';
import { cudaError } from '../check.ts';
import { type CudaError, isSticky } from '../errors.ts';
import type { Kernel } from './kernel.ts';
import type { ConfigBlock } from './launch-config.ts';

/** The error of a launch that the driver refused. */
export function launchError(
  kernel: Kernel,
  config: ConfigBlock,
  status: CUresult,
  call: FunctionName,
): CudaError {
  const { grid, block, sharedBytes } = config;
  const shape = `grid ${grid.join(' x ')}, block ${block.join(' x ')}, ${sharedBytes} bytes of shared memory`;
  return cudaError(
    status,
    call,
    `launching kernel ${kernel.name} (${shape}${isSticky(status) ? '' : numbersOf(kernel, config, status)})`,
  );
}

function numbersOf(kernel: Kernel, config: ConfigBlock, status: CUresult): string {
  try {
    if (status === CUresult.CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES) {
      const { registers } = kernel.attributes;
      const most = kernel.context.device.attribute('maxRegistersPerBlock');
      return `; ${registers} registers for each of ${config.threads} threads, and a block has ${most}`;
    }
    if (status === CUresult.CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE) {
      const { block, sharedBytes } = config;
      return `; at most ${kernel.maxCooperativeBlocks(block, { sharedBytes })} blocks run at once`;
    }
  } catch {
    // The launch's own error says more.
  }
  return '';
}
