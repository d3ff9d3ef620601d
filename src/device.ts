import { inspect } from 'node:util';
import { BLOCK, OUT0, readBytes, readInt32, readSize, readString } from '../ffi/arena.ts';
import { type DeviceAttribute, deviceAttributes } from '../ffi/attributes.ts';
import {
  CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED,
  CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK,
} from '../ffi/constants.ts';
import { cu, selectionCount } from '../ffi/driver.ts';
import { CUresult } from '../ffi/results.ts';
import type { CUdevice } from '../ffi/types.ts';
import { check } from './check.ts';
import { initialize } from './driver.ts';
import { assertInternal, checkInteger, didYouMean, formatValue } from './validate.ts';

/**
 * A GPU, as this process sees it. Reading its properties opens no context: the first use of the
 * context does.
 *
 * @example
 * for (const device of cuda.devices()) console.log(device.name, device.uuid);
 * @see https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__DEVICE.html
 */
export class Device {
  /** Its number among the visible devices, which CUDA_VISIBLE_DEVICES changes; see {@link uuid}. */
  readonly ordinal: number;
  /** The driver's handle. */
  readonly handle: CUdevice;
  #name: string | undefined;
  #uuid: string | undefined;

  private constructor(init: { readonly ordinal: number; readonly handle: CUdevice }) {
    assertInternal(init, Object, 'Device', 'Device.get');
    this.ordinal = init.ordinal;
    this.handle = init.handle;
  }

  /** How many devices this process sees. */
  static get count(): number {
    const all = currentDeviceCache();
    if (all.count === undefined) {
      check(cu.cuDeviceGetCount(OUT0), 'cuDeviceGetCount');
      all.count = readInt32(OUT0);
    }
    return all.count;
  }

  /** Returns the device with an ordinal. @throws RangeError if there is no such device */
  static get(ordinal = 0): Device {
    checkInteger(ordinal, 'ordinal');
    const all = currentDeviceCache();
    const existing = all.devices[ordinal];
    if (existing) return existing;
    const count = Device.count;
    if (ordinal >= count)
      throw new RangeError(
        `there is no device ${ordinal}: this process sees ${count} (0 to ${count - 1}; CUDA_VISIBLE_DEVICES may hide others)`,
      );
    check(cu.cuDeviceGet(OUT0, ordinal), 'cuDeviceGet');
    const device = new Device({ ordinal, handle: readInt32(OUT0) as CUdevice });
    all.devices[ordinal] = device;
    return device;
  }

  /** @internal The device that an option names, as an object or by its ordinal. */
  static resolve(
    device: Device | number,
    expected = 'device must be a Device or its ordinal',
  ): Device {
    if (typeof device === 'number') return Device.get(device);
    if (device instanceof Device) return device;
    throw new TypeError(`${expected}, not ${formatValue(device)}`);
  }

  /** Returns the visible device with a UUID, e.g. `GPU-1a2b…`. @throws RangeError if none has it */
  static byUuid(uuid: string): Device {
    if (typeof uuid !== 'string') throw new TypeError('uuid must be a string');
    const all = devices();
    const found = all.find((device) => device.uuid === uuid);
    if (found) return found;
    throw new RangeError(
      `no visible device has the UUID ${uuid}; visible: ${all.map((device) => device.uuid).join(', ')}`,
    );
  }

  /** E.g. `NVIDIA H200`. */
  get name(): string {
    if (this.#name === undefined) {
      check(cu.cuDeviceGetName(BLOCK, 256, this.handle), 'cuDeviceGetName');
      this.#name = readString(BLOCK, 256);
    }
    return this.#name;
  }

  /** The identity of the GPU, the same in all processes, as nvidia-smi prints it: `GPU-xxxxxxxx-xxxx-…`. */
  get uuid(): string {
    if (this.#uuid === undefined) {
      check(cu.cuDeviceGetUuid_v2(BLOCK, this.handle), 'cuDeviceGetUuid_v2');
      const hex = Buffer.from(readBytes(BLOCK, 16)).toString('hex');
      // A slice of a GPU (MIG) has its own UUID.
      const prefix = / MIG /.test(this.name) ? 'MIG' : 'GPU';
      this.#uuid = `${prefix}-${hex.replace(/^(.{8})(.{4})(.{4})(.{4})(.{12})$/, '$1-$2-$3-$4-$5')}`;
    }
    return this.#uuid;
  }

  /** The size of the device's memory, in bytes. `context.memoryInfo()` returns how much is free. */
  get totalMemory(): number {
    check(cu.cuDeviceTotalMem_v2(OUT0, this.handle), 'cuDeviceTotalMem_v2');
    return readSize(OUT0);
  }

  /** E.g. `{ major: 9, minor: 0 }` on Hopper. */
  get computeCapability(): { readonly major: number; readonly minor: number } {
    return {
      major: this.attribute('computeCapabilityMajor'),
      minor: this.attribute('computeCapabilityMinor'),
    };
  }

  /**
   * Returns an attribute by its name in camelCase.
   *
   * @example
   * Device.get(0).attribute('multiprocessorCount');
   * @throws TypeError for an unknown name, CudaError if the driver does not know the attribute
   */
  attribute(name: DeviceAttribute): number {
    if (!Object.hasOwn(deviceAttributes, name))
      throw new TypeError(
        `there is no device attribute '${String(name)}'${didYouMean(String(name), Object.keys(deviceAttributes))}`,
      );
    const number = deviceAttributes[name];
    check(
      cu.cuDeviceGetAttribute(OUT0, number, this.handle),
      'cuDeviceGetAttribute',
      () => `reading ${name}`,
    );
    return readInt32(OUT0);
  }

  /** @internal An attribute that drivers since CUDA 11.4 may not know yet: then `unknown`. */
  attributeOr(name: DeviceAttribute, unknown: number): number {
    const call = 'cuDeviceGetAttribute';
    const status = cu[call](OUT0, deviceAttributes[name], this.handle);
    if (status === CUresult.CUDA_ERROR_INVALID_VALUE) return unknown;
    check(status, call, () => `reading ${name}`);
    return readInt32(OUT0);
  }

  /**
   * Whether this device can access the memory of another device. `context.enablePeerAccess` enables the
   * access to plain memory, `pool.setAccess` to that of a pool, `allowAccess` to virtual memory.
   *
   * @see https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__PEER__ACCESS.html
   */
  canAccessPeer(other: Device | number): boolean {
    const peer = Device.resolve(other);
    check(
      cu.cuDeviceCanAccessPeer(OUT0, this.handle, peer.handle),
      'cuDeviceCanAccessPeer',
      () => `asking whether ${this} can access ${peer}`,
    );
    return readInt32(OUT0) !== 0;
  }

  /** Its address on the PCI bus, as nvidia-smi and /sys print it, e.g. `0000:17:00.0`. */
  get pciAddress(): string {
    const hex = (name: DeviceAttribute, digits: number): string =>
      this.attribute(name).toString(16).padStart(digits, '0');
    return `${hex('pciDomainId', 4)}:${hex('pciBusId', 2)}:${hex('pciDeviceId', 2)}.0`;
  }

  /**
   * Returns how this device reaches each other device that this process sees: for choosing which
   * devices share frames.
   *
   * @example
   * const near = Device.get(0).topology().filter(({ link }) => link === 'nvlink');
   * @see https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__PEER__ACCESS.html
   */
  topology(): readonly DeviceLink[] {
    return devices()
      .filter((device) => device !== this)
      .map((device) => {
        const canAccess = this.canAccessPeer(device);
        const nativeAtomics =
          this.#p2p(CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED, device) === 1;
        return {
          device,
          link: canAccess ? (nativeAtomics ? 'nvlink' : 'pci') : 'host',
          canAccess,
          nativeAtomics,
          performanceRank: this.#p2p(CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK, device),
        };
      });
  }

  #p2p(attribute: number, other: Device): number {
    check(
      cu.cuDeviceGetP2PAttribute(OUT0, attribute, this.handle, other.handle),
      'cuDeviceGetP2PAttribute',
      () => `asking how ${this} reaches ${other}`,
    );
    return readInt32(OUT0);
  }

  toString(): string {
    return `Device ${this.ordinal} (${this.name})`;
  }

  [inspect.custom](): string {
    return this.toString();
  }
}

/** How one device reaches another. */
export interface DeviceLink {
  readonly device: Device;
  /**
   * `nvlink` if it can access that device's memory with atomic operations, which only NVLink carries;
   * `pci` if it can access it without them; `host` if it cannot, so that copies pass through the host.
   */
  readonly link: 'nvlink' | 'pci' | 'host';
  readonly canAccess: boolean;
  /** Whether atomic operations on that device's memory are atomic for both devices. */
  readonly nativeAtomics: boolean;
  /** The driver's rank of the link among those of this machine; 0 is the best. */
  readonly performanceRank: number;
}

/** The devices that this process sees, by ordinal. */
export function devices(): Device[] {
  const { count } = Device;
  const all: Device[] = [];
  for (let ordinal = 0; ordinal < count; ordinal += 1) all.push(Device.get(ordinal));
  return all;
}

// ---------------------------------------------------------------------------------------------
// The devices that were made
// ---------------------------------------------------------------------------------------------

/** The devices by ordinal, of the driver that was selected when they were made. */
let deviceCache: DeviceCache = { selection: -1, count: undefined, devices: [] };

interface DeviceCache {
  readonly selection: number;
  /** The driver counts its devices once, at its initialization. */
  count: number | undefined;
  readonly devices: (Device | undefined)[];
}

function currentDeviceCache(): DeviceCache {
  initialize();
  const selection = selectionCount();
  if (deviceCache.selection !== selection)
    deviceCache = { selection, count: undefined, devices: [] };
  return deviceCache;
}
