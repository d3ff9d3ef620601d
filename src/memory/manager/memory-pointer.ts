import type { Address, CUdeviceptr } from '../../../ffi/types.ts';
import { Context } from '../../context.ts';
import { Resource, releaseOrWarn, Scope } from '../../lifetime.ts';
import { type StreamOption, streamOption } from '../../stream.ts';
import { checkInstance, checkInteger, checkOptions } from '../../validate.ts';
import { devicePointerOf } from '../page-lock.ts';

/**
 * Gives memory back: called once, when nobody refers to it any more, with the stream that the last
 * `close({ stream })` named. It is not called after a reset of the context: the manager's own
 * `reset()` is.
 */
export type Finalizer = (options: StreamOption) => void;

/**
 * What all pointers to one piece of memory share. numba counts Python's references; here a pointer
 * is a reference until it is closed, as a garbage collector tells too late.
 */
export class ReferenceCount {
  /** The open pointers: all are closed at once when the memory goes. */
  readonly openPointers: Scope;
  readonly #finalizer: Finalizer | undefined;
  #count = 0;
  #isFreed = false;
  #releaseOptions: StreamOption = {};

  /** @param init as {@link readInit} returns it */
  constructor({ context, finalizer }: PointerInit) {
    this.openPointers = new Scope(context.resources);
    this.#finalizer = finalizer;
  }

  get count(): number {
    return this.#count;
  }

  /** One reference more; answers how to give it up, once. */
  add(): () => void {
    this.#count += 1;
    return () => {
      this.#count -= 1;
      this.freeIfUnused();
    };
  }

  /** Remembers the stream of the last close. */
  setReleaseOptions(options: StreamOption): void {
    this.#releaseOptions = options;
  }

  /** Frees the memory if nobody refers to it. */
  freeIfUnused(): void {
    if (this.#count === 0) this.free();
  }

  /** Frees the memory, whoever refers to it; the second time does nothing. */
  free(): void {
    if (this.#isFreed) return;
    this.#isFreed = true;
    this.#count = 0;
    this.openPointers.discardAll('its memory was freed already');
    this.#finalizer?.(this.#releaseOptions);
  }
}

/**
 * What a pointer is made of, each read once; where the memory is stays unchecked, so that the
 * finalizer can be called for what is wrong.
 *
 * @param kind the class of the pointer, for messages
 * @throws TypeError
 */
function readInit(kind: string, init: PointerInit): PointerInit {
  const known = ['context', 'pointer', 'byteLength', 'owner', 'finalizer'] as const;
  // A missing init is refused as one without a context.
  const own = checkOptions(init, known, kind) as PointerInit;
  checkInstance(own.context, Context, 'context');
  if (own.finalizer !== undefined && typeof own.finalizer !== 'function')
    throw new TypeError('finalizer must be a function');
  return own;
}

/** Where the memory of a pointer is. @throws TypeError, RangeError */
function checkRange({ pointer, byteLength }: PointerInit): void {
  checkInteger(pointer, 'pointer', 1);
  checkInteger(byteLength, 'byteLength', 0, Number.MAX_SAFE_INTEGER - pointer);
}

/** What a pointer of a memory manager is made of. */
export interface PointerInit {
  readonly context: Context;
  /** The address of the first byte. */
  readonly pointer: number;
  readonly byteLength: number;
  /** What must not be collected while the pointer is used; held, never touched. */
  readonly owner?: unknown;
  /** Gives the memory back. Absent where someone else does. */
  readonly finalizer?: Finalizer;
}

/** @internal How a pointer refers to its memory. */
export interface PointerState {
  readonly kind: string;
  /** What the pointer is made of, as it was read. */
  readonly init: PointerInit;
  readonly referenceCount: ReferenceCount;
  /** Gives the pointer's own reference up. */
  readonly release: () => void;
  /** What it is a view of: not to be taken for lost while the view lives. */
  readonly parent?: MemoryPointer;
}

/** @internal The first pointer to some memory: a reference by itself. */
function newPointerState(init: PointerInit): PointerState {
  const own = readInit('MemoryPointer', init);
  const referenceCount = new ReferenceCount(own);
  return { kind: 'MemoryPointer', init: own, referenceCount, release: referenceCount.add() };
}

/**
 * Device memory that a memory manager gives out, as numba's class of that name: it is freed, by its
 * finalizer, when it was closed and all that `own()` and `view()` gave of it were.
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
  constructor(init: PointerInit, hold: PointerState);
  constructor(init: PointerInit, hold: PointerState = newPointerState(init)) {
    const { context, pointer, byteLength, owner } = hold.init;
    checkRange(hold.init);
    super(hold.kind, { owner: hold.referenceCount.openPointers, release: hold.release });
    this.context = context;
    this.byteLength = byteLength;
    this.#pointer = pointer as CUdeviceptr;
    this.#owner = owner;
    this.#state = hold;
  }

  /** The device address of the first byte. @throws ClosedError */
  get pointer(): CUdeviceptr {
    this.assertOpen();
    return this.#pointer;
  }

  /** What it keeps alive; a pointer that nobody gave an owner owns itself. */
  get owner(): unknown {
    return this.#owner ?? this;
  }

  /** How many open pointers keep the memory, this one and others. */
  get refct(): number {
    return this.closed ? 0 : this.#state.referenceCount.count;
  }

  /** Another pointer to the same bytes: the memory lives until both are closed. */
  own(): MemoryPointer {
    return this.view(0);
  }

  /**
   * A pointer to the bytes from `start` up to `stop`, which keeps the whole memory alive.
   *
   * @throws RangeError beyond the memory, ClosedError
   */
  view(start: number, stop: number = this.byteLength): MemoryPointer {
    const { pointer } = this;
    checkInteger(start, 'start', 0, this.byteLength);
    checkInteger(stop, 'stop', start, this.byteLength);
    const { referenceCount } = this.#state;
    const { context, owner } = this;
    const init = { context, pointer: pointer + start, byteLength: stop - start, owner };
    const release = referenceCount.add();
    return new MemoryPointer(init, {
      kind: 'MemoryPointer',
      init,
      referenceCount,
      release,
      parent: this,
    });
  }

  /**
   * Frees the memory now, whoever still refers to it.
   *
   * @throws ClosedError the second time
   */
  free(): void {
    this.assertOpen();
    this.#state.referenceCount.free();
  }

  /** Gives up this reference; the last one frees, in the order of `stream` where the finalizer cares. */
  override close(options?: StreamOption): void {
    const stream = streamOption(options, 'close');
    if (stream && !this.closed) this.#state.referenceCount.setReleaseOptions({ stream });
    super.close();
  }
}

/** @internal A pointer that is no reference by itself: closing it frees what nobody uses. */
function newUncountedState(kind: string, init: PointerInit): PointerState {
  const own = readInit(kind, init);
  const referenceCount = new ReferenceCount(own);
  return { kind, init: own, referenceCount, release: () => referenceCount.freeIfUnused() };
}

/**
 * Device memory that lives as long as what `own()` and `view()` gave of it, as numba's class of
 * that name: the usual answer of `memalloc`.
 *
 * @example
 * return new cuda.AutoFreePointer({ context, pointer, byteLength, finalizer });
 */
export class AutoFreePointer extends MemoryPointer {
  constructor(init: PointerInit);
  /** @internal */
  constructor(init: PointerInit, hold: PointerState);
  constructor(init: PointerInit, hold: PointerState = newUncountedState('AutoFreePointer', init)) {
    super(init, hold);
  }
}

/**
 * Page-locked host memory that the device reaches too, as numba's `MappedMemory`: `memhostalloc`
 * and `mempin` answer with one for `{ mapped: true }`. It is made of the host's address, and asks
 * the driver for the device's.
 *
 * @throws CudaError where the driver does not know the memory, TypeError or RangeError for what is
 * no range: the finalizer has been called then
 * @see https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__MEM.html
 */
export class MappedPointer extends AutoFreePointer {
  readonly hostPointer: Address;

  /** @param init with the host's address as `pointer` */
  constructor(init: PointerInit) {
    const hold = newUncountedState('MappedPointer', init);
    const { pointer: hostPointer } = hold.init;
    const pointer = deviceAddressOf(hold.init, hold.release);
    super(init, { ...hold, init: { ...hold.init, pointer } });
    this.hostPointer = hostPointer as Address;
  }
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

/**
 * Page-locked host memory, as numba's `PinnedMemory`: `memhostalloc` and `mempin` answer with one.
 * It has one user, who closes it; the finalizer is called then.
 */
export class PinnedPointer extends Resource {
  readonly context: Context;
  readonly byteLength: number;
  /** What it keeps alive, e.g. the array that is pinned. */
  readonly owner: unknown;
  readonly #pointer: Address;

  /** @param init with the host's address as `pointer` */
  constructor(init: PointerInit) {
    const own = readInit('PinnedPointer', init);
    const references = new ReferenceCount(own);
    checkRange(own);
    super('PinnedPointer', { owner: references.openPointers, release: references.add() });
    this.context = own.context;
    this.byteLength = own.byteLength;
    this.owner = own.owner;
    this.#pointer = own.pointer as Address;
  }

  /** The host address of the first byte. @throws ClosedError */
  get pointer(): Address {
    this.assertOpen();
    return this.#pointer;
  }
}
