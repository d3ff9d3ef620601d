/** The kernel launches in a graph, so that their arguments can be set. */
import { inspect } from 'node:util';
import type { CUgraphNode } from '../../ffi/types.ts';
import { describeObject } from '../inspect.ts';
import type { Kernel } from './kernel.ts';
import type { LaunchRecord } from './launch-record.ts';
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
    { grid, block, sharedBytes }: Pick<LaunchRecord, 'grid' | 'block' | 'sharedBytes'>,
    handle: CUgraphNode,
    recentArguments: readonly (readonly unknown[])[],
  ) {
    this.kernel = kernel;
    this.grid = grid;
    this.block = block;
    this.sharedBytes = sharedBytes;
    this.handle = handle;
    this.recentArguments = recentArguments;
  }

  /** @internal This launch with the handle of the one that it replaces in an update. */
  replacing({ handle, recentArguments }: KernelNode): KernelNode<P> {
    return new KernelNode(this.kernel, this, handle, [
      ...recentArguments.slice(-1),
      ...this.recentArguments,
    ]);
  }

  toString(): string {
    return describeObject('KernelNode', () => [
      this.kernel.name,
      `grid ${this.grid.join(' x ')}`,
      `block ${this.block.join(' x ')}`,
    ]);
  }

  [inspect.custom](): string {
    return this.toString();
  }
}
