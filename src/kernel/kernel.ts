import { inspect } from 'node:util';
import { cu } from '../../ffi/driver.ts';
import type { FunctionName } from '../../ffi/functions.ts';
import { CUresult } from '../../ffi/results.ts';
import type { Address, CUfunction, CUstream } from '../../ffi/types.ts';
import { cudaError } from '../check.ts';
import type { Context } from '../context.ts';
import { type CudaError, isSticky, NotSupportedError } from '../errors.ts';
import { isCapturing } from '../graph-capture.ts';
import { Resource } from '../lifetime.ts';
import { noteMemoryUse } from '../memory/buffer-copy.ts';
import type { Stream } from '../stream.ts';
import { assertInternal, checkInteger, checkOptions } from '../validate.ts';
import { type KernelAttributes, readAttributes } from './function-attributes.ts';
import { KernelArguments } from './kernel-arguments.ts';
import { recordLaunch } from './kernel-node.ts';
import {
  deviceLaunchLimits,
  type Extents3,
  KernelLimits,
  type LaunchConfig,
  LaunchConfigStruct,
} from './launch-config.ts';
import type { Module } from './module.ts';
import {
  activeBlocks,
  activeClusters,
  clusterBlocks,
  type OccupancyOptions,
  type SuggestedBlock,
  suggestBlock,
} from './occupancy.ts';
import type { Arguments, Parameter } from './parameters.ts';

/**
 * What a launch is written to. A launch takes them while it writes: a getter of its arguments may
 * launch the same kernel, which then makes blocks of its own.
 */
interface LaunchBuffers {
  readonly config: LaunchConfigStruct;
  readonly args: KernelArguments;
}

/**
 * A kernel of a module, ready to be launched. It keeps its module alive, and is closed with it.
 *
 * @example
 * const saxpy = module.kernel('saxpy', ['float32', 'float32*', 'float32*', 'uint32']);
 * saxpy.launch({ grid: 4, block: 256, stream }, 2.5, x, y, 1024);
 * @see https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__EXEC.html
 */
export class Kernel<const P extends readonly Parameter[] = readonly Parameter[]> {
  readonly module: Module;
  readonly context: Context;
  readonly name: string;
  /** The types of its parameters. */
  readonly params: P;
  readonly #function: CUfunction;
  readonly #limits: KernelLimits;
  /** Absent while a launch has them. */
  #buffers: LaunchBuffers | undefined;

  /** @internal */
  constructor(module: Module, name: string, handle: CUfunction, params: P) {
    assertInternal(module, Resource, 'Kernel', 'module.kernel');
    const { context } = module;
    this.module = module;
    this.context = context;
    this.name = name;
    this.params = params;
    this.#function = handle;
    this.#buffers = this.#makeBuffers();
    this.#limits = new KernelLimits(name, handle, context.device);
  }

  /** Whether its module was closed. */
  get closed(): boolean {
    return this.module.closed;
  }

  /** The driver's handle, a CUfunction. @throws ClosedError */
  get handle(): CUfunction {
    this.module.handle; // a closed module is refused
    return this.#function;
  }

  /** What it needs and may have, as the driver compiled it; asked at each reading. */
  get attributes(): KernelAttributes {
    return readAttributes(this.handle);
  }

  /**
   * Queues the kernel; nothing waits. Arguments are read before this returns; memory that it names
   * must stay open until then, and is then kept until the work is done.
   *
   * More dynamic shared memory than 48 KiB is asked for where the device has it.
   *
   * @throws TypeError, RangeError for arguments that do not fit the parameters, or a shape that the
   * kernel or the device cannot have; ClosedError, CudaError. What the kernel itself does wrong is
   * told by what waits for it
   */
  launch(config: LaunchConfig, ...args: Arguments<P>): void {
    this.handle; // a closed module is refused
    const buffers = this.#buffers ?? this.#makeBuffers();
    this.#buffers = undefined;
    try {
      this.#launch(buffers, config, args);
    } finally {
      this.#buffers = buffers;
    }
  }

  #launch(buffers: LaunchBuffers, config: LaunchConfig, args: readonly unknown[]): void {
    const block = buffers.config;
    const stream = block.write(config);
    const limits = this.#limits;
    if (block.threads > limits.maxThreads || block.sharedBytes > limits.sharedBytes)
      limits.assertFits(block);
    if (block.hasAttributes) limits.allowCluster(block.clusterBlocks);
    if (stream !== undefined && stream.context !== this.context) this.#assertSameContext(stream);
    buffers.args.write(args);
    const call = this.handle; // a getter of an argument may have closed the module
    const handle = stream?.untrackedHandle;
    if (handle === undefined) {
      this.#launchTracked(buffers, stream, args);
      return;
    }
    block.stream = handle;
    const status = cu.cuLaunchKernelEx(block.address, call, buffers.args.address, NULL_ADDRESS);
    if (status !== 0) this.#retryOrThrow(buffers, status, handle);
    if (isCapturing()) recordLaunch(this as unknown as Kernel<never>, block, handle, args);
  }

  /** @internal Writes arguments as a launch does, and calls `use` with where the table of them lies. */
  withArguments<T>(args: readonly unknown[], use: (address: Address) => T): T {
    return this.#withBuffers((blocks) => {
      blocks.args.write(args);
      return use(blocks.args.address);
    });
  }

  /**
   * How many blocks of a size run on one multiprocessor at once.
   *
   * @throws RangeError, TypeError for a block that the kernel cannot have
   * @see https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__OCCUPANCY.html
   */
  maxActiveBlocks(block: Extents3, options?: OccupancyOptions): number {
    return this.#queryOccupancy('maxActiveBlocks', { block }, options, (config) =>
      activeBlocks(this.#function, config),
    );
  }

  /** How many blocks of a size run on the device at once: the most that a cooperative grid has. */
  maxCooperativeBlocks(block: Extents3, options?: OccupancyOptions): number {
    const blocks = this.#queryOccupancy('maxCooperativeBlocks', { block }, options, (config) =>
      activeBlocks(this.#function, config),
    );
    return blocks * this.context.device.attribute('multiprocessorCount');
  }

  /**
   * How many clusters of a size run on the device at once, each of whose blocks has a size; 0 where
   * none does.
   *
   * @throws RangeError, TypeError as {@link maxActiveBlocks}; NotSupportedError where the device has
   * no clusters; CudaError
   */
  maxActiveClusters(cluster: Extents3, block: Extents3, options?: OccupancyOptions): number {
    return this.#queryOccupancy('maxActiveClusters', { block, cluster }, options, (config) => {
      this.#limits.assertClusters();
      this.#limits.allowCluster(config.clusterBlocks);
      return activeClusters(this.#function, config);
    });
  }

  /**
   * How many blocks of a size a cluster can have: at most 8, which every device with clusters has room
   * for, or more once the kernel was launched, or asked about, in larger ones.
   *
   * @throws as {@link maxActiveClusters}
   */
  maxClusterBlocks(block: Extents3, options?: OccupancyOptions): number {
    return this.#queryOccupancy('maxClusterBlocks', { block }, options, (config) => {
      this.#limits.assertClusters();
      return clusterBlocks(this.#function, config);
    });
  }

  /**
   * The size of a block with which most threads run at once, and the fewest blocks that fill the
   * device with it.
   */
  suggestedBlockSize(
    options?: OccupancyOptions & { readonly maxBlockSize?: number },
  ): SuggestedBlock {
    const { sharedBytes, maxBlockSize } = checkOptions(
      options,
      ['sharedBytes', 'maxBlockSize'],
      'suggestedBlockSize',
    );
    const shared = checkInteger(sharedBytes ?? 0, 'sharedBytes');
    const most = checkInteger(maxBlockSize ?? 0, 'maxBlockSize', 0, 2 ** 31 - 1);
    const { handle } = this;
    this.#limits.allowSharedBytes(shared);
    return this.context.run(() => suggestBlock(handle, shared, most));
  }

  toString(): string {
    return `Kernel(${this.name}${this.closed ? ', closed' : ''})`;
  }

  [inspect.custom](): string {
    return this.toString();
  }

  /** Asks about the occupancy of a shape, which is checked as that of a launch. */
  #queryOccupancy(
    call: string,
    { block, cluster }: Pick<LaunchConfig, 'block' | 'cluster'>,
    options: OccupancyOptions | undefined,
    query: (config: LaunchConfigStruct) => number,
  ): number {
    const { sharedBytes } = checkOptions(options, ['sharedBytes'], call);
    return this.#withBuffers(({ config }) => {
      config.write({
        grid: cluster ?? 1,
        block,
        ...(sharedBytes !== undefined && { sharedBytes }),
        ...(cluster !== undefined && { cluster }),
      });
      config.stream = 0;
      this.handle; // a closed module is refused
      this.#limits.assertFits(config);
      return this.context.run(() => query(config));
    });
  }

  /** Calls `use` with blocks to be written. */
  #withBuffers<T>(use: (buffers: LaunchBuffers) => T): T {
    this.handle; // a closed module is refused
    const buffers = this.#buffers ?? this.#makeBuffers();
    this.#buffers = undefined;
    try {
      return use(buffers);
    } finally {
      this.#buffers = buffers;
    }
  }

  #makeBuffers(): LaunchBuffers {
    const { name, context } = this;
    return {
      config: new LaunchConfigStruct(name, deviceLaunchLimits(context.device)),
      args: new KernelArguments(name, context, this.params),
    };
  }

  /** In a default stream, or a borrowed one: what is queued there is marked. */
  #launchTracked(
    buffers: LaunchBuffers,
    stream: Stream | undefined,
    launchArguments: readonly unknown[],
  ): void {
    const call = (handle: CUstream): void => {
      const { config, args } = buffers;
      config.stream = handle;
      const status = cu.cuLaunchKernelEx(
        config.address,
        this.#function,
        args.address,
        NULL_ADDRESS,
      );
      if (status !== 0) this.#retryOrThrow(buffers, status, handle);
      if (isCapturing())
        recordLaunch(this as unknown as Kernel<never>, config, handle, launchArguments);
    };
    if (stream) stream.enqueue(call);
    else this.context.enqueue(call);
  }

  /** Where cuLaunchKernelEx did not do it: drivers before 11.8 lack it, others say why. */
  #retryOrThrow({ config, args }: LaunchBuffers, status: CUresult, stream: CUstream): void {
    if (status !== CUresult.CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER)
      throw launchError(this, config, status, 'cuLaunchKernelEx');
    if (config.hasAttributes)
      throw new NotSupportedError(
        'cooperative grids and clusters need a driver of CUDA 11.8 or later',
      );
    const { grid, block, sharedBytes } = config;
    const older = this.context.run(() =>
      cu.cuLaunchKernel(
        this.#function,
        ...grid,
        ...block,
        sharedBytes,
        stream,
        args.address,
        NULL_ADDRESS,
      ),
    );
    if (older !== 0) throw launchError(this, config, older, 'cuLaunchKernel');
  }

  /** A borrowed context may have several objects. */
  #assertSameContext(stream: Stream): void {
    if (stream.context.handle !== this.context.handle)
      throw new TypeError(
        `the stream is of ${stream.context}, and kernel ${this.name} was loaded in ${this.context}`,
      );
    noteMemoryUse(stream.context, [this.context]);
  }
}

const NULL_ADDRESS = 0 as Address;

/** Why a launch failed, with the numbers of both sides. */

/** The error of a launch that the driver refused. */
function launchError(
  kernel: Kernel,
  config: LaunchConfigStruct,
  status: CUresult,
  call: FunctionName,
): CudaError {
  const { grid, block, sharedBytes } = config;
  const shape = `grid ${grid.join(' x ')}, block ${block.join(' x ')}, ${sharedBytes} bytes of shared memory`;
  return cudaError(
    status,
    call,
    `launching kernel ${kernel.name} (${shape}${isSticky(status) ? '' : failureDetails(kernel, config, status)})`,
  );
}

function failureDetails(kernel: Kernel, config: LaunchConfigStruct, status: CUresult): string {
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
