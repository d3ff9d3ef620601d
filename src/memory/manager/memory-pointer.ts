import { inspect } from 'node:util';
import { CU_IPC_HANDLE_SIZE } from '../../../ffi/constants.ts';
import type { Address, CUdeviceptr } from '../../../ffi/types.ts';
import { Context } from '../../context.ts';
import { type Details, describeObject, placeName } from '../../inspect.ts';
import { ReferenceCount, Resource, releaseOrWarn, Scope } from '../../lifetime.ts';
import { type StreamOption, streamOption } from '../../stream.ts';
import { checkInstance, checkInteger, checkOptions, checkUint8Array } from '../../validate.ts';
import { devicePointerOf } from '../page-lock.ts';

/**
 * Frees memory. Called once, when the last reference is gone, with the stream of the last
 * `close({ stream })`. Not called after a reset of the context, which calls the manager's `reset()`
 * instead.
 */
export type Finalizer = (options: StreamOption) => void;

/** Constructor argument of the pointers of a memory manager. */
export interface PointerInit {
  readonly context: Context;
  /** The address of the first byte. */
  readonly pointer: number;
  readonly byteLength: number;
  /**
   * An object that must stay alive while the pointer is used. If it is a `DeviceBuffer` of a pool,
   * streams wait for its allocation at their first use of the pointer. Any other object is never read.
   */
  readonly owner?: unknown;
  /** Frees the memory. Absent if someone else frees it. */
  readonly finalizer?: Finalizer;
}

/**
 * Device memory of a memory manager, like numba's class of that name. Its finalizer frees the
 * memory when the pointer and all results of its `own()` and `view()` are closed.
 *
 * @example
 * const pointer = new cuda.MemoryPointer({
 *   context,
 *   pointer: address,
 *   byteLength: 4096,
 *   finalizer: () => library.free(address),
 * });
 * @see https://numba.readthedocs.io/en/stable/cuda/external-memory.html
 */
export class MemoryPointer extends Resource {
  readonly context: Context;
  readonly byteLength: number;
  readonly #pointer: CUdeviceptr;
  readonly #owner: unknown;
  readonly #state: PointerState;

  constructor(init: PointerInit);
  /** @internal */
  constructor(init: PointerInit, state: PointerState);
  constructor(init: PointerInit, state: PointerState = newState('MemoryPointer', init, true)) {
    const { context, pointer, byteLength, owner } = state.init;
    checkRange(state.init);
    super(state.kind, { owner: state.memory.openPointers, release: state.release });
    this.context = context;
    this.byteLength = byteLength;
    this.#pointer = pointer as CUdeviceptr;
    this.#owner = owner;
    this.#state = state;
  }

  /** The device address of the first byte. @throws ClosedError */
  get pointer(): CUdeviceptr {
    this.assertOpen();
    return this.#pointer;
  }

  /** @internal */
  protected override describe(): Details {
    return [`${this.byteLength} bytes`, placeName(this.context)];
  }

  /** The object that it keeps alive; the pointer itself if no owner was given. */
  get owner(): unknown {
    return this.#owner ?? this;
  }

  /** How many open pointers keep the memory alive, including this one. */
  get refct(): number {
    return this.closed ? 0 : this.#state.memory.count;
  }

  /** Another pointer to the same bytes. The memory lives until both are closed. */
  own(): MemoryPointer {
    return this.view(0);
  }

  /**
   * A pointer to the bytes from `start` up to `stop`. It keeps the whole memory alive.
   *
   * @throws RangeError beyond the memory, ClosedError
   */
  view(start: number, stop: number = this.byteLength): MemoryPointer {
    const { pointer } = this;
    checkInteger(start, 'start', 0, this.byteLength);
    checkInteger(stop, 'stop', start, this.byteLength);
    const { memory } = this.#state;
    const { context, owner } = this;
    const init = { context, pointer: pointer + start, byteLength: stop - start, owner };
    const release = memory.add();
    return new MemoryPointer(init, {
      kind: 'MemoryPointer',
      init,
      memory,
      release,
      parent: this,
    });
  }

  /**
   * Frees the memory now, even if other pointers refer to it.
   *
   * @throws ClosedError on a second call
   */
  free(): void {
    this.assertOpen();
    this.#state.memory.free();
  }

  /**
   * Removes this reference. The last one frees the memory, in the order of `stream` if the
   * finalizer supports it.
   */
  override close(options?: StreamOption): void {
    const stream = streamOption(options, 'close');
    if (stream && !this.closed) this.#state.memory.setReleaseOptions({ stream });
    super.close();
  }
}

/**
 * Device memory that lives as long as the results of its `own()` and `view()`, like numba's class
 * of that name. The usual result of `memalloc`.
 *
 * @example
 * return new cuda.AutoFreePointer({ context, pointer, byteLength, finalizer });
 */
export class AutoFreePointer extends MemoryPointer {
  constructor(init: PointerInit);
  /** @internal */
  constructor(init: PointerInit, state: PointerState);
  constructor(init: PointerInit, state: PointerState = newState('AutoFreePointer', init, false)) {
    super(init, state);
  }
}

/**
 * Page-locked host memory that the device can access, like numba's `MappedMemory`. `memhostalloc`
 * and `mempin` return it for `{ mapped: true }`. It is constructed from the host address, and
 * queries the driver for the device address.
 *
 * @throws CudaError if the driver does not know the memory, TypeError or RangeError for an invalid
 * range; the finalizer has then been called
 * @see https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__MEM.html
 */
export class MappedPointer extends AutoFreePointer {
  readonly hostPointer: Address;

  /** @param init with the host's address as `pointer` */
  constructor(init: PointerInit) {
    const state = newState('MappedPointer', init, false);
    const { pointer: hostPointer } = state.init;
    const pointer = deviceAddressOf(state.init, state.release);
    super(init, { ...state, init: { ...state.init, pointer } });
    this.hostPointer = hostPointer as Address;
  }
}

/**
 * Page-locked host memory, like numba's `PinnedMemory`. `memhostalloc` and `mempin` return it. It
 * has one user; closing it calls the finalizer.
 */
export class PinnedPointer extends Resource {
  readonly context: Context;
  readonly byteLength: number;
  /** The object that it keeps alive, for example the pinned array. */
  readonly owner: unknown;
  readonly #pointer: Address;

  /** @param init with the host's address as `pointer` */
  constructor(init: PointerInit) {
    const options = readInit('PinnedPointer', init);
    const memory = new PointedMemory(options);
    checkRange(options);
    super('PinnedPointer', { owner: memory.openPointers, release: memory.add() });
    this.context = options.context;
    this.byteLength = options.byteLength;
    this.owner = options.owner;
    this.#pointer = options.pointer as Address;
  }

  /** @internal */
  protected override describe(): Details {
    return [`${this.byteLength} bytes`, placeName(this.context)];
  }

  /** The host address of the first byte. @throws ClosedError */
  get pointer(): Address {
    this.assertOpen();
    return this.#pointer;
  }
}

// ---- How pointers share their memory ----

/** @internal A pointer's reference to its memory. */
export interface PointerState {
  readonly kind: string;
  /** The pointer's constructor argument, as it was read. */
  readonly init: PointerInit;
  readonly memory: PointedMemory;
  /** Removes the pointer's own reference. */
  readonly release: () => void;
  /** The pointer that it is a view of. It must not be collected while the view is alive. */
  readonly parent?: MemoryPointer;
}

/**
 * @internal The state of the first pointer to some memory.
 *
 * @param isReference whether the pointer itself keeps the memory. Otherwise closing it frees unused memory
 */
function newState(kind: string, init: PointerInit, isReference: boolean): PointerState {
  const options = readInit(kind, init);
  const memory = new PointedMemory(options);
  const release = isReference ? memory.add() : () => memory.freeIfUnused();
  return { kind, init: options, memory, release };
}

/**
 * Counts the open pointers to one piece of memory. numba counts Python's references; here a pointer is
 * a reference until it is closed, because garbage collection comes too late.
 */
export class PointedMemory {
  /** The open pointers: all are closed when the memory is freed. */
  readonly openPointers: Scope;
  readonly #finalizer: Finalizer | undefined;
  readonly #references = new ReferenceCount();
  #isFreed = false;
  #releaseOptions: StreamOption = {};

  /** @param init as {@link readInit} returns it */
  constructor({ context, finalizer }: PointerInit) {
    this.openPointers = new Scope(context.resources);
    this.#finalizer = finalizer;
  }

  get count(): number {
    return this.#references.count;
  }

  /** Adds a reference. Returns a function that removes it; call it once. */
  add(): () => void {
    this.#references.add();
    return () => {
      if (this.#references.remove()) this.free();
    };
  }

  /** Sets the stream that frees the memory: that of the last close. */
  setReleaseOptions(options: StreamOption): void {
    this.#releaseOptions = options;
  }

  /** Frees the memory if it has no references. */
  freeIfUnused(): void {
    if (!this.#references.isUsed) this.free();
  }

  /** Frees the memory, even with references. A second call does nothing. */
  free(): void {
    if (this.#isFreed) return;
    this.#isFreed = true;
    this.openPointers.discardAll('its memory was freed already');
    this.#finalizer?.(this.#releaseOptions);
  }
}

/**
 * Reads each option of a pointer once. Does not check the range, so that the finalizer can be
 * called if it is wrong.
 *
 * @param kind the class of the pointer, for error messages
 * @throws TypeError
 */
function readInit(kind: string, init: PointerInit): PointerInit {
  const names = ['context', 'pointer', 'byteLength', 'owner', 'finalizer'] as const;
  // A missing init is refused like one without a context.
  const options = checkOptions(init, names, kind) as PointerInit;
  checkInstance(options.context, Context, 'context');
  if (options.finalizer !== undefined && typeof options.finalizer !== 'function')
    throw new TypeError('finalizer must be a function');
  return options;
}

/** Checks the address range of a pointer. @throws TypeError, RangeError */
function checkRange({ pointer, byteLength }: PointerInit): void {
  checkInteger(pointer, 'pointer', 1);
  checkInteger(byteLength, 'byteLength', 0, Number.MAX_SAFE_INTEGER - pointer);
}

function deviceAddressOf(init: PointerInit, free: () => void): number {
  try {
    checkRange(init);
    return devicePointerOf(init.context, init.pointer as Address);
  } catch (error) {
    releaseOrWarn(free);
    throw error;
  }
}

// ---- The legacy IPC handle of some memory ----

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
