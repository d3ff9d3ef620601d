import type { DeviceArray } from '../../array/device-array.ts';
import type { Context } from '../../context.ts';
import type { Dtype } from '../../dtype.ts';
import { IpcError } from '../../errors.ts';
import type { CudaEvent } from '../../event.ts';
import { life, Resource, releaseOrWarn, runAll } from '../../lifetime.ts';
import type { Access, DeviceBuffer } from '../../memory/buffer.ts';
import { keepMemoryAlive } from '../../memory/keep-alive.ts';
import type { Stream } from '../../stream.ts';
import { assertInternal, checkOptions } from '../../validate.ts';
import {
  checkIsArray,
  type IpcBufferDescriptor,
  type IpcEventDescriptor,
  type IpcLayout,
} from '../descriptor.ts';
import { parseDescriptor } from '../descriptor-codec.ts';
import { recordReady, withReadyEvent } from './event.ts';
import { openIpcArray, openIpcBuffer } from './import.ts';
import type { OpenOptions } from './open-options.ts';
import { type ReadyOptions, waitReady } from './ready.ts';

/** How a handle opens what it names: plain memory comes without file descriptors. */
export type HandleOpenOptions = Omit<OpenOptions, 'fds'>;

const openOptionNames = [
  'context',
  'device',
  'access',
  'sameProcess',
  'allowOtherUsers',
] as const satisfies readonly (keyof HandleOpenOptions)[];

/** A descriptor, and for its exporter what it holds. */
export interface HandleInit {
  readonly descriptor: IpcBufferDescriptor;
  readonly keepalive?: { readonly context: Context; release(): void } | undefined;
}

/** Holds plain memory for another process, and records an event behind the work of a stream. */
export function keepExported(
  buffer: DeviceBuffer,
  descriptor: IpcBufferDescriptor,
  stream: Stream | undefined,
): HandleInit {
  const removeKeepalive = keepMemoryAlive(buffer);
  let event: CudaEvent | undefined;
  const release = (): void => runAll([removeKeepalive, () => event?.close()]);
  try {
    event = stream && recordReady(stream);
    return {
      descriptor: event ? withReadyEvent(descriptor, event) : descriptor,
      keepalive: { context: buffer.context, release },
    };
  } catch (error) {
    releaseOrWarn(release);
    throw error;
  }
}

/**
 * Plain memory to be opened by another process: a descriptor with `open()` and `close()`. Its own
 * enumerable properties are the descriptor's, so that it survives JSON, `process.send` and
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
    // A copy would keep an object that was dropped from being closed by its finalizer.
    Object.defineProperty(this, life, { enumerable: false });
    this.#descriptor = descriptor;
    Object.assign(this, descriptor);
  }

  /**
   * Opens what it names, without copying it; it is closed with the handle at the latest. It does
   * not wait: what was shared with a stream is ready after `await ready()`.
   *
   * @throws IpcError where it is open already, and where it cannot be opened: in the process that
   * shared it only with `{ sameProcess: 'alias' }`; ClosedError
   */
  open(options?: HandleOpenOptions): T {
    const checked = checkOptions(options, openOptionNames, 'open');
    this.assertOpen();
    if (this.#opened && !this.#opened.closed)
      throw new IpcError('this handle is already opened: use what it gave, or close that first');
    this.#opened = this.openDescriptor(this.#descriptor, checked);
    return this.#opened;
  }

  /**
   * Waits until the work is done that was queued in the stream with which it was shared; the event
   * loop turns meanwhile.
   *
   * @throws IpcError, `TimeoutError` as the function `ready`; ClosedError, also if it is closed
   * meanwhile
   */
  async ready(options?: ReadyOptions): Promise<void> {
    this.assertOpen();
    if (this.#isReady) return;
    await waitReady(this.#descriptor, options, () => this.assertOpen());
    this.#isReady = true;
  }

  /**
   * Closes what was opened with it. In the process that shared the memory: gives that up, so that
   * what was closed meanwhile is freed. The second time does nothing.
   */
  override close(): void {
    runAll([() => this.#opened?.close(), () => super.close()]);
  }

  /** The descriptor alone. */
  toJSON(): IpcBufferDescriptor {
    return { ...this.#descriptor };
  }

  /** @internal */
  protected abstract openDescriptor(descriptor: IpcBufferDescriptor, options: HandleOpenOptions): T;
}

/**
 * A buffer to be opened by another process, ready when the work of a stream is done: what
 * `getIpcHandle(buffer, { stream })` gives, and `IpcBufferHandle.from(message)` there. For the rest
 * as {@link IpcArrayHandle}.
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

  /** The handle that another process sent. Nothing is opened yet. @throws IpcError */
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
 * An array to be opened by another process, as numba's `IpcArrayHandle`: what `getIpcHandle(array)`
 * gives, and `IpcArrayHandle.from(message)` there.
 *
 * In the process that shared the array it keeps the memory until `close()`: an array that is closed
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

  /** The handle that another process sent. Nothing is opened yet. @throws IpcError */
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
