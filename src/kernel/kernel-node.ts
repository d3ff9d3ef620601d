/** The kernel launches in a graph, so that their arguments can be set. */
import type { CUgraphNode, CUstream } from '../../ffi/types.ts';
import { lastCapturedNode } from '../graph-capture.ts';
import type { Kernel } from './kernel.ts';
import type { LaunchConfigStruct } from './launch-config.ts';
import type { Parameter } from './parameters.ts';

type Dim3 = readonly [x: number, y: number, z: number];

/**
 * One launch of a kernel in a graph: see `graph.kernelNode(kernel)`.
 *
 * @see https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__GRAPH.html
 */
export class KernelNode<const P extends readonly Parameter[] = readonly Parameter[]> {
  readonly kernel: Kernel<P>;
  /** The blocks along each axis. */
  readonly grid: Dim3;
  /** The threads of a block along each axis. */
  readonly block: Dim3;
  /** Dynamic shared memory of each block, in bytes. */
  readonly sharedBytes: number;
  /** @internal The node of the captured graph. */
  readonly handle: CUgraphNode;
  /** @internal The last arguments, and those before, which queued launches may still use. */
  recentArguments: readonly (readonly unknown[])[];

  /** @internal */
  constructor(
    kernel: Kernel<P>,
    { grid, block, sharedBytes }: Pick<LaunchConfigStruct, 'grid' | 'block' | 'sharedBytes'>,
    handle: CUgraphNode,
    given: readonly (readonly unknown[])[],
  ) {
    this.kernel = kernel;
    this.grid = grid;
    this.block = block;
    this.sharedBytes = sharedBytes;
    this.handle = handle;
    this.recentArguments = given;
  }

  /** @internal This launch with the handle of the one that it replaces in an update. */
  replacing({ handle, recentArguments }: KernelNode): KernelNode<P> {
    return new KernelNode(this.kernel, this, handle, [
      ...recentArguments.slice(-1),
      ...this.recentArguments,
    ]);
  }

  toString(): string {
    return `KernelNode(${this.kernel.name}, grid ${this.grid.join(' x ')}, block ${this.block.join(' x ')})`;
  }
}

let recordedLaunches: KernelNode[] = [];

/** Calls `work` and returns the kernel launches that it makes in captured streams. */
export function recordLaunches<T>(work: () => T): {
  readonly result: T;
  readonly nodes: readonly KernelNode[];
} {
  recordedLaunches = [];
  try {
    return { result: work(), nodes: recordedLaunches };
  } finally {
    recordedLaunches = [];
  }
}

/** Records the launch that was just made, if its stream is captured. */
export function recordLaunch(
  kernel: Kernel<never>,
  config: LaunchConfigStruct,
  stream: CUstream,
  args: readonly unknown[],
): void {
  const handle = lastCapturedNode(stream);
  if (handle !== undefined)
    recordedLaunches.push(new KernelNode(kernel as unknown as Kernel, config, handle, [args]));
}
