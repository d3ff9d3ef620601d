/** The allocations of other processes that are mapped here, each once a context. */
import { OUT0, OUT1, readHandle, readSize } from '../../ffi/arena.ts';
import { CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS } from '../../ffi/constants.ts';
import { cu } from '../../ffi/driver.ts';
import type { CUdeviceptr } from '../../ffi/types.ts';
import { check, cudaError } from '../check.ts';
import type { Context } from '../context.ts';
import { IpcError } from '../errors.ts';
import type { IpcBufferDescriptor } from './descriptor.ts';

/** An allocation of another process, mapped in one context. */
export interface Mapping {
  readonly base: CUdeviceptr;
  readonly byteLength: number;
  readonly bufferId: number;
  /** How many buffers of this process use it. */
  users: number;
}

/** By context, as the same handle has another address in each; and void after its reset. */
const mapped = new WeakMap<
  Context,
  { readonly resets: number; readonly byHandle: Map<string, Mapping> }
>();

function mappingsOf(context: Context): Map<string, Mapping> {
  const existing = mapped.get(context);
  if (existing?.resets === context.resets) return existing.byHandle;
  const byHandle = new Map<string, Mapping>();
  mapped.set(context, { resets: context.resets, byHandle });
  return byHandle;
}

/**
 * Maps the allocation that a descriptor names, or counts one more user of it.
 *
 * @throws IpcError where the driver refuses it, or where it is mapped as what it was before
 */
export function acquireMapping(context: Context, descriptor: IpcBufferDescriptor): Mapping {
  const mappings = mappingsOf(context);
  const existing = mappings.get(descriptor.handle);
  if (existing && existing.bufferId !== descriptor.bufferId)
    throw new IpcError(
      existing.users > 0
        ? 'an earlier allocation with the same handle is still open here: close its buffers first'
        : 'an earlier allocation with the same handle waits here to be unmapped: await context.flush() first',
    );
  const mapping = existing ?? open(context, descriptor);
  mapping.users += 1;
  mappings.set(descriptor.handle, mapping);
  return mapping;
}

/** Gives up one use; the last one unmaps, as soon as no work here can touch the memory. */
export function releaseMapping(context: Context, handle: string, mapping: Mapping): void {
  mapping.users -= 1;
  if (mapping.users > 0) return;
  const { resets } = context;
  context.releases.submit(() => {
    // Opened again, gone with the context, or unmapped by an earlier release, while it waited.
    if (mapping.users > 0 || context.resets !== resets) return;
    if (mappingsOf(context).get(handle) !== mapping) return;
    mappingsOf(context).delete(handle);
    close(context, mapping.base);
  });
}

function open(context: Context, { handle, bufferId, pid }: IpcBufferDescriptor): Mapping {
  const bytes = { reserved: new Uint8Array(Buffer.from(handle, 'base64')) };
  return context.run(() => {
    const status = cu.cuIpcOpenMemHandle_v2(OUT0, bytes, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
    if (status !== 0)
      throw new IpcError(
        `memory of process ${pid} could not be opened`,
        cudaError(status, 'cuIpcOpenMemHandle_v2'),
      );
    const address = readHandle<CUdeviceptr>(OUT0, cu.cuIpcCloseMemHandle);
    const ranged = cu.cuMemGetAddressRange_v2(OUT0, OUT1, address);
    if (ranged !== 0) cu.cuIpcCloseMemHandle(address);
    check(ranged, 'cuMemGetAddressRange_v2', () => `measuring memory of process ${pid}`);
    return { base: address, byteLength: readSize(OUT1), bufferId, users: 0 };
  });
}

const close = (context: Context, base: CUdeviceptr): void =>
  context.run(() => check(cu.cuIpcCloseMemHandle(base), 'cuIpcCloseMemHandle'));
