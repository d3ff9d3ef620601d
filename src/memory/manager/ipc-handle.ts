import { inspect } from 'node:util';
import { CU_IPC_HANDLE_SIZE } from '../../../ffi/constants.ts';
import { describeObject } from '../../inspect.ts';
import { checkInstance, checkInteger, checkOptions, checkUint8Array } from '../../validate.ts';
import { MemoryPointer } from './memory-pointer.ts';

/** The constructor argument of {@link IpcHandle}. */
export interface IpcHandleInit {
  /** The shared memory. Must stay open while another process uses it. */
  readonly base: MemoryPointer;
  /** The driver's 64-byte handle of the whole allocation (cuIpcGetMemHandle). */
  readonly handle: Uint8Array;
  /** The size of the shared memory, in bytes. Default: that of `base`. */
  readonly byteLength?: number;
  /** The UUID of the GPU. Default: that of `base`. */
  readonly sourceInfo?: string;
  /** Where the memory starts in its allocation, in bytes. Default 0. */
  readonly offset?: number;
}

/**
 * The result of a memory manager's `getIpcHandle`: the legacy IPC handle of some of its memory.
 * `getIpcHandle` of `cuffi/ipc` checks it and makes a descriptor for other processes from it.
 */
export class IpcHandle {
  readonly base: MemoryPointer;
  readonly handle: Uint8Array;
  readonly byteLength: number;
  readonly sourceInfo: string;
  readonly offset: number;

  constructor(init: IpcHandleInit) {
    const { byteLength, sourceInfo, offset, ...required } = checkOptions(
      init,
      ['base', 'handle', 'byteLength', 'sourceInfo', 'offset'],
      'IpcHandle',
    );
    const base = checkInstance(required.base, MemoryPointer, 'base');
    const handle = checkUint8Array(required.handle, 'handle');
    this.base = base;
    this.handle = handle;
    if (handle.byteLength !== CU_IPC_HANDLE_SIZE)
      throw new RangeError(
        `handle must have ${CU_IPC_HANDLE_SIZE} bytes, not ${handle.byteLength}`,
      );
    this.byteLength = checkInteger(byteLength ?? base.byteLength, 'byteLength', 1);
    if (sourceInfo !== undefined && typeof sourceInfo !== 'string')
      throw new TypeError('sourceInfo must be the UUID of a GPU');
    this.sourceInfo = sourceInfo ?? base.context.device.uuid;
    this.offset = checkInteger(offset ?? 0, 'offset');
  }

  [inspect.custom](): string {
    return describeObject('IpcHandle', () => [
      `${this.byteLength} bytes`,
      this.offset > 0 && `from byte ${this.offset}`,
      `of ${this.sourceInfo}`,
    ]);
  }
}
