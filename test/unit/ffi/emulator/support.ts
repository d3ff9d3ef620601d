/** What the tests of the emulated driver share: an instance of it, and its out-values read. */
import assert from 'node:assert/strict';
import { openSync } from 'node:fs';
import {
  arena,
  BLOCK,
  OUT0,
  OUT1,
  readBytes,
  readFloat32,
  readInt32,
  readSize,
  writeBytes,
  writeStruct,
} from '../../../../ffi/arena.ts';
import {
  createEmulatedDriver,
  type EmulatedDriverOptions,
} from '../../../../ffi/emulator/index.ts';
import type { Driver } from '../../../../ffi/functions.ts';
import { libc } from '../../../../ffi/linux/libc.ts';
import { allocatePermanent, viewMemory } from '../../../../ffi/native.ts';
import type {
  Address,
  CUcontext,
  CUdevice,
  CUdeviceptr,
  CUevent,
  CUmemGenericAllocationHandle,
  CUmemoryPool,
  CUstream,
  IpcHandleBytes,
} from '../../../../ffi/types.ts';

export const NON_BLOCKING = 1;
export const INTERPROCESS = 4 | 2;
export const device = (ordinal: number): CUdevice => ordinal as CUdevice;
export const at = (address: number, offset = 0): CUdeviceptr => (address + offset) as CUdeviceptr;
export const LEGACY = 0 as CUstream;

/** An initialised driver of a test's own, and its calls with their out-values as results. */
export class Emulated {
  readonly cu: Driver;

  constructor(env: NodeJS.ProcessEnv = {}, kernels: EmulatedDriverOptions['kernels'] = new Map()) {
    this.cu = createEmulatedDriver({ arena, env, kernels });
    this.ok(this.cu.cuInit(0));
  }

  /** With the primary context of device 0 current. */
  static inContext(env: NodeJS.ProcessEnv = {}): Emulated {
    const emulated = new Emulated(env);
    emulated.push(emulated.retain());
    return emulated;
  }

  ok(status: number): void {
    assert.equal(status, 0);
  }

  retain(ordinal = 0): CUcontext {
    this.ok(this.cu.cuDevicePrimaryCtxRetain(OUT0, device(ordinal)));
    return readSize(OUT0) as CUcontext;
  }

  push(context: CUcontext): void {
    this.ok(this.cu.cuCtxPushCurrent_v2(context));
  }

  allocate(byteLength: number): CUdeviceptr {
    this.ok(this.cu.cuMemAlloc_v2(OUT0, byteLength));
    return readSize(OUT0) as CUdeviceptr;
  }

  free(address: CUdeviceptr): void {
    this.ok(this.cu.cuMemFree_v2(address));
  }

  freeBytes(): number {
    this.ok(this.cu.cuMemGetInfo_v2(OUT0, OUT1));
    return readSize(OUT0);
  }

  range(address: CUdeviceptr): { base: number; byteLength: number } {
    this.ok(this.cu.cuMemGetAddressRange_v2(OUT0, OUT1, address));
    return { base: readSize(OUT0), byteLength: readSize(OUT1) };
  }

  attribute(attribute: number, address: CUdeviceptr, isWide = false): number {
    this.ok(this.cu.cuPointerGetAttribute(OUT0, attribute, address));
    return isWide ? readSize(OUT0) : readInt32(OUT0);
  }

  stream(flags = 0, priority = 0): CUstream {
    this.ok(this.cu.cuStreamCreateWithPriority(OUT0, flags, priority));
    return readSize(OUT0) as CUstream;
  }

  event(flags = 0): CUevent {
    this.ok(this.cu.cuEventCreate(OUT0, flags));
    return readSize(OUT0) as CUevent;
  }

  elapsed(start: CUevent, end: CUevent): number {
    this.ok(this.cu.cuEventElapsedTime(OUT0, start, end));
    return readFloat32(OUT0);
  }

  memHandle(address: CUdeviceptr): IpcHandleBytes {
    this.ok(this.cu.cuIpcGetMemHandle(BLOCK, address));
    return { reserved: readBytes(BLOCK, 64) };
  }

  openMem(handle: IpcHandleBytes): CUdeviceptr {
    this.ok(this.cu.cuIpcOpenMemHandle_v2(OUT0, handle, 1));
    return readSize(OUT0) as CUdeviceptr;
  }

  eventHandle(event: CUevent): IpcHandleBytes {
    this.ok(this.cu.cuIpcGetEventHandle(BLOCK, event));
    return { reserved: readBytes(BLOCK, 64) };
  }

  openEvent(handle: IpcHandleBytes): CUevent {
    this.ok(this.cu.cuIpcOpenEventHandle(OUT0, handle));
    return readSize(OUT0) as CUevent;
  }

  /** A pool of device 0. */
  pool(values: { handleTypes?: number; maxSize?: number } = {}): CUmemoryPool {
    const properties = { allocType: 1, 'location.type': 1, ...values };
    this.ok(this.cu.cuMemPoolCreate(OUT0, writeStruct('CUmemPoolProps', properties)));
    return readSize(OUT0) as CUmemoryPool;
  }

  poolAttribute(pool: CUmemoryPool, attribute: number): number {
    this.ok(this.cu.cuMemPoolGetAttribute(pool, attribute, OUT0));
    return attribute <= 3 ? readInt32(OUT0) : readSize(OUT0);
  }

  allocateFrom(pool: CUmemoryPool, byteLength: number, stream = LEGACY): CUdeviceptr {
    this.ok(this.cu.cuMemAllocFromPoolAsync(OUT0, byteLength, pool, stream));
    return readSize(OUT0) as CUdeviceptr;
  }

  /** The descriptor of a pool, for others to import. */
  exportPool(pool: CUmemoryPool): number {
    this.ok(this.cu.cuMemPoolExportToShareableHandle(OUT0, pool, 1, 0));
    return readInt32(OUT0);
  }

  importPool(fd: number): CUmemoryPool {
    this.ok(this.cu.cuMemPoolImportFromShareableHandle(OUT0, fd as Address, 1, 0));
    return readSize(OUT0) as CUmemoryPool;
  }

  exportPointer(address: CUdeviceptr): Uint8Array {
    this.ok(this.cu.cuMemPoolExportPointer(BLOCK, address));
    return readBytes(BLOCK, 64);
  }

  importPointer(pool: CUmemoryPool, data: Uint8Array): { status: number; address: CUdeviceptr } {
    const status = this.cu.cuMemPoolImportPointer(OUT0, pool, writeBytes(data));
    return { status, address: readSize(OUT0) as CUdeviceptr };
  }

  /** Virtual memory: addresses, memory, and one mapped to the other. */
  reserve(byteLength: number, wanted = 0): CUdeviceptr {
    this.ok(this.cu.cuMemAddressReserve(OUT0, byteLength, 0, at(wanted), 0));
    return readSize(OUT0) as CUdeviceptr;
  }

  createPhysical(byteLength: number, handleTypes = 0): CUmemGenericAllocationHandle {
    this.ok(this.cu.cuMemCreate(OUT0, byteLength, physicalProperties(handleTypes), 0));
    return readSize(OUT0) as CUmemGenericAllocationHandle;
  }

  setAccess(address: CUdeviceptr, byteLength: number, flags: number, ordinal = 0): number {
    const access = { 'location.type': 1, 'location.id': ordinal, flags };
    const descriptor = writeStruct('CUmemAccessDesc', access);
    return this.cu.cuMemSetAccess(address, byteLength, descriptor, 1);
  }

  exportPhysical(handle: CUmemGenericAllocationHandle): number {
    this.ok(this.cu.cuMemExportToShareableHandle(OUT0, handle, 1, 0));
    return readInt32(OUT0);
  }

  importPhysical(fd: number): CUmemGenericAllocationHandle {
    this.ok(this.cu.cuMemImportFromShareableHandle(OUT0, fd as Address, 1));
    return readSize(OUT0) as CUmemGenericAllocationHandle;
  }

  /** A descriptor of another process, opened here. */
  openFd(pid: number, fd: number): number {
    return openSync(`/proc/${pid}/fd/${fd}`, 'r+');
  }

  /** Writes 32-bit words to device memory. */
  write(to: CUdeviceptr, ...words: number[]): void {
    const host = hostWords(words.length);
    host.words.set(words);
    this.ok(this.cu.cuMemcpyHtoD_v2(to, host.address, words.length * 4));
  }

  /** Reads a 32-bit word of device memory. */
  read(from: CUdeviceptr): number {
    this.ok(this.cu.cuMemcpyDtoH_v2(OUT0, from, 4));
    return readInt32(OUT0);
  }
}

export const physicalProperties = (requestedHandleTypes = 0, values = {}): Address =>
  writeStruct('CUmemAllocationProp', {
    type: 1,
    requestedHandleTypes,
    'location.type': 1,
    ...values,
  });

/** Zeroed native memory, never freed, as words. */
export function hostWords(count: number): { address: Address; words: Int32Array } {
  const address = allocatePermanent(count * 4);
  const words = new Int32Array(viewMemory(address, count * 4));
  words.fill(0);
  return { address, words };
}

/** An address where nothing is mapped: a page that was, reserved so that nothing moves in. */
export const unmappedAddress = (): Address => {
  const PROT_NONE = 0;
  const MAP_PRIVATE_ANONYMOUS = 0x22;
  return libc.mmap(0, 4096, PROT_NONE, MAP_PRIVATE_ANONYMOUS, -1, 0) as Address;
};
