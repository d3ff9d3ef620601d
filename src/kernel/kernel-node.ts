/** Launches in a graph: named, so that their arguments can be set. */
import type { CUgraphNode, CUstream } from '../../ffi/types.ts';
import { lastCapturedNode } from '../graph-capture.ts';
import type { Kernel } from './kernel.ts';
import type { ConfigBlock } from './launch-config.ts';
import type { Parameter } from './parameters.ts';

type Extents = readonly [x: number, y: number, z: number];

/**
 * One launch of a kernel in a graph: see `graph.kernelNode(kernel)`.
 *
 * @see https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__GRAPH.html
 */
export class KernelNode<const P extends readonly Parameter[] = readonly Parameter[]> {
  readonly kernel: Kernel<P>;
  /** The blocks along each axis. */
  readonly grid: Extents;
  /** The threads of a block along each axis. */
  readonly block: Extents;
  /** Dynamic shared memory of each block, in bytes. */
  readonly sharedBytes: number;
  /** @internal Of the graph that was captured. */
  readonly handle: CUgraphNode;
  /** @internal What it was given last, and before that: what is queued may still use it. */
  given: readonly (readonly unknown[])[];

  /** @internal */
  constructor(
    kernel: Kernel<P>,
    { grid, block, sharedBytes }: Pick<ConfigBlock, 'grid' | 'block' | 'sharedBytes'>,
    handle: CUgraphNode,
    given: readonly (readonly unknown[])[],
  ) {
    this.kernel = kernel;
    this.grid = grid;
    this.block = block;
    this.sharedBytes = sharedBytes;
    this.handle = handle;
    this.given = given;
  }

  /** @internal This launch, as what another one was made to do by an update. */
  inPlaceOf({ handle, given }: KernelNode): KernelNode<P> {
    return new KernelNode(this.kernel, this, handle, [...given.slice(-1), ...this.given]);
  }

  toString(): string {
    return `KernelNode(${this.kernel.name}, grid ${this.grid.join(' x ')}, block ${this.block.join(' x ')})`;
  }
}

let noted: KernelNode[] = [];

/** Calls `work`, and answers what it launches in the streams that are captured. */
export function notingLaunches<T>(work: () => T): {
  readonly result: T;
  readonly nodes: readonly KernelNode[];
} {
  noted = [];
  try {
    return { result: work(), nodes: noted };
  } finally {
    noted = [];
  }
}

/** Remembers a launch that was just captured; nothing for one in a stream that is not. */
export function noteLaunch(
  kernel: Kernel<never>,
  config: ConfigBlock,
  stream: CUstream,
  args: readonly unknown[],
): void {
  const handle = lastCapturedNode(stream);
  if (handle !== undefined)
    noted.push(new KernelNode(kernel as unknown as Kernel, config, handle, [args]));
}
