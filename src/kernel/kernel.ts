import { inspect } from 'node:util';
import {
  CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
  CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK,
  CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED,
  CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES,
} from '../../ffi/constants.ts';
import { cu } from '../../ffi/driver.ts';
import { CUresult } from '../../ffi/results.ts';
import type { Address, CUfunction, CUstream } from '../../ffi/types.ts';
import { checkInteger, checkOptions, requireMade } from '../arguments.ts';
import { isCapturing } from '../capture.ts';
import { check } from '../check.ts';
import type { Context } from '../context.ts';
import { NotSupportedError } from '../errors.ts';
import { noteVisits } from '../memory/buffer-copies.ts';
import { Resource } from '../resource.ts';
import type { Stream } from '../stream.ts';
import { ArgumentBlock } from './argument-block.ts';
import { type KernelAttributes, readAttribute, readAttributes } from './function-attributes.ts';
import { noteLaunch } from './kernel-node.ts';
import { ConfigBlock, type Extents3, type LaunchConfig } from './launch-config.ts';
import { launchError } from './launch-error.ts';
import { type LaunchLimits, launchLimits } from './launch-limits.ts';
import type { Module } from './module.ts';
import {
  activeBlocks,
  type OccupancyOptions,
  type SuggestedBlock,
  suggestBlock,
  threadsOf,
} from './occupancy.ts';
import type { Arguments, Parameter } from './parameters.ts';

/** Clusters of more blocks do not run on every GPU that has clusters. */
const PORTABLE_CLUSTER = 8;

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
  readonly #limits: LaunchLimits;
  readonly #config: ConfigBlock;
  readonly #arguments: ArgumentBlock;
  readonly #maxThreads: number;
  readonly #staticSharedBytes: number;
  #dynamicSharedBytes: number;
  #maxClusterBlocks = PORTABLE_CLUSTER;

  /** @internal */
  constructor(module: Module, name: string, handle: CUfunction, params: P) {
    requireMade(module, Resource, 'Kernel', 'module.kernel');
    const { context } = module;
    this.module = module;
    this.context = context;
    this.name = name;
    this.params = params;
    this.#function = handle;
    this.#limits = launchLimits(context.device);
    this.#config = new ConfigBlock(name, this.#limits);
    this.#arguments = new ArgumentBlock(name, context, params);
    this.#maxThreads = readAttribute(handle, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK);
    this.#staticSharedBytes = readAttribute(handle, CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES);
    this.#dynamicSharedBytes = readAttribute(
      handle,
      CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
    );
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
    const call = this.handle;
    const block = this.#config;
    const stream = block.write(config);
    if (block.threads > this.#maxThreads || block.sharedBytes > this.#dynamicSharedBytes)
      this.#requireRoom();
    if (block.hasAttributes) this.#allowCluster();
    if (stream !== undefined && stream.context !== this.context) this.#requireOwn(stream);
    this.#arguments.write(args);
    const handle = stream?.plainHandle;
    if (handle === undefined) {
      this.#launchMarked(stream, args);
      return;
    }
    block.stream = handle;
    const status = cu.cuLaunchKernelEx(block.address, call, this.#arguments.address, NOTHING);
    if (status !== 0) this.#launchElse(status, handle);
    if (isCapturing()) noteLaunch(this as unknown as Kernel<never>, block, handle, args);
  }

  /** @internal Writes arguments as a launch does, and answers where the table of them lies. */
  writeArguments(args: readonly unknown[]): Address {
    this.handle; // a closed module is refused
    this.#arguments.write(args);
    return this.#arguments.address;
  }

  /**
   * How many blocks of a size run on one multiprocessor at once.
   *
   * @see https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__OCCUPANCY.html
   */
  maxActiveBlocks(block: Extents3, options?: OccupancyOptions): number {
    const { sharedBytes } = checkOptions(options, ['sharedBytes'], 'maxActiveBlocks');
    const threads = threadsOf(block);
    const shared = checkInteger(sharedBytes ?? 0, 'sharedBytes');
    const { handle } = this;
    this.#allowShared(shared);
    return this.context.run(() => activeBlocks(handle, threads, shared));
  }

  /** How many blocks of a size run on the device at once: the most that a cooperative grid has. */
  maxCooperativeBlocks(block: Extents3, options?: OccupancyOptions): number {
    const { device } = this.context;
    return this.maxActiveBlocks(block, options) * device.attribute('multiprocessorCount');
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
    this.#allowShared(shared);
    return this.context.run(() => suggestBlock(handle, shared, most));
  }

  toString(): string {
    return `Kernel(${this.name}${this.closed ? ', closed' : ''})`;
  }

  [inspect.custom](): string {
    return this.toString();
  }

  /** In a default stream, or a borrowed one: what is queued there is marked. */
  #launchMarked(stream: Stream | undefined, given: readonly unknown[]): void {
    const call = (handle: CUstream): void => {
      const config = this.#config;
      config.stream = handle;
      const args = this.#arguments.address;
      const status = cu.cuLaunchKernelEx(config.address, this.#function, args, NOTHING);
      if (status !== 0) this.#launchElse(status, handle);
      if (isCapturing()) noteLaunch(this as unknown as Kernel<never>, config, handle, given);
    };
    if (stream) stream.enqueue(call);
    else this.context.enqueue(call);
  }

  /** Where cuLaunchKernelEx did not do it: drivers before 11.8 lack it, others say why. */
  #launchElse(status: CUresult, stream: CUstream): void {
    if (status !== CUresult.CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER)
      throw launchError(this, this.#config, status, 'cuLaunchKernelEx');
    if (this.#config.hasAttributes)
      throw new NotSupportedError(
        'cooperative grids and clusters need a driver of CUDA 11.8 or later',
      );
    const { grid, block, sharedBytes } = this.#config;
    const args = this.#arguments.address;
    const older = this.context.run(() =>
      cu.cuLaunchKernel(this.#function, ...grid, ...block, sharedBytes, stream, args, NOTHING),
    );
    if (older !== 0) throw launchError(this, this.#config, older, 'cuLaunchKernel');
  }

  #requireRoom(): void {
    const { threads, block, sharedBytes } = this.#config;
    if (threads > this.#maxThreads)
      throw new RangeError(
        `a block of ${block.join(' x ')} has ${threads} threads: kernel ${this.name} can have ${this.#maxThreads}`,
      );
    this.#allowShared(sharedBytes);
  }

  /** Lets launches ask for so much dynamic shared memory, where the device has it. */
  #allowShared(byteLength: number): void {
    if (byteLength <= this.#dynamicSharedBytes) return;
    const most = this.#limits.sharedBytes - this.#staticSharedBytes;
    if (byteLength > most)
      throw new RangeError(
        `sharedBytes is ${byteLength}: a block of kernel ${this.name} can have ${most} (the device's ` +
          `${this.#limits.sharedBytes} less ${this.#staticSharedBytes} of its own)`,
      );
    this.#set(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, byteLength);
    this.#dynamicSharedBytes = byteLength;
  }

  #allowCluster(): void {
    const { clusterBlocks } = this.#config;
    if (clusterBlocks > 1 && this.context.device.attribute('clusterLaunch') === 0)
      throw new NotSupportedError(`${this.context.device} has no clusters`);
    if (clusterBlocks <= this.#maxClusterBlocks) return;
    this.#set(CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1);
    this.#maxClusterBlocks = Number.POSITIVE_INFINITY;
  }

  #set(attribute: number, value: number): void {
    check(
      cu.cuFuncSetAttribute(this.handle, attribute, value),
      'cuFuncSetAttribute',
      () => `setting attribute ${attribute} of kernel ${this.name} to ${value}`,
    );
  }

  /** A borrowed context may have several objects. */
  #requireOwn(stream: Stream): void {
    if (stream.context.handle !== this.context.handle)
      throw new TypeError(
        `the stream is of ${stream.context}, and kernel ${this.name} was loaded in ${this.context}`,
      );
    noteVisits(stream.context, [this.context]);
  }
}

const NOTHING = 0 as Address;
