import { OUT0, readHandle } from '../../../ffi/arena.ts';
import { CU_IPC_HANDLE_SIZE } from '../../../ffi/constants.ts';
import { cu } from '../../../ffi/driver.ts';
import type { CUdeviceptr, CUevent } from '../../../ffi/types.ts';
import { checkDtype } from '../../array/allocate-items.ts';
import type { OrderOrStrides } from '../../array/array-options.ts';
import { DeviceArray } from '../../array/device-array.ts';
import { type Layout, layoutExtents, makeLayout } from '../../array/layout.ts';
import { checkShape, type Shape } from '../../array/shape.ts';
import { cudaError } from '../../check.ts';
import { Context, type PlaceOptions } from '../../context.ts';
import { type Dtype, dtype as dtypeNamed } from '../../dtype.ts';
import { IpcError } from '../../errors.ts';
import { CudaEvent } from '../../event.ts';
import { assertNotCapturing } from '../../graph-capture.ts';
import { runAll } from '../../lifetime.ts';
import { type Access, DeviceBuffer } from '../../memory/buffer.ts';
import { addContextFd, closeContextFd } from '../../memory/context-fds.ts';
import type { MemoryPool } from '../../memory/pool.ts';
import { type StreamOption, streamOf } from '../../stream.ts';
import { bytesOfView, typedArrayKind } from '../../typed-array.ts';
import { checkInteger, checkOptions } from '../../validate.ts';
import {
  checkIsArray,
  checkRange,
  type IpcBufferDescriptor,
  type IpcDescriptor,
  type IpcDescriptors,
  type IpcEventDescriptor,
  type IpcKind,
  type IpcMemoryDescriptor,
  type IpcPoolDescriptor,
  type IpcVirtualDescriptor,
  parseDescriptor,
} from '../descriptor.ts';
import { isExporterGone, isFromThisProcess } from '../identity.ts';
import { effectiveAccess } from './access.ts';
import { notExportedToSender, openAlias } from './alias.ts';
import { asArray } from './array.ts';
import { contextFor, deviceBlocker, identityBlocker, isMapped, openBlocker } from './explain.ts';
import { setImportSource } from './import-source.ts';
import { mapLegacy, mapRaw } from './legacy.ts';
import type { Mapping, MappingUse } from './mapping.ts';
import { checkOpenOptions, type OpenOptions } from './open-options.ts';
import { type ImportLease, releaseWithLease, type Sender } from './ownership.ts';
import { ImportedPool, importPool } from './pool.ts';
import { OwnedFds, type ReceivedFds } from './received-fds.ts';
import { throwIfBlocked } from './support.ts';
import { mapVirtual } from './virtual.ts';
import { isFromOtherThread, openFromOtherThread } from './worker-exports.ts';

/** The kinds that are memory. */
export const MEMORY_KINDS: readonly Exclude<IpcKind, 'event'>[] = ['legacy', 'pool', 'virtual'];

type OpenedBytes = DeviceBuffer | CudaEvent | ImportedPool | MemoryPool;

/** What a descriptor may be of; a MemoryPool only where it is an alias of this process's own. */
export type Opened = DeviceArray | OpenedBytes;

/**
 * Opens whatever another process shared with `exportIpc` or `getIpcHandle`, without copying it. The
 * message is checked before anything is believed of it: what `explain` says of it is asked first.
 *
 * @param message the descriptor, as it came from the other process
 * @param options `fds`: the file descriptors that came with it
 * @throws IpcError, whose `code` says why, for anything but a sound descriptor that can be opened
 * here; the file descriptors are closed then
 * @example
 * const { data, fds } = receiveMessage(socket);
 * using buffer = openIpc(decodeDescriptor(data), { fds });
 * @see https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__MALLOC__ASYNC.html
 */
export const openIpc = (message: unknown, options?: OpenOptions): Opened =>
  openAs(undefined, message, options, 'openIpc', openObject);

/**
 * Opens the memory that another process shared, without copying it; of an array the bytes of its
 * items, from the first to the last.
 *
 * Opened twice, the memory is mapped once; it is unmapped when its last buffer was closed and the
 * work that was queued here before is done. Close before the exporter frees: the driver promises
 * nothing of memory that was freed while mapped.
 *
 * @param message what came from the other process, e.g. by `process.on('message')`
 * @param options the context to open it in (by default that of the descriptor's GPU), the file
 * descriptors that came with it, and whether it is to be written to
 * @throws IpcError, whose `code` says why, for anything but a sound descriptor that can be opened
 * here; the file descriptors are closed then
 * @example
 * process.on('message', (message) => {
 *   using buffer = openIpcBuffer(message);
 *   console.log(buffer.copyToHostSync());
 * });
 * @see https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__MEM.html
 */
export function openIpcBuffer(message: unknown, options?: OpenOptions): DeviceBuffer {
  return openAs(MEMORY_KINDS, message, options, 'openIpcBuffer', (descriptor, fds, checked) => {
    if (isPoolDescriptor(descriptor))
      throw new IpcError(
        'the descriptor is of a memory pool, not of memory: open it with openIpcPool',
      );
    return openParsed(descriptor, fds, checked) as DeviceBuffer;
  });
}

const isPoolDescriptor = ({
  kind,
  handle,
}: IpcDescriptor & { readonly handle?: unknown }): boolean => kind === 'pool' && handle === null;

/**
 * Opens an event of another process. Both sides may record, wait for and query it.
 *
 * A stream that waits for it stays blocked for ever if the process that recorded it is killed
 * first: `await event.synchronize()` with a signal does not.
 *
 * @throws IpcError as {@link openIpcBuffer}
 * @see https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__MEM.html
 */
export const openIpcEvent = (message: unknown, options?: OpenOptions): CudaEvent =>
  openAs(['event'], message, options, 'openIpcEvent', openParsed) as CudaEvent;

/**
 * Opens a memory pool of another process: buffers of it can be opened afterwards without its file
 * descriptor, until the pool is closed. The same object for the same pool, while it is open.
 *
 * @throws IpcError as {@link openIpcBuffer}
 */
export function openIpcPool(message: unknown, options?: OpenOptions): ImportedPool {
  return openAs(['pool'], message, options, 'openIpcPool', (descriptor, fds, checked) => {
    if (!isPoolDescriptor(descriptor))
      throw new IpcError(
        'the descriptor is of memory of a pool, not of the pool: open it with openIpcBuffer',
      );
    const opened = openParsed(descriptor, fds, checked);
    if (opened instanceof ImportedPool) return opened;
    throw new IpcError(
      'the pool was made by this very process: use it itself',
      undefined,
      'same-process',
    );
  });
}

/** Opens a message with `open`, which is given its sound descriptor. */
function openAs<K extends IpcKind, O>(
  kinds: readonly K[] | undefined,
  message: unknown,
  options: OpenOptions | undefined,
  call: string,
  open: (descriptor: IpcDescriptors[K], fds: ReceivedFds, options: Omit<OpenOptions, 'fds'>) => O,
): O {
  const { fds: received = [], ...checked } = checkOpenOptions(options, call);
  const fds = new OwnedFds(received, true);
  try {
    return open(parseDescriptor(message, kinds), fds, checked);
  } finally {
    fds[Symbol.dispose]();
  }
}

/** As {@link openParsed}: an array where the descriptor is of one. */
export const openObject = (
  descriptor: IpcDescriptor,
  fds: ReceivedFds,
  options: Omit<OpenOptions, 'fds'>,
  sender?: Sender,
): Opened => asArray(openParsed(descriptor, fds, options, sender), descriptor);

/**
 * Opens a sound descriptor; `fds` stay their owner's but for those that are taken.
 *
 * @param sender the other end of the connection that it came over
 * @throws IpcError
 */
function openParsed(
  descriptor: IpcDescriptor,
  fds: ReceivedFds,
  options: Omit<OpenOptions, 'fds'>,
  sender?: Sender,
): OpenedBytes {
  assertNotCapturing('opening what another process shared');
  const isOfThisProcess = isFromThisProcess(descriptor);
  // Of a sender's own names no more is told than that they are refused.
  if (!isOfThisProcess || !sender) throwIfBlocked(identityBlocker(descriptor, options));
  if (isOfThisProcess) {
    if (descriptor.kind === 'event' || !isFromOtherThread(descriptor))
      return openAlias(descriptor, options.access, sender);
    if (sender && !sender.isOwnProcess) throw notExportedToSender();
    return openThreadMemory(descriptor, fds, options, sender?.lease);
  }
  throwIfBlocked(deviceBlocker(descriptor, options));
  const context = contextFor(descriptor, options);
  const access = effectiveAccess(descriptor, options.access, fds.numbers);
  const lease = sender?.lease;
  if (!isMapped(descriptor, context, fds, access))
    throwIfBlocked(openBlocker(descriptor, context, fds, options.allowOtherUsers ?? false));
  switch (descriptor.kind) {
    case 'legacy':
      return openLegacy(context, descriptor, access, lease);
    case 'pool':
      return openPool(context, descriptor, fds, access, lease);
    case 'virtual':
      return openVirtual(context, descriptor, fds, access, lease);
    case 'event':
      return openEvent(context, descriptor, lease);
  }
}

/** Memory of another thread of this process: at the same addresses, by whatever kind it goes. */
function openThreadMemory(
  descriptor: IpcMemoryDescriptor,
  fds: ReceivedFds,
  options: Omit<OpenOptions, 'fds'>,
  lease: ImportLease | undefined,
): DeviceBuffer {
  throwIfBlocked(deviceBlocker(descriptor, options));
  const context = contextFor(descriptor, options);
  const access = effectiveAccess(descriptor, options.access, fds.numbers);
  const use = openFromOtherThread(context, descriptor);
  checkMappedRange(descriptor, use);
  const keptFds = fds.take().map((fd) => addContextFd(context, fd));
  const { setStream, release } = releaseWithLease(context, use.release, lease);
  const buffer = new DeviceBuffer({
    context,
    address: (use.mapping.base + descriptor.byteOffset) as CUdeviceptr,
    byteLength: descriptor.byteLength,
    origin: 'imported',
    release: {
      setStream,
      release: () => runAll([release, ...keptFds.map((fd) => () => closeContextFd(context, fd))]),
    },
    access,
  });
  setImportSource(buffer, {
    descriptor,
    fds() {
      if (descriptor.kind === 'legacy' || keptFds.length > 0) return keptFds;
      throw new IpcError(
        'memory of another thread goes to other processes with the file descriptors that it was ' +
          'opened with, and it was opened without: share it in the thread that made it',
      );
    },
  });
  return buffer;
}

function openLegacy(
  context: Context,
  descriptor: IpcBufferDescriptor,
  access: Access,
  lease: ImportLease | undefined,
): DeviceBuffer {
  const use = mapLegacy(context, descriptor);
  checkMappedRange(descriptor, use);
  const buffer = new DeviceBuffer({
    context,
    address: (use.mapping.base + descriptor.byteOffset) as CUdeviceptr,
    byteLength: descriptor.byteLength,
    origin: 'imported',
    release: releaseWithLease(context, use.release, lease),
    isOwnerGone: () => isExporterGone(descriptor),
    access,
  });
  setImportSource(buffer, { descriptor, fds: () => [] });
  return buffer;
}

/** What is mapped may be less than the descriptor says, or be what an earlier one named. */
function checkMappedRange(
  descriptor: IpcMemoryDescriptor,
  { mapping, release }: MappingUse<Mapping>,
): void {
  try {
    checkRange(descriptor, mapping.byteLength);
  } catch (error) {
    release();
    throw error;
  }
}

function openPool(
  context: Context,
  descriptor: IpcPoolDescriptor,
  fds: ReceivedFds,
  access: Access,
  lease: ImportLease | undefined,
): DeviceBuffer | ImportedPool {
  const pool = importPool(context, descriptor, fds);
  if (descriptor.handle === null) {
    pool.keepOpen();
    if (lease) pool.addLease(lease);
    return pool;
  }
  const buffer = pool.openBuffer(descriptor.handle, descriptor, access, lease);
  setImportSource(buffer, { descriptor, fds: () => [pool.shared.fd] });
  return buffer;
}

function openVirtual(
  context: Context,
  descriptor: IpcVirtualDescriptor,
  fds: ReceivedFds,
  access: Access,
  lease: ImportLease | undefined,
): DeviceBuffer {
  const { mapping, release } = mapVirtual(context, descriptor, fds, access);
  checkMappedRange(descriptor, { mapping, release });
  const buffer = new DeviceBuffer({
    context,
    address: (mapping.base + descriptor.byteOffset) as CUdeviceptr,
    byteLength: descriptor.byteLength,
    origin: 'imported',
    ...releaseWithLease(context, release, lease),
    isOwnerGone: () => isExporterGone(descriptor),
    mappingBoundaries: () => mapping.chunks.map((part) => part.address),
    access,
  });
  setImportSource(buffer, { descriptor, fds: () => mapping.chunks.map(({ fd }) => fd as number) });
  return buffer;
}

function openEvent(
  context: Context,
  descriptor: IpcEventDescriptor,
  lease: ImportLease | undefined,
): CudaEvent {
  const { handle, pid } = descriptor;
  const bytes = { reserved: new Uint8Array(Buffer.from(handle, 'base64')) };
  const opened = context.run(() => {
    const status = cu.cuIpcOpenEventHandle(OUT0, bytes);
    if (status !== 0)
      throw new IpcError(
        `an event of process ${pid} could not be opened`,
        cudaError(status, 'cuIpcOpenEventHandle'),
      );
    const event = readHandle<CUevent>(OUT0, cu.cuEventDestroy_v2);
    return new CudaEvent(context, event, {
      timing: false,
      interprocess: true,
      imported: true,
      destroyed: lease && (() => lease.released()),
    });
  });
  setImportSource(opened, { descriptor, fds: () => [] });
  return opened;
}

/** An array in memory of another process, by the driver's handle alone. */
export interface RawIpcArray<D extends Dtype = Dtype> extends OrderOrStrides {
  /** The driver's 64 bytes, or these in base64. */
  readonly handle: Uint8Array | string;
  readonly shape: Shape;
  /** A dtype, its name or its typestr. */
  readonly dtype: D | string;
  /** The byte of the allocation at which the item of index [0, 0, …] begins. Default 0. */
  readonly byteOffset?: number;
}

/** Options of {@link openIpcArray} for the driver's handle alone. */
export interface OpenRawArrayOptions extends PlaceOptions, StreamOption {}

/** Options of {@link openIpcArray} for a descriptor. */
export interface OpenArrayOptions extends OpenOptions, StreamOption {}

/**
 * Opens an array of another process, without copying it: by its descriptor, as `getIpcHandle(array)`
 * or `exportIpc(array)` gave it, or by the driver's handle alone, which Python or C shared: numba's
 * `open_ipc_array`.
 *
 * Opened twice, the memory is mapped once. Closing the array closes all its views; the memory is
 * unmapped when the last array was closed and the work queued here before is done. A handle alone
 * does not tell an allocation from an earlier one: close what was opened before its exporter frees.
 *
 * @param options the context to open it in, by default that of the descriptor's GPU, and for a handle
 * alone the primary one of device 0; the stream that work on the array goes to
 * @throws IpcError for what cannot be opened, for a descriptor of plain bytes, and for items beyond
 * the allocation; TypeError, RangeError
 * @example
 * using array = openIpcArray(message);
 * @example
 * using array = openIpcArray({ handle, shape: [480, 640], dtype: cuda.float32, byteOffset: 512 });
 * @see https://numba.readthedocs.io/en/stable/cuda/ipc.html
 */
export function openIpcArray<D extends Dtype>(
  source: RawIpcArray<D> & { readonly dtype: D },
  options?: OpenRawArrayOptions,
): DeviceArray<D>;
export function openIpcArray(source: RawIpcArray, options?: OpenRawArrayOptions): DeviceArray;
export function openIpcArray(
  descriptor: IpcMemoryDescriptor,
  options?: OpenArrayOptions,
): DeviceArray;
export function openIpcArray(
  source: RawIpcArray | IpcMemoryDescriptor,
  options?: OpenArrayOptions,
): DeviceArray {
  const isDescribed = typeof source === 'object' && source !== null && 'kind' in source;
  return isDescribed ? openDescribed(source, options) : openRawArray(source, options);
}

function openDescribed(source: IpcMemoryDescriptor, options: OpenArrayOptions = {}): DeviceArray {
  const { stream, ...rest } = options;
  const ordered = streamOf(stream);
  return openAs(MEMORY_KINDS, source, rest, 'openIpcArray', (descriptor, fds, checked) => {
    checkIsArray(descriptor);
    return asArray(openParsed(descriptor, fds, checked), descriptor, ordered) as DeviceArray;
  });
}

function openRawArray(source: RawIpcArray, options?: OpenRawArrayOptions): DeviceArray {
  const { stream, ...place } = checkOptions(
    options,
    ['stream', 'context', 'device'],
    'openIpcArray',
  );
  const { handle, shape, dtype, byteOffset, order, strides } = checkOptions(
    source,
    ['handle', 'shape', 'dtype', 'byteOffset', 'order', 'strides'],
    'openIpcArray',
  );
  const ordered = streamOf(stream);
  const type = checkDtype(dtypeNamed(dtype as Dtype | string));
  const layout = makeLayout(checkShape(shape), type.itemsize, {
    order,
    strides,
    byteOffset: checkInteger(byteOffset ?? 0, 'byteOffset'),
  });
  const buffer = openRawHandle(Context.resolve(place), checkHandle(handle), layout);
  const traits = { stream: ordered, isOwner: true, readOnly: false };
  return new DeviceArray({ buffer, dtype: type, layout, ...traits });
}

function checkHandle(handle: unknown): string {
  if (typeof handle !== 'string' && typedArrayKind(handle) !== 'Uint8Array')
    throw new TypeError('handle must be a Uint8Array, or its bytes in base64');
  const bytes =
    typeof handle === 'string'
      ? Buffer.from(handle, 'base64')
      : Buffer.from(bytesOfView(handle as Uint8Array));
  if (bytes.byteLength !== CU_IPC_HANDLE_SIZE)
    throw new RangeError(`handle has ${bytes.byteLength} bytes, not ${CU_IPC_HANDLE_SIZE}`);
  return bytes.toString('base64');
}

function openRawHandle(context: Context, handle: string, layout: Layout): DeviceBuffer {
  const { mapping, release } = mapRaw(context, handle);
  const { base, byteLength } = mapping;
  const { low, high } = layoutExtents(layout);
  if (low < 0 || high > byteLength) {
    release();
    throw new IpcError(
      `the items reach from byte ${low} to ${high} of an allocation of another process that has ${byteLength}`,
    );
  }
  return new DeviceBuffer({ context, address: base, byteLength, origin: 'imported', release });
}
