/** How a kernel is launched, and the struct that tells the driver. */
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
import type { Address, CUfunction } from '../../ffi/types.ts';
import { check } from '../check.ts';
import type { Device } from '../device.ts';
import { NotSupportedError } from '../errors.ts';
import { streamOf } from '../memory/buffer-copy.ts';
import type { Stream } from '../stream.ts';
import { checkBoolean, checkInteger, checkOptionNames, formatValue } from '../validate.ts';
import { readAttribute } from './function-attributes.ts';

/** One to three sizes; those left out are 1. */
export type Extents3 = number | readonly [x: number, y?: number, z?: number];

/** How a kernel is launched. */
export interface LaunchConfig {
  /** How many blocks there are. */
  readonly grid: Extents3;
  /** How many threads each block has. */
  readonly block: Extents3;
  /** Dynamic shared memory of each block, in bytes. Default 0. */
  readonly sharedBytes?: number;
  /** The stream to work in. Default: the legacy default stream. */
  readonly stream?: Stream;
  /** How many blocks form a cluster, on Hopper and later: the grid is a multiple of it. */
  readonly cluster?: Extents3;
  /** Whether all blocks run at once, so that the grid can wait for itself. Default false. */
  readonly cooperative?: boolean;
}

const KNOWN = ['grid', 'block', 'sharedBytes', 'stream', 'cluster', 'cooperative'] as const;

const { fields, byteLength: CONFIG } = structs.CUlaunchConfig;
const ATTRIBUTE = structs.CUlaunchAttribute.byteLength;
const VALUE = structs.CUlaunchAttribute.fields['value.clusterDim.x'][0];
const MAX_ATTRIBUTES = 2;

const GRID = fields.gridDimX[0] / 4;
const BLOCK = fields.blockDimX[0] / 4;
const SHARED = fields.sharedMemBytes[0] / 4;
const STREAM = fields.hStream[0] / 4;
const ATTRIBUTES = fields.attrs[0];
const COUNT = fields.numAttrs[0] / 4;
const HIGH = 2 ** 32;

/** How many properties there are, as `for in` finds them. */
function countOf(config: LaunchConfig): number {
  let count = 0;
  for (const _ in config) count += 1;
  return count;
}

/** The configuration of a kernel's launches: one struct, written anew for each. */
export class ConfigBlock {
  /** Good as long as the block is referred to. */
  readonly address: Address;
  readonly #kernel: string;
  readonly #limits: LaunchLimits;
  readonly #words: Uint32Array;
  #threads = 0;

  constructor(kernel: string, limits: LaunchLimits) {
    const memory = new ArrayBuffer(Math.ceil(CONFIG / 8) * 8 + MAX_ATTRIBUTES * ATTRIBUTE);
    this.#kernel = kernel;
    this.#limits = limits;
    this.#words = new Uint32Array(memory);
    this.address = addressOf(this.#words);
    const attributes = this.address + CONFIG;
    this.#words[ATTRIBUTES / 4] = attributes;
    this.#words[ATTRIBUTES / 4 + 1] = attributes / HIGH;
  }

  /** Writes all but the stream, which is answered. @throws TypeError, RangeError */
  write(config: LaunchConfig): Stream | undefined {
    if (typeof config !== 'object' || config === null)
      throw new TypeError(
        `launch: the first argument is { grid, block }, not ${formatValue(config)}`,
      );
    // Each is read once, before anything is written.
    const { grid, block, sharedBytes, stream, cluster, cooperative } = config;
    let given = 0;
    if (grid !== undefined) given += 1;
    if (block !== undefined) given += 1;
    if (stream !== undefined) given += 1;
    if (sharedBytes !== undefined) given += 1;
    if (cluster !== undefined) given += 1;
    if (cooperative !== undefined) given += 1;
    // Others are looked for where there may be any: all names cost four times as much, which a launch
    // would feel.
    if (countOf(config) !== given) checkOptionNames(config, KNOWN, 'launch');
    // First: what is asked about clusters alone has its grid of them.
    if (cluster === undefined && cooperative === undefined) this.#words[COUNT] = 0;
    else this.#writeAttributes(cluster, cooperative);
    this.#writeExtents(GRID, grid, 'grid', this.#limits.grid);
    this.#threads = this.#writeExtents(BLOCK, block, 'block', this.#limits.block);
    this.#words[SHARED] =
      sharedBytes === undefined ? 0 : checkInteger(sharedBytes, 'sharedBytes', 0, HIGH - 1);
    if (cluster !== undefined) this.#requireMultiple();
    return streamOf(stream);
  }

  set stream(handle: number) {
    this.#words[STREAM] = handle;
    this.#words[STREAM + 1] = handle / HIGH;
  }

  /** The threads of a block. */
  get threads(): number {
    return this.#threads;
  }

  get sharedBytes(): number {
    return this.#words[SHARED] as number;
  }

  get grid(): readonly [x: number, y: number, z: number] {
    return this.#extents(GRID);
  }

  get block(): readonly [x: number, y: number, z: number] {
    return this.#extents(BLOCK);
  }

  /** Whether it says anything that cuLaunchKernel cannot. */
  get hasAttributes(): boolean {
    return this.#words[COUNT] !== 0;
  }

  /** The blocks of a cluster; 1 where there are none. */
  get clusterBlocks(): number {
    if (
      this.#words[COUNT] === 0 ||
      this.#words[CONFIG / 4] !== CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
    )
      return 1;
    return this.#extents((CONFIG + VALUE) / 4).reduce((product, extent) => product * extent, 1);
  }

  #extents(at: number): readonly [x: number, y: number, z: number] {
    const [x = 0, y = 0, z = 0] = this.#words.subarray(at, at + 3);
    return [x, y, z];
  }

  /** Answers their product. */
  #writeExtents(
    at: number,
    extents: Extents3 | undefined,
    name: string,
    most: readonly [x: number, y: number, z: number],
  ): number {
    const words = this.#words;
    if (typeof extents === 'number') {
      // In line, as most launches come here twice.
      if (extents >>> 0 !== extents || extents < 1 || extents > most[0])
        this.#extent(extents, name, 'x', most[0]);
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
    const x = this.#extent(extents[0], name, 'x', most[0]);
    const y = count > 1 ? this.#extent(extents[1], name, 'y', most[1]) : 1;
    const z = count > 2 ? this.#extent(extents[2], name, 'z', most[2]) : 1;
    words[at] = x;
    words[at + 1] = y;
    words[at + 2] = z;
    return x * y * z;
  }

  #extent(value: unknown, name: string, axis: string, most: number): number {
    if (typeof value === 'number' && value >>> 0 === value && value >= 1 && value <= most)
      return value;
    return checkInteger(value, `${name} along ${axis}, for kernel ${this.#kernel},`, 1, most);
  }

  /** @throws RangeError where the grid is not made of whole clusters */
  #requireMultiple(): void {
    const sizes = this.#extents((CONFIG + VALUE) / 4);
    if (this.grid.some((blocks, axis) => blocks % (sizes[axis] as number) !== 0))
      throw new RangeError(
        `a grid of ${this.grid.join(' x ')} blocks is no multiple of clusters of ${sizes.join(' x ')}`,
      );
  }

  /** The cluster first: see {@link clusterBlocks}. */
  #writeAttributes(cluster: Extents3 | undefined, cooperative: boolean | undefined): void {
    let count = 0;
    if (cluster !== undefined) {
      const at = CONFIG / 4;
      this.#words[at] = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
      this.#writeExtents(at + VALUE / 4, cluster, 'cluster', this.#limits.grid);
      count += 1;
    }
    if (checkBoolean(cooperative, 'cooperative', false)) {
      const at = (CONFIG + count * ATTRIBUTE) / 4;
      this.#words[at] = CU_LAUNCH_ATTRIBUTE_COOPERATIVE;
      this.#words[at + VALUE / 4] = 1;
      count += 1;
    }
    this.#words[COUNT] = count;
  }
}

/** What a device allows a launch. */
export interface LaunchLimits {
  /** The most blocks along each axis. */
  readonly grid: readonly [x: number, y: number, z: number];
  /** The most threads of a block along each axis. */
  readonly block: readonly [x: number, y: number, z: number];
  /** The most shared memory that a block may ask for, in bytes. */
  readonly sharedBytes: number;
}

const known = new WeakMap<Device, LaunchLimits>();

/** The limits of a device, asked once. */
export function launchLimits(device: Device): LaunchLimits {
  const found = known.get(device);
  if (found) return found;
  const limits: LaunchLimits = {
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
  known.set(device, limits);
  return limits;
}

/** Clusters of more blocks do not run on every GPU that has clusters. */
const PORTABLE_CLUSTER = 8;

/** What launches of one kernel may have, raised when one asks for more than the driver gives by itself. */
export class LaunchRoom {
  readonly maxThreads: number;
  readonly #kernel: string;
  readonly #function: CUfunction;
  readonly #device: Device;
  readonly #staticSharedBytes: number;
  #dynamicSharedBytes: number;
  #maxClusterBlocks = PORTABLE_CLUSTER;

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

  /** The most dynamic shared memory that a block may ask for as things are, in bytes. */
  get sharedBytes(): number {
    return this.#dynamicSharedBytes;
  }

  /** @throws RangeError for more threads or shared memory than the kernel can have */
  require({ threads, block, sharedBytes }: ConfigBlock): void {
    if (threads > this.maxThreads)
      throw new RangeError(
        `a block of ${block.join(' x ')} has ${threads} threads: kernel ${this.#kernel} can have ${this.maxThreads}`,
      );
    this.allowShared(sharedBytes);
  }

  /** Lets launches ask for so much dynamic shared memory, where the device has it. */
  allowShared(byteLength: number): void {
    if (byteLength <= this.#dynamicSharedBytes) return;
    const { sharedBytes } = launchLimits(this.#device);
    const most = sharedBytes - this.#staticSharedBytes;
    if (byteLength > most)
      throw new RangeError(
        `sharedBytes is ${byteLength}: a block of kernel ${this.#kernel} can have ${most} (the device's ` +
          `${sharedBytes} less ${this.#staticSharedBytes} of its own)`,
      );
    this.#set(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, byteLength);
    this.#dynamicSharedBytes = byteLength;
  }

  /** Lets launches form clusters of so many blocks. @throws NotSupportedError */
  allowCluster(blocks: number): void {
    if (blocks > 1) this.requireClusters();
    if (blocks <= this.#maxClusterBlocks) return;
    this.#set(CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1);
    this.#maxClusterBlocks = Number.POSITIVE_INFINITY;
  }

  /** @throws NotSupportedError where the device has no clusters */
  requireClusters(): void {
    if (this.#device.attribute('clusterLaunch') === 0)
      throw new NotSupportedError(`${this.#device} has no clusters`);
  }

  #set(attribute: number, value: number): void {
    check(
      cu.cuFuncSetAttribute(this.#function, attribute, value),
      'cuFuncSetAttribute',
      () => `setting attribute ${attribute} of kernel ${this.#kernel} to ${value}`,
    );
  }
}
