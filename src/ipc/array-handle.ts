import { requireMade } from '../arguments.ts';
import type { DeviceArray } from '../array/device-array.ts';
import type { Dtype } from '../dtype.ts';
import { openIpcArray } from './array.ts';
import { type IpcBufferDescriptor, parseDescriptor } from './descriptor.ts';
import { checkIsArray } from './descriptor-layout.ts';
import { type HandleInit, type HandleOpenOptions, IpcMemoryHandle } from './memory-handle.ts';

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
    requireMade(init, Object, 'IpcArrayHandle', 'getIpcHandle');
    super('IpcArrayHandle', init);
  }

  /** The handle that another process sent. Nothing is opened yet. @throws IpcError */
  static from(message: unknown): IpcArrayHandle {
    const descriptor = parseDescriptor(message, ['legacy']);
    checkIsArray(descriptor);
    return new IpcArrayHandle({ descriptor });
  }

  /** @internal */
  protected override openNamed(
    descriptor: IpcBufferDescriptor,
    options: HandleOpenOptions,
  ): DeviceArray<D> {
    return openIpcArray(descriptor, options) as DeviceArray<Dtype> as DeviceArray<D>;
  }
}
