import {
  CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
  CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK,
  CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED,
  CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES,
} from '../../ffi/constants.ts';
import { cu } from '../../ffi/driver.ts';
import type { CUfunction } from '../../ffi/types.ts';
import { check } from '../check.ts';
import type { Device } from '../device.ts';
import { NotSupportedError } from '../errors.ts';
import { readAttribute } from './function-attributes.ts';
import type { ConfigBlock } from './launch-config.ts';
import { launchLimits } from './launch-limits.ts';

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
