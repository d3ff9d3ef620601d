/** What the tests of the emulated driver share: an instance of it, and its out-values read. */
import assert from 'node:assert/strict';
import {
  arena,
  BLOCK,
  OUT0,
  OUT1,
  readBytes,
  readFloat32,
  readInt32,
  readSize,
} from '../../../../ffi/arena.ts';
import { createEmulatedDriver } from '../../../../ffi/emulator/index.ts';
import type { Driver } from '../../../../ffi/functions.ts';
import { libc } from '../../../../ffi/libc.ts';
import { allocatePermanent, viewMemory } from '../../../../ffi/native.ts';
import type {
  Address,
  CUcontext,
  CUdevice,
  CUdeviceptr,
  CUevent,
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

  constructor(env: NodeJS.ProcessEnv = {}) {
    this.cu = createEmulatedDriver({ arena, env });
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
