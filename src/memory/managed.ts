import { inspect } from 'node:util';
import { OUT0, readHandle } from '../../ffi/arena.ts';
import {
  CU_DEVICE_CPU,
  CU_MEM_ADVISE_SET_ACCESSED_BY,
  CU_MEM_ADVISE_SET_PREFERRED_LOCATION,
  CU_MEM_ADVISE_SET_READ_MOSTLY,
  CU_MEM_ADVISE_UNSET_ACCESSED_BY,
  CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION,
  CU_MEM_ADVISE_UNSET_READ_MOSTLY,
  CU_MEM_ATTACH_GLOBAL,
  CU_MEM_ATTACH_HOST,
} from '../../ffi/constants.ts';
import { cu } from '../../ffi/driver.ts';
import type { Address, CUdevice, CUdeviceptr, CUstream } from '../../ffi/types.ts';
import { check } from '../check.ts';
import { Context, type PlaceOptions } from '../context.ts';
import { Device } from '../device.ts';
import { NotSupportedError } from '../errors.ts';
import { describeObject, placeName } from '../inspect.ts';
import { type StreamOption, streamOption } from '../stream.ts';
import {
  assertInternal,
  checkInstance,
  checkInteger,
  checkOptions,
  formatBytes,
} from '../validate.ts';
import { assertNotCaptured } from '../work-tracker.ts';
import { allocateWithRetry } from './allocate-with-retry.ts';
import { type AllocateOptions, DeviceBuffer, type MemoryResource } from './buffer.ts';
import { viewDriverMemory } from './host-views.ts';
import { HostVisibleBuffer } from './host-visible.ts';
import { noteMemoryUse } from './use-order.ts';

/** Which processors may use managed memory at first: every device, or only the CPU. */
export type ManagedAttach = 'global' | 'host';

/** Options of {@link ManagedMemory.create}. */
export interface ManagedMemoryOptions extends PlaceOptions {
  /** Default `'global'`. It matters only on devices without `concurrentManagedAccess`. */
  readonly attach?: ManagedAttach;
}

const ATTACH_FLAGS = { global: CU_MEM_ATTACH_GLOBAL, host: CU_MEM_ATTACH_HOST } as const;

const ADVICE_FLAGS = {
  readMostly: CU_MEM_ADVISE_SET_READ_MOSTLY,
  unsetReadMostly: CU_MEM_ADVISE_UNSET_READ_MOSTLY,
  preferredLocation: CU_MEM_ADVISE_SET_PREFERRED_LOCATION,
  unsetPreferredLocation: CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION,
  accessedBy: CU_MEM_ADVISE_SET_ACCESSED_BY,
  unsetAccessedBy: CU_MEM_ADVISE_UNSET_ACCESSED_BY,
} as const;

/** Advice to the driver about how managed memory will be used. */
export type ManagedAdvice = keyof typeof ADVICE_FLAGS;

const ADVICE_WITH_PLACE: readonly ManagedAdvice[] = [
  'preferredLocation',
  'accessedBy',
  'unsetAccessedBy',
];

/** Where managed memory is moved to, or used: a device or its ordinal, or the host. */
export type ManagedPlace = Device | number | 'host';

/**
 * Managed memory (cuMemAllocManaged): one address for the CPU and every device. Pages move to the
 * processor that accesses them.
 *
 * On devices with `concurrentManagedAccess`, the CPU sees it as an ArrayBuffer. On others, CPU
 * access while the GPU works would crash the process, so `buffer` throws. Memory that was viewed is
 * freed only when its ArrayBuffer was collected: until then views stay valid.
 *
 * @example
 * const memory = cuda.ManagedMemory.create();
 * using buffer = memory.allocate(1 << 20);
 * new Float32Array(buffer.buffer).fill(1);
 * memory.prefetch(buffer, buffer.context.device);
 * @see https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__UNIFIED.html
 */
export class ManagedMemory implements MemoryResource {
  readonly context: Context;
  readonly attach: ManagedAttach;
  readonly deviceAccessible = true;
  readonly hostAccessible: boolean;

  private constructor(context: Context, attach: ManagedAttach) {
    assertInternal(context, Context, 'ManagedMemory', 'ManagedMemory.create');
    this.context = context;
    this.attach = attach;
    this.hostAccessible = hasConcurrentAccess(context.device);
  }

  [inspect.custom](): string {
    return describeObject('ManagedMemory', () => [
      placeName(this.context),
      `attach ${this.attach}`,
    ]);
  }

  /** @throws NotSupportedError if the device has no managed memory */
  static create(options?: ManagedMemoryOptions): ManagedMemory {
    const { attach = 'global', ...place } = checkOptions(
      options,
      ['context', 'device', 'attach'],
      'ManagedMemory.create',
    );
    if (!Object.hasOwn(ATTACH_FLAGS, attach))
      throw new TypeError(`attach must be 'global' or 'host', not ${String(attach)}`);
    const context = Context.resolve(place);
    if (context.device.attribute('managedMemory') === 0)
      throw new NotSupportedError(`${context.device} has no managed memory`);
    return new ManagedMemory(context, attach);
  }

  /**
   * Allocates uninitialized managed memory. The driver would allow more than the device has and
   * fail only on access, so cuffi limits it to the free memory.
   *
   * @throws RangeError for more than the free memory, CudaError
   */
  allocate(byteLength: number, options?: AllocateOptions): HostVisibleBuffer {
    checkInteger(byteLength, 'byteLength', 1);
    checkOptions(options, ['stream'], 'allocate');
    const { context } = this;
    assertEnoughFree(context, byteLength);
    const { epoch } = context;
    const address = context.run(() => {
      allocateWithRetry(context, 'cuMemAllocManaged', byteLength, () =>
        cu.cuMemAllocManaged(OUT0, byteLength, ATTACH_FLAGS[this.attach]),
      );
      return readHandle<CUdeviceptr>(OUT0, cu.cuMemFree_v2);
    });
    const free = (): void => {
      if (context.epoch === epoch) check(cu.cuMemFree_v2(address), 'cuMemFree_v2');
    };
    const hostAddress = address as number as Address;
    const { viewsReference, release } = viewDriverMemory(context, hostAddress, byteLength, free, {
      byteLength,
    });
    return new HostVisibleBuffer({
      context,
      address,
      byteLength,
      resource: this,
      release,
      viewsReference: this.hostAccessible ? viewsReference : undefined,
    });
  }

  /**
   * Moves a buffer, or a part of one, to where it is used next. Only queues the work, by default in
   * the legacy default stream of the buffer's context. Without prefetching, pages move one by one
   * when they are accessed.
   *
   * @throws NotSupportedError on devices without `concurrentManagedAccess`
   */
  prefetch(buffer: DeviceBuffer, to: ManagedPlace, options?: StreamOption): void {
    const stream = streamOption(options, 'prefetch');
    const { address, byteLength, context } = checkManaged(buffer);
    const device = this.#locationId(to, 'to');
    assertConcurrentAccess(this.context.device, 'prefetching');
    if (byteLength === 0) return;
    noteMemoryUse(stream?.context ?? context, [context]);
    const call = (handle: CUstream): void => {
      assertNotCaptured(handle, 'prefetching');
      check(
        cu.cuMemPrefetchAsync(address, byteLength, device, handle),
        'cuMemPrefetchAsync',
        () => `prefetching ${formatBytes(byteLength)}`,
      );
    };
    if (stream) stream.enqueue(call);
    else context.enqueue(call);
  }

  /**
   * Tells the driver how a buffer, or a part of one, will be used.
   *
   * @param place required for `preferredLocation`, `accessedBy` and `unsetAccessedBy`; not allowed
   * for other advice
   * @throws NotSupportedError for a device without `concurrentManagedAccess`
   */
  advise(buffer: DeviceBuffer, advice: ManagedAdvice, place?: ManagedPlace): void {
    const { address, byteLength } = checkManaged(buffer);
    if (!Object.hasOwn(ADVICE_FLAGS, advice))
      throw new TypeError(
        `unknown advice '${String(advice)}': use one of ${Object.keys(ADVICE_FLAGS).join(', ')}`,
      );
    const needsPlace = ADVICE_WITH_PLACE.includes(advice);
    if (needsPlace !== (place !== undefined))
      throw new TypeError(
        needsPlace ? `advice '${advice}' needs a place` : `advice '${advice}' takes no place`,
      );
    const device =
      place === undefined ? this.context.device.handle : this.#locationId(place, 'place');
    if (byteLength === 0) return;
    this.context.run(() =>
      check(
        cu.cuMemAdvise(address, byteLength, ADVICE_FLAGS[advice], device),
        'cuMemAdvise',
        () => `advising ${advice} of ${formatBytes(byteLength)}`,
      ),
    );
  }

  #locationId(place: ManagedPlace, name: string): CUdevice {
    if (place === 'host') return CU_DEVICE_CPU as CUdevice;
    const device = Device.resolve(place, `${name} must be a Device, its ordinal or 'host'`);
    assertConcurrentAccess(device, `naming it as ${name}`);
    return device.handle;
  }
}

const hasConcurrentAccess = (device: Device): boolean =>
  device.attribute('concurrentManagedAccess') !== 0;

function assertConcurrentAccess(device: Device, operation: string): void {
  if (!hasConcurrentAccess(device))
    throw new NotSupportedError(
      `${device} has no concurrentManagedAccess, which ${operation} needs`,
    );
}

function checkManaged(buffer: DeviceBuffer): DeviceBuffer {
  checkInstance(buffer, DeviceBuffer, 'buffer');
  if (!(buffer.resource instanceof ManagedMemory))
    throw new TypeError('buffer must be managed memory, from ManagedMemory.allocate');
  return buffer;
}

function assertEnoughFree(context: Context, byteLength: number): void {
  if (byteLength <= context.deviceMemoryInfo().free) return;
  context.releases.drainReady(true);
  const { free } = context.deviceMemoryInfo();
  if (byteLength <= free) return;
  throw new RangeError(
    `out of memory: ${formatBytes(byteLength)} of managed memory were requested with ${formatBytes(free)} free`,
  );
}
