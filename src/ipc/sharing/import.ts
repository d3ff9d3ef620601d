import { isOpenFd } from '../../../ffi/linux/libc.ts';
import type { DeviceArray } from '../../array/device-array.ts';
import type { AnyDtypeName, Dtype, NamedDtype } from '../../dtype.ts';
import { IpcError } from '../../errors.ts';
import type { CudaEvent } from '../../event.ts';
import type { DeviceBuffer } from '../../memory/buffer.ts';
import { type Stream, type StreamOption, streamOf } from '../../stream.ts';
import { checkBoolean, checkOptions } from '../../validate.ts';
import {
  checkIsArray,
  type DescriptorFields,
  type IpcDescriptors,
  type IpcKind,
  MEMORY_KINDS,
} from '../descriptor.ts';
import { parseDescriptor } from './descriptor-codec.ts';
import { ImportedPool } from './imported-pool.ts';
import { type OpenOptions, OwnedFds, type ReceivedFds } from './kind.ts';
import { kindOfFields, type Opened } from './kinds.ts';
import { asArray } from './memory.ts';
import { openDescriptor } from './open.ts';
import { pool } from './pool.ts';
import { type OpenRawArrayOptions, openRawArray, type RawIpcArray } from './raw-array.ts';

/**
 * Opens anything that another process shared with `exportIpc` or `getIpcHandle`, without copying
 * it. The message is untrusted: it is first checked like `explain` does.
 *
 * @param message the descriptor from the other process
 * @param options `fds`: the file descriptors that came with it
 * @throws IpcError, whose `code` says why, if it is not a valid descriptor or cannot be opened
 * here; the file descriptors are then closed
 * @example
 * const { data, fds } = receiveMessage(socket);
 * using buffer = openIpc(decodeDescriptor(data), { fds });
 * @see https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__MALLOC__ASYNC.html
 */
export const openIpc = (message: unknown, options?: OpenOptions): Opened =>
  openAs(
    undefined,
    message,
    options,
    'openIpc',
    (fields, ...given) => kindOfFields(fields).import(fields, ...given) as Opened,
  );

/**
 * Opens the memory that another process shared, without copying it. For an array, the result is the
 * bytes of its items, from the first to the last.
 *
 * Memory that is opened twice is mapped once. It is unmapped after its last buffer is closed and
 * the work queued before that is done. Close it before the exporter frees it: the driver guarantees
 * nothing about memory that is freed while mapped.
 *
 * @param message the message from the other process, e.g. by `process.on('message')`
 * @param options the context to open it in (by default that of the descriptor's GPU), the file
 * descriptors that came with it, and the access
 * @throws IpcError, whose `code` says why, if it is not a valid descriptor or cannot be opened
 * here; the file descriptors are then closed
 * @example
 * process.on('message', (message) => {
 *   using buffer = openIpcBuffer(message);
 *   console.log(buffer.copyToHostSync());
 * });
 * @see https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__MEM.html
 */
export function openIpcBuffer(message: unknown, options?: OpenOptions): DeviceBuffer {
  return openAs(MEMORY_KINDS, message, options, 'openIpcBuffer', (descriptor, fds, checked) => {
    if (kindOfFields(descriptor) === pool)
      throw new IpcError(
        'the descriptor describes a memory pool, not memory: open it with openIpcPool',
      );
    return openBytes(descriptor, fds, checked) as DeviceBuffer;
  });
}

/**
 * Opens an event of another process. Both sides may record, wait for and query it.
 *
 * A stream that waits for it stays blocked forever if the process that recorded it is killed first.
 * `await event.synchronize()` with a signal does not.
 *
 * @see https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__MEM.html
 */
export const openIpcEvent = (message: unknown, options?: OpenOptions): CudaEvent =>
  openAs(['event'], message, options, 'openIpcEvent', openBytes) as CudaEvent;

/**
 * Opens a memory pool of another process. Until the pool is closed, its buffers can be opened
 * without its file descriptor. While the pool is open, the same pool gives the same object.
 *
 * @throws IpcError as {@link openIpcBuffer}
 */
export function openIpcPool(message: unknown, options?: OpenOptions): ImportedPool {
  return openAs(['pool'], message, options, 'openIpcPool', (descriptor, fds, checked) => {
    if (kindOfFields(descriptor) !== pool)
      throw new IpcError(
        'the descriptor describes memory of a pool, not the pool: open it with openIpcBuffer',
      );
    const opened = openBytes(descriptor, fds, checked);
    if (opened instanceof ImportedPool) return opened;
    throw new IpcError(
      'the pool was made by this very process: use that pool',
      undefined,
      'same-process',
    );
  });
}

/** Options of {@link openIpcArray} for a descriptor. */
export interface OpenArrayOptions extends OpenOptions, StreamOption {}

/**
 * Opens an array of another process, without copying it. It takes a descriptor of
 * `getIpcHandle(array)` or `exportIpc(array)`, or the driver's handle alone, from Python or C, like
 * numba's `open_ipc_array`.
 *
 * Memory that is opened twice is mapped once. Closing the array closes all its views. The memory is
 * unmapped after the last array is closed and the work queued before that is done. A handle alone
 * cannot tell an allocation from an earlier one: close the array before its exporter frees the
 * memory.
 *
 * @param message the message from the other process, or the handle with what it lacks
 * @param options the context to open it in (by default that of the descriptor's GPU; for a handle
 * alone, the primary one of device 0), and the stream for work on the array; for a descriptor, those
 * of {@link openIpcBuffer} too
 * @throws IpcError if it cannot be opened, for a descriptor of plain bytes, and for items beyond
 * the allocation; the file descriptors are then closed; TypeError, RangeError
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
export function openIpcArray<N extends AnyDtypeName>(
  source: RawIpcArray & { readonly dtype: N },
  options?: OpenRawArrayOptions,
): DeviceArray<NamedDtype<N>>;
export function openIpcArray(message: unknown, options?: OpenArrayOptions): DeviceArray;
export function openIpcArray(message: unknown, options?: OpenArrayOptions): DeviceArray {
  const names = [...optionNames, 'stream'] as const;
  const { stream, ...rest } = checkOptions(options, names, 'openIpcArray');
  const ordered = streamOf(stream);
  if (isRawArray(message)) return openRaw(message, rest, ordered);
  return openAs(MEMORY_KINDS, message, rest, 'openIpcArray', (descriptor, fds, checked) => {
    checkIsArray(descriptor);
    return asArray(openBytes(descriptor, fds, checked), descriptor, ordered) as DeviceArray;
  });
}

// ---- Messages, then descriptors, then the kinds ----

/** Whether the message is meant as the driver's handle alone: descriptors have a kind. */
const isRawArray = (message: unknown): message is RawIpcArray =>
  typeof message === 'object' &&
  message !== null &&
  !('kind' in message) &&
  ['handle', 'shape', 'dtype'].some((name) => name in message);

/** @throws IpcError if file descriptors came with the handle, which are then closed */
function openRaw(source: RawIpcArray, options: OpenOptions, stream?: Stream): DeviceArray {
  const { fds: received = [], ...rest } = checkOpenOptions(options, 'openIpcArray');
  using fds = new OwnedFds(received, true);
  if (fds.numbers.length > 0)
    throw new IpcError(
      "the driver's handle alone has no file descriptors: pass the descriptor that they came with",
      undefined,
      'invalid-descriptor',
    );
  return openRawArray(source, { ...rest, ...(stream && { stream }) });
}

/** Opens a descriptor as what it is without the layout of an array. */
const openBytes = (
  descriptor: DescriptorFields,
  fds: ReceivedFds,
  options: Omit<OpenOptions, 'fds'>,
): object => openDescriptor(kindOfFields(descriptor), descriptor, fds, options);

/** Parses a message and opens it with `open`. */
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

// ---- Options ----

const optionNames = [
  'context',
  'device',
  'fds',
  'access',
  'sameProcess',
  'allowOtherUsers',
] as const satisfies readonly (keyof OpenOptions)[];

/** @throws TypeError for anything but {@link OpenOptions} */
export function checkOpenOptions(options: OpenOptions | undefined, call: string): OpenOptions {
  const checked = checkOptions(options, optionNames, call);
  const { fds, access, sameProcess, allowOtherUsers } = checked;
  checkBoolean(allowOtherUsers, 'allowOtherUsers', false);
  checkChoice(access, 'access', ['read-write', 'read']);
  checkChoice(sameProcess, 'sameProcess', ['refuse', 'alias']);
  if (fds === undefined) return checked;
  // A copy: what is checked here is what is closed in the end.
  const own = Array.isArray(fds) ? [...fds] : undefined;
  if (!own || new Set(own).size !== own.length || !own.every(isOpenFd))
    throw new TypeError('fds must be a list of open file descriptors, each once');
  return { ...checked, fds: own };
}

function checkChoice(value: unknown, name: string, choices: readonly string[]): void {
  if (value !== undefined && !choices.includes(value as string))
    throw new TypeError(
      `${name} must be ${choices.map((word) => `'${word}'`).join(' or ')}, not ${String(value)}`,
    );
}
