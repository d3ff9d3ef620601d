import { CU_IPC_HANDLE_SIZE } from '../../../ffi/constants.ts';
import { checkInstance, checkInteger, checkOptions } from '../../validate.ts';
import { MemoryPointer } from './memory-pointer.ts';

/** What an {@link IpcHandle} is made of. */
export interface IpcHandleInit {
  /** The memory that is shared: to be kept open while another process uses it. */
  readonly base: MemoryPointer;
  /** The driver's 64 bytes (cuIpcGetMemHandle), which name the whole allocation. */
  readonly handle: Uint8Array;
  /** Of the memory that is shared, in bytes. Default: that of `base`. */
  readonly byteLength?: number;
  /** The UUID of the GPU. Default: that of `base`. */
  readonly sourceInfo?: string;
  /** Where the memory begins in its allocation, in bytes. Default 0. */
  readonly offset?: number;
}

/**
 * What a memory manager answers to `getIpcHandle`: how legacy IPC knows some of its memory.
 * `getIpcHandle` of `cuffi/ipc` checks it and makes the descriptor of it that other processes get.
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
    const handle = checkInstance(required.handle, Uint8Array, 'handle');
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
}
