/**
 * The configuration of kernel launches: its checks, its limits, and its struct for the driver; and the record
 * of launches.
 */
import {
  CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
  CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK,
  CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED,
  CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES,
  CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION,
  CU_LAUNCH_ATTRIBUTE_COOPERATIVE,
} from '../../ffi/constants.ts';
import { cu } from '../../ffi/driver.ts';
import { addressOf } from '../../ffi/native.ts';
import { structs } from '../../ffi/structs.ts';
import type { Address, CUfunction, CUgraphNode, CUstream } from '../../ffi/types.ts';
import { check } from '../check.ts';
import type { Device } from '../device.ts';
import { NotSupportedError } from '../errors.ts';
import { lastCapturedNode } from '../graph-capture.ts';
import { recentWork } from '../hints.ts';
import { type Stream, streamOf } from '../stream.ts';
import { checkBoolean, checkInteger, checkOptionNames, formatValue } from '../validate.ts';
import { readAttribute } from './function-attributes.ts';

/** One to three sizes; missing ones are 1. */
export type Extents3 = number | readonly [x: number, y?: number, z?: number];

/** The configuration of a kernel launch. */
export interface LaunchConfig {
  /** The number of blocks. */
  readonly grid: Extents3;
  /** The number of threads in a block. */
  readonly block: Extents3;
  /** Dynamic shared memory of each block, in bytes. Default 0. */
  readonly sharedBytes?: number;
  /** The stream of the launch. Default: the legacy default stream. */
  readonly stream?: Stream;
  /** The number of blocks in a cluster, on Hopper and later. The grid must be a multiple of it. */
  readonly cluster?: Extents3;
  /** Whether all blocks run at once, so that they can synchronize. Default false. */
  readonly cooperative?: boolean;
}

const OPTION_NAMES = ['grid', 'block', 'sharedBytes', 'stream', 'cluster', 'cooperative'] as const;

const { fields, byteLength: CONFIG_BYTE_LENGTH } = structs.CUlaunchConfig;
const ATTRIBUTE_BYTE_LENGTH = structs.CUlaunchAttribute.byteLength;
const ATTRIBUTE_VALUE_OFFSET = structs.CUlaunchAttribute.fields['value.clusterDim.x'][0];
const MAX_ATTRIBUTES = 2;

const GRID_WORD = fields.gridDimX[0] / 4;
const BLOCK_WORD = fields.blockDimX[0] / 4;
const SHARED_BYTES_WORD = fields.sharedMemBytes[0] / 4;
const STREAM_WORD = fields.hStream[0] / 4;
const ATTRIBUTES_OFFSET = fields.attrs[0];
const ATTRIBUTE_COUNT_WORD = fields.numAttrs[0] / 4;
const TWO_POW_32 = 2 ** 32;

/** The native CUlaunchConfig of a kernel, written anew for each launch. */
export class LaunchConfigStruct {
  /** Valid as long as this object is reachable. */
  readonly address: Address;
  readonly #kernel: string;
  readonly #limits: DeviceLaunchLimits;
  readonly #words: Uint32Array;
  #threads = 0;

  constructor(kernel: string, limits: DeviceLaunchLimits) {
    const memory = new ArrayBuffer(
      Math.ceil(CONFIG_BYTE_LENGTH / 8) * 8 + MAX_ATTRIBUTES * ATTRIBUTE_BYTE_LENGTH,
    );
    this.#kernel = kernel;
    this.#limits = limits;
    this.#words = new Uint32Array(memory);
    this.address = addressOf(this.#words);
    const attributes = this.address + CONFIG_BYTE_LENGTH;
    this.#words[ATTRIBUTES_OFFSET / 4] = attributes;
    this.#words[ATTRIBUTES_OFFSET / 4 + 1] = attributes / TWO_POW_32;
  }

  /** Writes everything but the stream, which it returns. @throws TypeError, RangeError */
  write(config: LaunchConfig): Stream | undefined {
    if (typeof config !== 'object' || config === null)
      throw new TypeError(
        `launch: the first argument must be { grid, block }, not ${formatValue(config)}`,
      );
    checkOptionNames(config, OPTION_NAMES, 'launch');
    // Reads each option once, before writing anything.
    const { grid, block, sharedBytes, stream, cluster, cooperative } = config;
    // The cluster comes first, because an occupancy query uses it as the grid.
    if (cluster === undefined && cooperative === undefined) this.#words[ATTRIBUTE_COUNT_WORD] = 0;
    else this.#writeAttributes(cluster, cooperative);
    this.#writeExtents(GRID_WORD, grid, 'grid', this.#limits.grid);
    this.#threads = this.#writeExtents(BLOCK_WORD, block, 'block', this.#limits.block);
    this.#words[SHARED_BYTES_WORD] =
      sharedBytes === undefined ? 0 : checkInteger(sharedBytes, 'sharedBytes', 0, TWO_POW_32 - 1);
    if (cluster !== undefined) this.#assertMultiple();
    return streamOf(stream);
  }

  set stream(handle: number) {
    this.#words[STREAM_WORD] = handle;
    this.#words[STREAM_WORD + 1] = handle / TWO_POW_32;
  }

  /** The threads of a block. */
  get threads(): number {
    return this.#threads;
  }

  get sharedBytes(): number {
    return this.#words[SHARED_BYTES_WORD] as number;
  }

  get grid(): readonly [x: number, y: number, z: number] {
    return this.#readExtents(GRID_WORD);
  }

  get block(): readonly [x: number, y: number, z: number] {
    return this.#readExtents(BLOCK_WORD);
  }

  /** Whether it has attributes, which cuLaunchKernel cannot take. */
  get hasAttributes(): boolean {
    return this.#words[ATTRIBUTE_COUNT_WORD] !== 0;
  }

  /** The number of blocks in a cluster; 1 without clusters. */
  get clusterBlocks(): number {
    if (
      this.#words[ATTRIBUTE_COUNT_WORD] === 0 ||
      this.#words[CONFIG_BYTE_LENGTH / 4] !== CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
    )
      return 1;
    return this.#readExtents((CONFIG_BYTE_LENGTH + ATTRIBUTE_VALUE_OFFSET) / 4).reduce(
      (product, extent) => product * extent,
      1,
    );
  }

  #readExtents(at: number): readonly [x: number, y: number, z: number] {
    const words = this.#words;
    return [words[at] as number, words[at + 1] as number, words[at + 2] as number];
  }

  /** Writes up to three sizes and returns their product. */
  #writeExtents(
    at: number,
    extents: Extents3 | undefined,
    name: string,
    max: readonly [x: number, y: number, z: number],
  ): number {
    const words = this.#words;
    if (typeof extents === 'number') {
      // Inline, because most launches take this path twice.
      if (extents >>> 0 !== extents || extents < 1 || extents > max[0])
        this.#checkExtent(extents, name, 'x', max[0]);
      words[at] = extents;
      words[at + 1] = 1;
      words[at + 2] = 1;
      return extents;
    }
    const count = Array.isArray(extents) ? extents.length : 0;
    if (!Array.isArray(extents) || count < 1 || count > 3)
      throw new TypeError(
        `${name} must be a number or one to three of them, not ${formatValue(extents)}`,
      );
    const x = this.#checkExtent(extents[0], name, 'x', max[0]);
    const y = count > 1 ? this.#checkExtent(extents[1], name, 'y', max[1]) : 1;
    const z = count > 2 ? this.#checkExtent(extents[2], name, 'z', max[2]) : 1;
    words[at] = x;
    words[at + 1] = y;
    words[at + 2] = z;
    return x * y * z;
  }

  #checkExtent(value: unknown, name: string, axis: string, max: number): number {
    if (typeof value === 'number' && value >>> 0 === value && value >= 1 && value <= max)
      return value;
    return checkInteger(value, `${name} along ${axis}, for kernel ${this.#kernel},`, 1, max);
  }

  /** @throws RangeError if the grid is not a multiple of the cluster */
  #assertMultiple(): void {
    const sizes = this.#readExtents((CONFIG_BYTE_LENGTH + ATTRIBUTE_VALUE_OFFSET) / 4);
    if (this.grid.some((blocks, axis) => blocks % (sizes[axis] as number) !== 0))
      throw new RangeError(
        `a grid of ${this.grid.join(' x ')} blocks is not a multiple of clusters of ${sizes.join(' x ')}`,
      );
  }

  /** Writes the cluster first, where {@link clusterBlocks} reads it. */
  #writeAttributes(cluster: Extents3 | undefined, cooperative: boolean | undefined): void {
    let count = 0;
    if (cluster !== undefined) {
      const at = CONFIG_BYTE_LENGTH / 4;
      this.#words[at] = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
      this.#writeExtents(at + ATTRIBUTE_VALUE_OFFSET / 4, cluster, 'cluster', this.#limits.grid);
      count += 1;
    }
    if (checkBoolean(cooperative, 'cooperative', false)) {
      const at = (CONFIG_BYTE_LENGTH + count * ATTRIBUTE_BYTE_LENGTH) / 4;
      this.#words[at] = CU_LAUNCH_ATTRIBUTE_COOPERATIVE;
      this.#words[at + ATTRIBUTE_VALUE_OFFSET / 4] = 1;
      count += 1;
    }
    this.#words[ATTRIBUTE_COUNT_WORD] = count;
  }
}

/** The limits of a device for launches. */
export interface DeviceLaunchLimits {
  /** The most blocks along each axis. */
  readonly grid: readonly [x: number, y: number, z: number];
  /** The most threads of a block along each axis. */
  readonly block: readonly [x: number, y: number, z: number];
  /** The most shared memory that a block may ask for, in bytes. */
  readonly sharedBytes: number;
}

const limitsByDevice = new WeakMap<Device, DeviceLaunchLimits>();

/** Returns the limits of a device, which are queried once. */
export function deviceLaunchLimits(device: Device): DeviceLaunchLimits {
  const found = limitsByDevice.get(device);
  if (found) return found;
  const limits: DeviceLaunchLimits = {
    grid: [
      device.attribute('maxGridDimX'),
      device.attribute('maxGridDimY'),
      device.attribute('maxGridDimZ'),
    ],
    block: [
      device.attribute('maxBlockDimX'),
      device.attribute('maxBlockDimY'),
      device.attribute('maxBlockDimZ'),
    ],
    sharedBytes: Math.max(
      device.attribute('maxSharedMemoryPerBlockOptin'),
      device.attribute('maxSharedMemoryPerBlock'),
    ),
  };
  limitsByDevice.set(device, limits);
  return limits;
}

/** Larger clusters do not run on every GPU that supports clusters. */
const MAX_PORTABLE_CLUSTER = 8;

/** The limits of one kernel, raised when a launch needs more than the driver's defaults. */
export class KernelLimits {
  readonly maxThreads: number;
  readonly #kernel: string;
  readonly #function: CUfunction;
  readonly #device: Device;
  readonly #staticSharedBytes: number;
  #dynamicSharedBytes: number;
  #maxClusterBlocks = MAX_PORTABLE_CLUSTER;

  constructor(kernel: string, handle: CUfunction, device: Device) {
    this.#kernel = kernel;
    this.#function = handle;
    this.#device = device;
    this.maxThreads = readAttribute(handle, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK);
    this.#staticSharedBytes = readAttribute(handle, CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES);
    this.#dynamicSharedBytes = readAttribute(
      handle,
      CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
    );
  }

  /** The current limit of dynamic shared memory for a block, in bytes. */
  get sharedBytes(): number {
    return this.#dynamicSharedBytes;
  }

  /** @throws RangeError for more threads or shared memory than the kernel allows */
  assertFits({ threads, block, sharedBytes }: LaunchConfigStruct): void {
    if (threads > this.maxThreads)
      throw new RangeError(
        `a block of ${block.join(' x ')} has ${threads} threads: kernel ${this.#kernel} can have ${this.maxThreads}`,
      );
    this.allowSharedBytes(sharedBytes);
  }

  /** Raises the limit of dynamic shared memory. @throws RangeError if the device has less */
  allowSharedBytes(byteLength: number): void {
    if (byteLength <= this.#dynamicSharedBytes) return;
    const { sharedBytes } = deviceLaunchLimits(this.#device);
    const maxSharedBytes = sharedBytes - this.#staticSharedBytes;
    if (byteLength > maxSharedBytes)
      throw new RangeError(
        `sharedBytes is ${byteLength}: a block of kernel ${this.#kernel} can have ${maxSharedBytes} (the device's ` +
          `${sharedBytes} less ${this.#staticSharedBytes} of its own)`,
      );
    this.#setAttribute(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, byteLength);
    this.#dynamicSharedBytes = byteLength;
  }

  /** Allows clusters of so many blocks. @throws NotSupportedError */
  allowCluster(blocks: number): void {
    if (blocks > 1) this.assertClusters();
    if (blocks <= this.#maxClusterBlocks) return;
    this.#setAttribute(CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1);
    this.#maxClusterBlocks = Number.POSITIVE_INFINITY;
  }

  /** @throws NotSupportedError if the device does not support clusters */
  assertClusters(): void {
    if (this.#device.attributeOr('clusterLaunch', 0) === 0)
      throw new NotSupportedError(`${this.#device} does not support clusters`);
  }

  #setAttribute(attribute: number, value: number): void {
    check(
      cu.cuFuncSetAttribute(this.#function, attribute, value),
      'cuFuncSetAttribute',
      () => `setting attribute ${attribute} of kernel ${this.#kernel} to ${value}`,
    );
  }
}

// ---- What was launched: graphs read the launches of a capture, and errors name the last of all ----

/** A kernel launch in a captured stream. */
export interface LaunchRecord extends Pick<LaunchConfigStruct, 'grid' | 'block' | 'sharedBytes'> {
  readonly kernel: object;
  readonly handle: CUgraphNode;
  readonly args: readonly unknown[];
}

/** Notes a launch that is about to be made: a fault that is found later may be of it. */
export const noteLaunch = (kernel: string): void => {
  recentWork.kernel = kernel;
};

let records: LaunchRecord[] = [];

/** Calls `work` and returns the kernel launches that it makes in captured streams. */
export function recordLaunches<T>(work: () => T): {
  readonly result: T;
  readonly launches: readonly LaunchRecord[];
} {
  records = [];
  try {
    return { result: work(), launches: records };
  } finally {
    records = [];
  }
}

/** Records the launch that was just made, if its stream is captured. */
export function recordLaunch(
  kernel: object,
  { grid, block, sharedBytes }: LaunchConfigStruct,
  stream: CUstream,
  args: readonly unknown[],
): void {
  const handle = lastCapturedNode(stream);
  if (handle !== undefined) records.push({ kernel, grid, block, sharedBytes, handle, args });
}
