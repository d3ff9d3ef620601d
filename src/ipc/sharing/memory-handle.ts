/** Handles of plain memory for other processes, and what waits for the work on it. */

import type { DeviceArray } from '../../array/device-array.ts';
import type { Context, PlaceOptions } from '../../context.ts';
import { checkDeadline, type WaitOptions, withDeadline } from '../../deadline.ts';
import type { Dtype } from '../../dtype.ts';
import { IpcError } from '../../errors.ts';
import { CudaEvent } from '../../event.ts';
import { counted, type Details } from '../../inspect.ts';
import { Resource, releaseOrWarn, runAll, stateKey, tokenKey } from '../../lifetime.ts';
import { type Access, type DeviceBuffer, keepMemoryAlive } from '../../memory/buffer.ts';
import { pollUntil } from '../../poller.ts';
import type { Stream } from '../../stream.ts';
import { assertInternal, checkOptions } from '../../validate.ts';
import {
  checkIsArray,
  type DescriptorFields,
  type Exported,
  type IpcBufferDescriptor,
  type IpcEventDescriptor,
  type IpcLayout,
  type IpcMemoryDescriptor,
  MEMORY_KINDS,
  type MemoryFields,
} from '../descriptor.ts';
import { isFromThisProcess, localProcess } from '../identity.ts';
import { parseDescriptor, withChecksum } from './descriptor-codec.ts';
import { recordReady, withReadyEvent } from './event.ts';
import { openIpcArray, openIpcBuffer, openIpcEvent } from './import.ts';
import type { OpenOptions } from './kind.ts';
import { sharesPidNamespace } from './open.ts';

/** Options of a handle's `open()`. Plain memory comes without file descriptors. */
export type HandleOpenOptions = Omit<OpenOptions, 'fds'>;

const openOptionNames = [
  'context',
  'device',
  'access',
  'sameProcess',
  'allowOtherUsers',
] as const satisfies readonly (keyof HandleOpenOptions)[];

/** A descriptor and, in the exporter, what keeps the memory alive. */
export interface HandleInit {
  readonly descriptor: IpcBufferDescriptor;
  readonly keepalive?: { readonly context: Context; release(): void } | undefined;
}

type OpenMemory<T> = (descriptor: IpcBufferDescriptor, options: HandleOpenOptions) => T;

/**
 * Plain memory that another process can open: a descriptor with `open()` and `close()`. Its own
 * enumerable properties are those of the descriptor, so that it survives JSON, `process.send` and
 * structured cloning as plain data.
 */
export abstract class IpcMemoryHandle<T extends Resource>
  extends Resource
  implements IpcBufferDescriptor
{
  declare readonly version: IpcBufferDescriptor['version'];
  declare readonly kind: 'legacy';
  declare readonly device: string;
  declare readonly machine: string;
  declare readonly pid: number;
  declare readonly startTime: number;
  declare readonly pidNamespace: number;
  declare readonly handle: string;
  declare readonly baseByteLength: number;
  declare readonly byteOffset: number;
  declare readonly byteLength: number;
  declare readonly access: Access;
  declare readonly bufferId: number;
  declare readonly generation: number;
  declare readonly layout?: IpcLayout | undefined;
  declare readonly readyEvent?: IpcEventDescriptor | undefined;
  declare readonly checksum: number;
  readonly #descriptor: IpcBufferDescriptor;
  readonly #open: OpenMemory<T>;
  #opened: T | undefined;
  #isReady = false;

  protected constructor(kind: string, { descriptor, keepalive }: HandleInit, open: OpenMemory<T>) {
    super(
      kind,
      keepalive ? { owner: keepalive.context.resources, release: () => keepalive.release() } : {},
    );
    // A copy would keep the finalizer of a dropped object from running.
    for (const key of [stateKey, tokenKey]) Object.defineProperty(this, key, { enumerable: false });
    this.#descriptor = descriptor;
    this.#open = open;
    Object.assign(this, descriptor);
  }

  /**
   * Opens the memory without copying it. Closing the handle closes it too. Does not wait: memory
   * shared with a stream is ready after `await ready()`.
   *
   * @throws IpcError if it is already open, and if it cannot be opened: in the process that shared
   * it only with `{ sameProcess: 'alias' }`; ClosedError
   */
  open(options?: HandleOpenOptions): T {
    const checked = checkOptions(options, openOptionNames, 'open');
    this.assertOpen();
    if (this.#opened && !this.#opened.closed)
      throw new IpcError(
        'this handle is already open: use the object that open() returned, or close it first',
      );
    this.#opened = this.#open(this.#descriptor, checked);
    return this.#opened;
  }

  /** @internal */
  protected override describe(): Details {
    const { dtype, shape } = this.layout ?? {};
    return [
      shape ? `${dtype} [${shape.join(', ')}]` : `${this.byteLength} bytes`,
      `of process ${this.pid}`,
      this.readyEvent && 'with a ready event',
    ];
  }

  /**
   * Waits until the work that was queued in the sharing stream is done, without blocking the event
   * loop.
   *
   * @throws IpcError, `TimeoutError` like the function `ready`; ClosedError, also if it is closed
   * meanwhile
   */
  async ready(options?: ReadyOptions): Promise<void> {
    this.assertOpen();
    if (this.#isReady) return;
    await waitReady(this.#descriptor, options, () => this.assertOpen());
    this.#isReady = true;
  }

  /**
   * Closes what was opened with it. In the process that shared the memory, also releases that, so
   * that buffers closed meanwhile are freed. A second call does nothing.
   */
  override close(): void {
    runAll([() => this.#opened?.close(), () => super.close()]);
  }

  /** The descriptor alone. */
  override toJSON(): IpcBufferDescriptor {
    return { ...this.#descriptor };
  }
}

/**
 * A buffer that another process can open, ready when the work of a stream is done.
 * `getIpcHandle(buffer, { stream })` returns it, and `IpcBufferHandle.from(message)` in the other
 * process. See {@link IpcArrayHandle} for the rest.
 *
 * @example
 * using handle = IpcBufferHandle.from(message);
 * const buffer = handle.open();
 * await handle.ready({ timeoutMs: 1000 });
 * console.log(await buffer.copyToHost());
 */
export class IpcBufferHandle extends IpcMemoryHandle<DeviceBuffer> {
  /** @internal */
  constructor(init: HandleInit) {
    assertInternal(init, Object, 'IpcBufferHandle', 'getIpcHandle');
    super('IpcBufferHandle', init, openIpcBuffer);
  }

  /** Returns the handle that another process sent. Opens nothing yet. @throws IpcError */
  static from(message: unknown): IpcBufferHandle {
    return new IpcBufferHandle({ descriptor: parseDescriptor(message, ['legacy']) });
  }
}

/**
 * An array that another process can open, like numba's `IpcArrayHandle`. `getIpcHandle(array)`
 * returns it, and `IpcArrayHandle.from(message)` in the other process.
 *
 * In the process that shared the array, it keeps the memory until `close()`: an array closed
 * meanwhile is freed then. Keep it open until the other process is done.
 *
 * @example
 * using handle = getIpcHandle(array);
 * child.send(handle);
 * await once(child, 'exit');
 * @example
 * using handle = IpcArrayHandle.from(message);
 * console.log(await handle.open().copyToHost());
 * @see https://numba.readthedocs.io/en/stable/cuda/ipc.html
 */
export class IpcArrayHandle<D extends Dtype = Dtype> extends IpcMemoryHandle<DeviceArray<D>> {
  /** @internal */
  constructor(init: HandleInit) {
    assertInternal(init, Object, 'IpcArrayHandle', 'getIpcHandle');
    super(
      'IpcArrayHandle',
      init,
      (descriptor, options) =>
        openIpcArray(descriptor, options) as DeviceArray<Dtype> as DeviceArray<D>,
    );
  }

  /** Returns the handle that another process sent. Opens nothing yet. @throws IpcError */
  static from(message: unknown): IpcArrayHandle {
    const descriptor = parseDescriptor(message, ['legacy']);
    checkIsArray(descriptor);
    return new IpcArrayHandle({ descriptor });
  }
}

// ---- What the exporter keeps ----

/**
 * Keeps plain memory alive for another process, and records an event behind the work of a stream.
 */
export function keepExported(
  buffer: DeviceBuffer,
  fields: DescriptorFields<'legacy'>,
  stream: Stream | undefined,
): HandleInit {
  const removeKeepalive = keepMemoryAlive(buffer);
  let event: CudaEvent | undefined;
  const release = (): void => runAll([removeKeepalive, () => event?.close()]);
  try {
    event = stream && recordReady(stream);
    return {
      descriptor: withChecksum(event ? withReadyEvent(fields, event) : fields),
      keepalive: { context: buffer.context, release },
    };
  } catch (error) {
    releaseOrWarn(release);
    throw error;
  }
}

// ---- Waiting for the work of the exporter ----

/** Options of {@link ready}. */
export interface ReadyOptions extends WaitOptions, PlaceOptions {
  /** Whether to wait for memory of other users' processes. Default false. */
  readonly allowOtherUsers?: boolean;
}

/** How often a wait reads /proc. */
const LIVENESS_PERIOD_MS = 20;

/**
 * Waits until the work is done that the exporter had queued in the `stream` it shared the memory
 * with. The event loop is not blocked, and nothing is queued. The memory may be opened before.
 *
 * If the process that recorded the event exits first, the work may never be done. Then this
 * rejects, if both processes are in one pid namespace. Otherwise only `timeoutMs` and `signal` end
 * the wait.
 *
 * @param message the descriptor from the other process
 * @throws IpcError for memory shared without a stream, for an exporter that has exited (code
 * `exporter-gone`) or has closed the memory, and as `openIpcEvent` does; `TimeoutError`
 * @example
 * using array = openIpcArray(message);
 * await ready(message, { timeoutMs: 1000 });
 * console.log(await array.copyToHost());
 * @see https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__EVENT.html
 */
export const ready = async (message: unknown, options?: ReadyOptions): Promise<void> =>
  waitReady(parseDescriptor(message, MEMORY_KINDS), options, () => {});

/** Like {@link ready}. `check` is called at every poll, and may throw. */
async function waitReady(
  { readyEvent, pid }: IpcMemoryDescriptor,
  options: ReadyOptions | undefined,
  check: () => void,
): Promise<void> {
  const { signal, timeoutMs, ...place } = checkOptions(
    options,
    ['signal', 'timeoutMs', 'context', 'device', 'allowOtherUsers'],
    'ready',
  );
  const deadline = checkDeadline({ signal, timeoutMs }, 'ready');
  if (!readyEvent)
    throw new IpcError(
      `process ${pid} shared this memory without { stream }: there is no event to wait for`,
    );
  const event = openIpcEvent(readyEvent, { ...place, sameProcess: 'alias' });
  try {
    const isDone = donePoller(event, readyEvent);
    await withDeadline<void>(
      deadline,
      `waiting for work of process ${pid} on shared memory`,
      (resolve, reject) => {
        const abandoned = new AbortController();
        const poll = (): boolean => {
          check();
          return isDone();
        };
        pollUntil(poll, { signal: abandoned.signal }).then(resolve, reject);
        return () => abandoned.abort();
      },
    );
  } finally {
    event.close();
  }
}

/**
 * Returns a function that polls the event. It throws if the process that should record it has
 * exited.
 */
function donePoller(event: CudaEvent, recorder: IpcEventDescriptor): () => boolean {
  const self = localProcess();
  if (isFromThisProcess(recorder, self) || !sharesPidNamespace(recorder, self))
    return () => event.done;
  const { pid, startTime } = recorder;
  let checkedAt = performance.now();
  return () => {
    if (event.done) return true;
    const now = performance.now();
    if (now - checkedAt < LIVENESS_PERIOD_MS) return false;
    checkedAt = now;
    if (self.isAlive(pid, startTime)) return false;
    // The process may have exited after its work was done.
    if (event.done) return true;
    throw new IpcError(
      `process ${pid} exited before it finished the work that its memory waits for`,
      undefined,
      'exporter-gone',
    );
  };
}

// ---- Memory of any kind, with an event ----

/**
 * The result of `exportIpc` with a stream: memory, and an event after which it may be used. The
 * other process waits for the event with `ready`. `close()` closes the event and keeps the memory.
 */
export class ReadyExport extends Resource implements Exported {
  readonly descriptor: IpcMemoryDescriptor;
  readonly fds: readonly number[];

  /** @internal */
  constructor(fields: MemoryFields, fds: readonly number[], event: CudaEvent) {
    assertInternal(event, CudaEvent, 'ReadyExport', 'exportIpc');
    super('ReadyExport', { owner: event.context.resources, release: () => event.close() });
    this.descriptor = withChecksum(withReadyEvent(fields, event));
    this.fds = fds;
  }

  /** @internal */
  protected override describe(): Details {
    const { kind, byteLength } = this.descriptor;
    return [kind, `${byteLength} bytes`, counted(this.fds.length, 'file descriptor')];
  }
}
