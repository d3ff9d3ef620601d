import { requireMade } from '../arguments.ts';
import type { DeviceBuffer } from '../memory/buffer.ts';
import { type IpcBufferDescriptor, parseDescriptor } from './descriptor.ts';
import { openIpcBuffer } from './import.ts';
import { type HandleInit, type HandleOpenOptions, IpcMemoryHandle } from './memory-handle.ts';

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
    requireMade(init, Object, 'IpcBufferHandle', 'getIpcHandle');
    super('IpcBufferHandle', init);
  }

  /** The handle that another process sent. Nothing is opened yet. @throws IpcError */
  static from(message: unknown): IpcBufferHandle {
    return new IpcBufferHandle({ descriptor: parseDescriptor(message, ['legacy']) });
  }

  /** @internal */
  protected override openNamed(
    descriptor: IpcBufferDescriptor,
    options: HandleOpenOptions,
  ): DeviceBuffer {
    return openIpcBuffer(descriptor, options);
  }
}
