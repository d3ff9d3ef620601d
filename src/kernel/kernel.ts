import { inspect } from 'node:util';
import { cu } from '../../ffi/driver.ts';
import type { FunctionName } from '../../ffi/functions.ts';
import { CUresult } from '../../ffi/results.ts';
import type { Address, CUfunction, CUstream } from '../../ffi/types.ts';
import { cudaError, newerDriverNeeded } from '../check.ts';
import type { Context } from '../context.ts';
import { type CudaError, isSticky } from '../errors.ts';
import { isCapturing } from '../graph-capture.ts';
import { describeObject } from '../inspect.ts';
import { Resource } from '../lifetime.ts';
import { noteMemoryUse, orderedMemoryCount } from '../memory/use-order.ts';
import type { Stream } from '../stream.ts';
import { assertInternal, checkInteger, checkOptions } from '../validate.ts';
import {
  activeBlocks,
  activeClusters,
  clusterBlocks,
  type KernelAttributes,
  type OccupancyOptions,
  readAttributes,
  type SuggestedBlock,
  suggestBlock,
} from './function-attributes.ts';
import {
  type Arguments,
  forEachBuffer,
  KernelArguments,
  type Parameter,
} from './kernel-arguments.ts';
import {
  deviceLaunchLimits,
  type Extents3,
  KernelLimits,
  type LaunchConfig,
  LaunchConfigStruct,
  noteLaunch,
  recordLaunch,
} from './launch-config.ts';
import type { Module } from './module.ts';

/**
 * The native memory for the configuration and arguments of a launch. A launch takes the buffers of
 * its kernel while it writes. If a getter of an argument launches the same kernel meanwhile, that
 * launch makes new ones.
 */
interface LaunchBuffers {
  readonly config: LaunchConfigStruct;
  readonly args: KernelArguments;
}

/**
 * A kernel of a module. It keeps its module alive and is closed with it.
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
  /** Undefined while a launch uses them. */
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

  /** Whether the module is closed. */
  get closed(): boolean {
    return this.module.closed;
  }

  /** The driver's handle, a CUfunction. @throws ClosedError */
  get handle(): CUfunction {
    this.module.assertOpen();
    return this.#function;
  }

  /** The resources that the compiled kernel uses, and its limits; queried at each access. */
  get attributes(): KernelAttributes {
    return readAttributes(this.handle);
  }

  /**
   * Queues the kernel without waiting. Arguments are read before this returns. Memory passed to the
   * kernel may be closed afterwards: it is freed when the work is done.
   *
   * More than 48 KiB of dynamic shared memory is enabled if the device has it.
   *
   * @throws TypeError, RangeError for arguments that do not fit the parameters, or a launch shape
   * that the kernel or the device does not allow; ClosedError, CudaError. Errors of the running
   * kernel are reported by the calls that wait for it
   */
  launch(config: LaunchConfig, ...args: Arguments<P>): void {
    this.module.assertOpen();
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
    // Without ordered memory, a launch only compares a number.
    if (orderedMemoryCount > 0) forEachBuffer(args, (buffer) => buffer.orderUse(stream));
    buffers.args.write(args);
    const call = this.handle; // throws if a getter of an argument has closed the module
    noteLaunch(this.name);
    const handle = stream?.launchHandle;
    if (handle === undefined) {
      this.#launchTracked(buffers, stream, args);
      return;
    }
    block.stream = handle;
    const status = cu.cuLaunchKernelEx(block.address, call, buffers.args.address, NULL_ADDRESS);
    if (status !== 0) this.#retryOrThrow(buffers, status, handle);
    if (isCapturing()) recordLaunch(this, block, handle, args);
  }

  /** @internal Writes arguments as a launch does, and calls `use` with the address of their table. */
  withArguments<T>(args: readonly unknown[], use: (address: Address) => T): T {
    return this.#withBuffers((blocks) => {
      blocks.args.write(args);
      return use(blocks.args.address);
    });
  }

  /**
   * How many blocks of a size run on one multiprocessor at once.
   *
   * @throws RangeError, TypeError for a block size that the kernel does not allow
   * @see https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__OCCUPANCY.html
   */
  maxActiveBlocks(block: Extents3, options?: OccupancyOptions): number {
    return this.#queryOccupancy('maxActiveBlocks', { block }, options, (config) =>
      activeBlocks(this.#function, config),
    );
  }

  /** How many blocks of a size run on the device at once: the largest cooperative grid. */
  maxCooperativeBlocks(block: Extents3, options?: OccupancyOptions): number {
    const blocks = this.#queryOccupancy('maxCooperativeBlocks', { block }, options, (config) =>
      activeBlocks(this.#function, config),
    );
    return blocks * this.context.device.attribute('multiprocessorCount');
  }

  /**
   * How many clusters run on the device at once, by the sizes of a cluster and of a block; may be 0.
   *
   * @throws RangeError, TypeError as {@link maxActiveBlocks}; NotSupportedError if the device does not
   * support clusters; CudaError
   */
  maxActiveClusters(cluster: Extents3, block: Extents3, options?: OccupancyOptions): number {
    return this.#queryOccupancy('maxActiveClusters', { block, cluster }, options, (config) => {
      this.#limits.assertClusters();
      this.#limits.allowCluster(config.clusterBlocks);
      return activeClusters(this.#function, config);
    });
  }

  /**
   * How many blocks of a size a cluster can have. The most is 8, which every device with clusters
   * supports, until the kernel was launched with, or queried for, larger clusters.
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
   * The block size with the highest occupancy, and the smallest grid that fills the device.
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
    const maxSize = checkInteger(maxBlockSize ?? 0, 'maxBlockSize', 0, 2 ** 31 - 1);
    const { handle } = this;
    this.#limits.allowSharedBytes(shared);
    return this.context.run(() => suggestBlock(handle, shared, maxSize));
  }

  toString(): string {
    return describeObject('Kernel', () => [this.name, this.closed && 'closed']);
  }

  [inspect.custom](): string {
    return this.toString();
  }

  /** Queries the occupancy of a launch shape, which is checked as in a launch. */
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
      this.module.assertOpen();
      this.#limits.assertFits(config);
      return this.context.run(() => query(config));
    });
  }

  /** Calls `use` with the buffers, which nothing else uses meanwhile. */
  #withBuffers<T>(use: (buffers: LaunchBuffers) => T): T {
    this.module.assertOpen();
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

  /** Launches in a default or borrowed stream, and tracks the work there. */
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
      if (isCapturing()) recordLaunch(this, config, handle, launchArguments);
    };
    if (stream) stream.enqueue(call);
    else this.context.enqueue(call);
  }

  /** Retries by cuLaunchKernel on drivers before 11.8; otherwise throws the error of the launch. */
  #retryOrThrow({ config, args }: LaunchBuffers, status: CUresult, stream: CUstream): void {
    if (status !== CUresult.CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER)
      throw launchError(this, config, status, 'cuLaunchKernelEx');
    if (config.hasAttributes)
      throw newerDriverNeeded('cuLaunchKernelEx', 'a cooperative grid or a cluster');
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

  /** Compares handles, because several Context objects may stand for one borrowed context. */
  #assertSameContext(stream: Stream): void {
    if (stream.context.handle !== this.context.handle)
      throw new TypeError(
        `the stream belongs to ${stream.context}, but kernel ${this.name} was loaded in ${this.context}`,
      );
    noteMemoryUse(stream.context, [this.context]);
  }
}

const NULL_ADDRESS = 0 as Address;

/** The error of a launch that the driver rejected. */
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
    // The error of the launch itself says more.
  }
  return '';
}
