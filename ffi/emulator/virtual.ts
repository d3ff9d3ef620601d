/** Virtual memory: address reservations, physical memory, and mappings. */
import { openSync } from 'node:fs';
import {
  CU_MEM_ACCESS_FLAGS_PROT_NONE,
  CU_MEM_ACCESS_FLAGS_PROT_READ,
  CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
  CU_MEM_ALLOC_GRANULARITY_RECOMMENDED,
  CU_MEM_ALLOCATION_TYPE_PINNED,
  CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
} from '../constants.ts';
import type { Driver } from '../functions.ts';
import { closeFd, libc, SystemError } from '../linux/libc.ts';
import { CUresult, type CUresult as Status } from '../results.ts';
import { structs } from '../structs.ts';
import { fillUninitializedFile, GRANULARITY } from './address-space.ts';
import type { Contexts } from './context.ts';
import type { Handles } from './handles.ts';
import type { HostMemory } from './host-memory.ts';
import type { Memory, Region } from './memory.ts';
import { handleTypesStatus, locationStatus } from './memory-location.ts';
import { createFixedMemfd, inspectMemfd } from './processes.ts';
import { type Range, RangeMap } from './ranges.ts';

const {
  CUDA_SUCCESS,
  CUDA_ERROR_INVALID_VALUE,
  CUDA_ERROR_OUT_OF_MEMORY,
  CUDA_ERROR_NOT_SUPPORTED,
  CUDA_ERROR_INVALID_DEVICE,
} = CUresult;

const F_SETFD = 2;
const F_DUPFD_CLOEXEC = 1030;
/** The name of the memfd of physical memory, followed by the device's number in the machine. */
export const PHYSICAL_NAME = 'cuffi.virtual.';

/** Physical memory. */
export interface PhysicalMemory {
  readonly fd: number;
  readonly byteLength: number;
  readonly device: number;
  readonly handleTypes: number;
  /** Created by this process, not imported: it counts as used memory of this process. */
  readonly isOwn: boolean;
  isReleased: boolean;
  mappings: number;
}

export interface VirtualMapping extends Region {
  readonly kind: 'virtual';
  readonly physical: PhysicalMemory;
  /** The access of each device. Initially none. */
  readonly accessFlags: Map<number, number>;
}

/** The properties of physical memory. */
export interface Properties {
  readonly type: number;
  readonly requestedHandleTypes: number;
  readonly 'location.type': number;
  readonly 'location.id': number;
}

const isMultiple = (value: number): boolean => value > 0 && value % GRANULARITY === 0;

export class VirtualMemory {
  readonly #memory: Memory;
  readonly #contexts: Contexts;
  readonly #handles: Handles;
  readonly #physical = new Map<number, PhysicalMemory>();
  readonly #reservations = new RangeMap<Range>();

  constructor(memory: Memory, contexts: Contexts, handles: Handles) {
    this.#memory = memory;
    this.#contexts = contexts;
    this.#handles = handles;
    memory.onUsage((device) => this.#usedBytes(device));
  }

  /** The status for creating memory with these properties. */
  propertiesStatus(properties: Properties): Status {
    if (properties.type !== CU_MEM_ALLOCATION_TYPE_PINNED) return CUDA_ERROR_INVALID_VALUE;
    const located = locationStatus(
      this.#contexts,
      properties['location.type'],
      properties['location.id'],
    );
    return located === CUDA_SUCCESS ? handleTypesStatus(properties.requestedHandleTypes) : located;
  }

  /** Reserves addresses. Returns the status on failure. */
  reserve(byteLength: number, alignment: number, wanted: number): { address: number } | Status {
    const isPower = Number.isInteger(Math.log2(alignment || 1));
    if (!isMultiple(byteLength) || !isPower) return CUDA_ERROR_INVALID_VALUE;
    const address = this.#memory.space.reserve(
      byteLength,
      Math.max(alignment, GRANULARITY),
      wanted % GRANULARITY === 0 ? wanted : 0,
    );
    if (address === undefined) return CUDA_ERROR_OUT_OF_MEMORY;
    this.#reservations.add({ address, byteLength });
    return { address };
  }

  unreserve(address: number, byteLength: number): Status {
    const reservation = this.#reservations.at(address);
    if (reservation?.address !== address || reservation.byteLength !== byteLength)
      return CUDA_ERROR_INVALID_VALUE;
    if (this.#memory.regions.overlaps(address, byteLength)) return CUDA_ERROR_INVALID_VALUE;
    this.#reservations.remove(reservation);
    this.#memory.space.release(address, byteLength);
    return CUDA_SUCCESS;
  }

  /** Creates physical memory. Returns the status on failure. */
  create(byteLength: number, properties: Properties): { handle: number } | Status {
    const status = this.propertiesStatus(properties);
    if (status !== CUDA_SUCCESS) return status;
    if (!isMultiple(byteLength)) return CUDA_ERROR_INVALID_VALUE;
    const device = properties['location.id'];
    if (!this.#memory.hasFree(device, byteLength)) return CUDA_ERROR_OUT_OF_MEMORY;
    try {
      const fd = createFixedMemfd(
        `${PHYSICAL_NAME}${this.#contexts.physicalDevice(device)}`,
        byteLength,
      );
      if (!fillUninitializedFile(fd, byteLength)) {
        closeFd(fd);
        return CUDA_ERROR_OUT_OF_MEMORY;
      }
      return this.#add(fd, byteLength, device, properties.requestedHandleTypes, true);
    } catch (error) {
      if (error instanceof SystemError) return CUDA_ERROR_OUT_OF_MEMORY;
      throw error;
    }
  }

  get handleCount(): number {
    return this.#physical.size;
  }

  get reservationCount(): number {
    return this.#reservations.size;
  }

  /** How many descriptors of physical memory this driver has open itself. */
  get fdCount(): number {
    const mapped = this.#mappings().map(({ physical }) => physical);
    return new Set([...this.#physical.values(), ...mapped]).size;
  }

  get(handle: number): PhysicalMemory | undefined {
    return this.#physical.get(handle);
  }

  release(handle: number): Status {
    const physical = this.#physical.get(handle);
    if (!physical) return CUDA_ERROR_INVALID_VALUE;
    this.#physical.delete(handle);
    physical.isReleased = true;
    this.#closeUnused(physical);
    return CUDA_SUCCESS;
  }

  map(address: number, byteLength: number, physical: PhysicalMemory): Status {
    const isFitting = isMultiple(byteLength) && byteLength <= physical.byteLength;
    const { regions, space } = this.#memory;
    const reservation = this.#reservations.containing(address, byteLength);
    if (!isFitting || address % GRANULARITY !== 0 || !reservation) return CUDA_ERROR_INVALID_VALUE;
    if (regions.overlaps(address, byteLength)) return CUDA_ERROR_INVALID_VALUE;
    if (byteLength < physical.byteLength) return CUDA_ERROR_NOT_SUPPORTED;
    if (!space.mapAt(address, physical.fd, byteLength)) return CUDA_ERROR_OUT_OF_MEMORY;
    const accessFlags = new Map<number, number>();
    const mapping: VirtualMapping = {
      kind: 'virtual',
      address,
      byteLength,
      requestedByteLength: byteLength,
      device: physical.device,
      context: undefined,
      bufferId: this.#memory.nextBufferId(),
      handleTypes: physical.handleTypes,
      poolHandle: 0,
      reservation,
      physical,
      accessFlags,
      access: (device) => accessFlags.get(device) ?? 0,
    };
    physical.mappings += 1;
    regions.add(mapping);
    return CUDA_SUCCESS;
  }

  unmap(address: number, byteLength: number): Status {
    const isReserved = isMultiple(byteLength) && this.#reservations.containing(address, byteLength);
    // Unmapping a range without mappings succeeds.
    if (isReserved && !this.#memory.regions.overlaps(address, byteLength)) return CUDA_SUCCESS;
    const mappings = this.#covering(address, byteLength);
    if (!mappings) return CUDA_ERROR_INVALID_VALUE;
    for (const mapping of mappings) {
      this.#memory.regions.remove(mapping);
      this.#memory.space.unmapKeepingAddresses(mapping.address, mapping.byteLength);
      mapping.physical.mappings -= 1;
      this.#closeUnused(mapping.physical);
    }
    return CUDA_SUCCESS;
  }

  setAccess(address: number, byteLength: number, device: number, rights: number): Status {
    const mappings = this.#covering(address, byteLength);
    if (!mappings) return CUDA_ERROR_INVALID_VALUE;
    for (const mapping of mappings) mapping.accessFlags.set(device, rights);
    return CUDA_SUCCESS;
  }

  mappingAt(address: number): VirtualMapping | undefined {
    const region = this.#memory.regions.at(address);
    return region?.kind === 'virtual' ? (region as VirtualMapping) : undefined;
  }

  /**
   * A new descriptor for other processes to import. As on hardware it has an open file of its own, so
   * that descriptors do not share flags. Child processes inherit it.
   */
  export(physical: PhysicalMemory): number | undefined {
    try {
      const fd = openSync(`/proc/self/fd/${physical.fd}`, 'r+');
      libc.fcntl(fd, F_SETFD, 0);
      return fd;
    } catch {
      return undefined;
    }
  }

  /** Imports physical memory. The caller keeps the descriptor. */
  import(fd: number, handleTypes: number): { handle: number } | undefined {
    const file = inspectMemfd(fd);
    const physical = file?.name.startsWith(PHYSICAL_NAME)
      ? Number(file.name.slice(PHYSICAL_NAME.length))
      : -1;
    const device = this.#contexts.visibleDevice(physical);
    if (!file || !this.#contexts.hasDevice(device)) return undefined;
    const own = libc.fcntl(fd, F_DUPFD_CLOEXEC, 0);
    return own < 0 ? undefined : this.#add(own, file.byteLength, device, handleTypes, false);
  }

  #add(
    fd: number,
    byteLength: number,
    device: number,
    handleTypes: number,
    isOwn: boolean,
  ): { handle: number } {
    const handle = this.#handles.make('CUmemGenericAllocationHandle');
    const state = { isReleased: false, mappings: 0 };
    this.#physical.set(handle, { fd, byteLength, device, handleTypes, isOwn, ...state });
    return { handle };
  }

  /** The mappings that exactly fill this range. */
  #covering(address: number, byteLength: number): VirtualMapping[] | undefined {
    const found: VirtualMapping[] = [];
    const end = address + byteLength;
    let at = address;
    while (at < end) {
      const mapping = this.mappingAt(at);
      if (mapping?.address !== at) return undefined;
      found.push(mapping);
      at += mapping.byteLength;
    }
    return at === end && found.length > 0 ? found : undefined;
  }

  #mappings(): VirtualMapping[] {
    return [...this.#memory.regions].filter(
      (region): region is VirtualMapping => region.kind === 'virtual',
    );
  }

  /** Closes physical memory that has neither a handle nor a mapping. */
  #closeUnused(physical: PhysicalMemory): void {
    if (physical.isReleased && physical.mappings === 0) closeFd(physical.fd);
  }

  #usedBytes(device: number): number {
    const mapped = this.#mappings().map(({ physical }) => physical);
    return [...new Set([...this.#physical.values(), ...mapped])]
      .filter((physical) => physical.isOwn && physical.device === device)
      .reduce((sum, { byteLength }) => sum + byteLength, 0);
  }
}

// ---- The driver functions of virtual memory ----

const RIGHTS: readonly number[] = [
  CU_MEM_ACCESS_FLAGS_PROT_NONE,
  CU_MEM_ACCESS_FLAGS_PROT_READ,
  CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
];

type VirtualFunctions = Pick<
  Driver,
  | 'cuMemGetAllocationGranularity'
  | 'cuMemAddressReserve'
  | 'cuMemAddressFree'
  | 'cuMemCreate'
  | 'cuMemRelease'
  | 'cuMemMap'
  | 'cuMemUnmap'
  | 'cuMemSetAccess'
  | 'cuMemGetAccess'
  | 'cuMemExportToShareableHandle'
  | 'cuMemImportFromShareableHandle'
>;

export function virtualFunctions(
  memory: VirtualMemory,
  contexts: Contexts,
  host: HostMemory,
): VirtualFunctions {
  return {
    cuMemGetAllocationGranularity(out, address, option) {
      const properties = host.readStruct('CUmemAllocationProp', address);
      if (!properties || option > CU_MEM_ALLOC_GRANULARITY_RECOMMENDED)
        return CUDA_ERROR_INVALID_VALUE;
      const status = memory.propertiesStatus(properties);
      if (status === CUDA_SUCCESS) host.setUint64(out, GRANULARITY);
      return status;
    },
    cuMemAddressReserve(out, byteLength, alignment, wanted, flags) {
      if (flags !== 0) return CUDA_ERROR_INVALID_VALUE;
      const reserved = memory.reserve(byteLength, alignment, wanted);
      if (typeof reserved === 'number') return reserved;
      host.setUint64(out, reserved.address);
      return CUDA_SUCCESS;
    },
    cuMemAddressFree: (address, byteLength) => memory.unreserve(address, byteLength),
    cuMemCreate(out, byteLength, address, flags) {
      const properties = host.readStruct('CUmemAllocationProp', address);
      if (!properties || flags !== 0) return CUDA_ERROR_INVALID_VALUE;
      const created = memory.create(byteLength, properties);
      if (typeof created === 'number') return created;
      host.setUint64(out, created.handle);
      return CUDA_SUCCESS;
    },
    cuMemRelease: (handle) => memory.release(handle),
    cuMemMap(address, byteLength, offset, handle, flags) {
      const physical = memory.get(handle);
      if (!physical || offset !== 0 || flags !== 0) return CUDA_ERROR_INVALID_VALUE;
      return memory.map(address, byteLength, physical);
    },
    cuMemUnmap: (address, byteLength) => memory.unmap(address, byteLength),
    cuMemSetAccess(address, byteLength, descriptors, count) {
      if (!(count > 0)) return CUDA_ERROR_INVALID_VALUE;
      const size = structs.CUmemAccessDesc.byteLength;
      for (let at = 0; at < count; at += 1) {
        const given = host.readStruct('CUmemAccessDesc', descriptors + at * size);
        if (!given || !RIGHTS.includes(given.flags)) return CUDA_ERROR_INVALID_VALUE;
        const located = locationStatus(contexts, given['location.type'], given['location.id']);
        if (located === CUDA_ERROR_INVALID_DEVICE) return CUDA_ERROR_INVALID_VALUE;
        if (located !== CUDA_SUCCESS) return located;
        const status = memory.setAccess(address, byteLength, given['location.id'], given.flags);
        if (status !== CUDA_SUCCESS) return status;
      }
      return CUDA_SUCCESS;
    },
    cuMemGetAccess(out, location, address) {
      const place = host.readStruct('CUmemLocation', location);
      const mapping = memory.mappingAt(address);
      if (!place || !mapping) return CUDA_ERROR_INVALID_VALUE;
      const status = locationStatus(contexts, place.type, place.id);
      if (status === CUDA_SUCCESS) host.setUint64(out, mapping.access(place.id));
      return status;
    },
    cuMemExportToShareableHandle(out, handle, type, flags) {
      const physical = memory.get(handle);
      // Only its creator can export physical memory.
      const isShared = physical?.isOwn && type !== 0 && (physical.handleTypes & type) === type;
      if (!isShared || flags !== 0 || !host.isWritable(out)) return CUDA_ERROR_INVALID_VALUE;
      const fd = memory.export(physical);
      if (fd === undefined) return CUDA_ERROR_OUT_OF_MEMORY;
      host.setInt32(out, fd);
      return CUDA_SUCCESS;
    },
    cuMemImportFromShareableHandle(out, fd, type) {
      if (type !== CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return CUDA_ERROR_INVALID_VALUE;
      const imported = memory.import(fd, type);
      if (!imported) return CUDA_ERROR_INVALID_VALUE;
      host.setUint64(out, imported.handle);
      return CUDA_SUCCESS;
    },
  };
}
