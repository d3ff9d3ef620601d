import type { DeviceArray } from '../../array/device-array.ts';
import type { Context } from '../../context.ts';
import type { Dtype } from '../../dtype.ts';
import { IpcError } from '../../errors.ts';
import type { CudaEvent } from '../../event.ts';
import type { Details } from '../../inspect.ts';
import { Resource, releaseOrWarn, runAll, stateKey, tokenKey } from '../../lifetime.ts';
import { type Access, type DeviceBuffer, keepMemoryAlive } from '../../memory/buffer.ts';
import type { Stream } from '../../stream.ts';
import { assertInternal, checkOptions } from '../../validate.ts';
import {
  checkIsArray,
  type DescriptorFields,
  type IpcBufferDescriptor,
  type IpcEventDescriptor,
  type IpcLayout,
} from '../descriptor.ts';
import { parseDescriptor, withChecksum } from './descriptor-codec.ts';
import { recordReady, withReadyEvent } from './event.ts';
import { openIpcArray, openIpcBuffer } from './import.ts';
import type { OpenOptions } from './kind.ts';
import { type ReadyOptions, waitReady } from './ready.ts';

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
  #opened: T | undefined;
  #isReady = false;

  protected constructor(kind: string, { descriptor, keepalive }: HandleInit) {
    super(
      kind,
      keepalive ? { owner: keepalive.context.resources, release: () => keepalive.release() } : {},
    );
    // A copy would keep the finalizer of a dropped object from running.
    for (const key of [stateKey, tokenKey]) Object.defineProperty(this, key, { enumerable: false });
    this.#descriptor = descriptor;
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
    this.#opened = this.openDescriptor(this.#descriptor, checked);
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

  /** @internal */
  protected abstract openDescriptor(descriptor: IpcBufferDescriptor, options: HandleOpenOptions): T;
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
    super('IpcBufferHandle', init);
  }

  /** Returns the handle that another process sent. Opens nothing yet. @throws IpcError */
  static from(message: unknown): IpcBufferHandle {
    return new IpcBufferHandle({ descriptor: parseDescriptor(message, ['legacy']) });
  }

  /** @internal */
  protected override openDescriptor(
    descriptor: IpcBufferDescriptor,
    options: HandleOpenOptions,
  ): DeviceBuffer {
    return openIpcBuffer(descriptor, options);
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
    super('IpcArrayHandle', init);
  }

  /** Returns the handle that another process sent. Opens nothing yet. @throws IpcError */
  static from(message: unknown): IpcArrayHandle {
    const descriptor = parseDescriptor(message, ['legacy']);
    checkIsArray(descriptor);
    return new IpcArrayHandle({ descriptor });
  }

  /** @internal */
  protected override openDescriptor(
    descriptor: IpcBufferDescriptor,
    options: HandleOpenOptions,
  ): DeviceArray<D> {
    return openIpcArray(descriptor, options) as DeviceArray<Dtype> as DeviceArray<D>;
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
