import type { CUdeviceptr } from '../../../ffi/types.ts';
import { checkInteger } from '../../arguments.ts';
import type { Context } from '../../context.ts';
import { Resource } from '../../resource.ts';
import { streamOption } from '../buffer-copies.ts';
import type { StreamOption } from '../buffer-options.ts';
import { checkPlace, type Finalizer, ownInit, References } from './references.ts';

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
export interface Hold {
  readonly kind: string;
  /** What the pointer is made of, as it was read. */
  readonly init: PointerInit;
  readonly references: References;
  /** Gives the pointer's own reference up. */
  readonly release: () => void;
  /** What it is a view of: not to be taken for lost while the view lives. */
  readonly base?: MemoryPointer;
}

/** @internal The first pointer to some memory: a reference by itself. */
function firstHold(init: PointerInit): Hold {
  const own = ownInit('MemoryPointer', init);
  const references = new References(own);
  return { kind: 'MemoryPointer', init: own, references, release: references.take() };
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
  readonly #hold: Hold;

  constructor(init: PointerInit);
  /** @internal */
  constructor(init: PointerInit, hold: Hold);
  constructor(init: PointerInit, hold: Hold = firstHold(init)) {
    const { context, pointer, byteLength, owner } = hold.init;
    checkPlace(hold.init);
    super(hold.kind, { owner: hold.references.pointers, release: hold.release });
    this.context = context;
    this.byteLength = byteLength;
    this.#pointer = pointer as CUdeviceptr;
    this.#owner = owner;
    this.#hold = hold;
  }

  /** The device address of the first byte. @throws ClosedError */
  get pointer(): CUdeviceptr {
    this.requireOpen();
    return this.#pointer;
  }

  /** What it keeps alive; a pointer that nobody gave an owner owns itself. */
  get owner(): unknown {
    return this.#owner ?? this;
  }

  /** How many open pointers keep the memory, this one and others. */
  get refct(): number {
    return this.closed ? 0 : this.#hold.references.count;
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
    const { references } = this.#hold;
    const { context, owner } = this;
    const init = { context, pointer: pointer + start, byteLength: stop - start, owner };
    const release = references.take();
    return new MemoryPointer(init, {
      kind: 'MemoryPointer',
      init,
      references,
      release,
      base: this,
    });
  }

  /**
   * Frees the memory now, whoever still refers to it.
   *
   * @throws ClosedError the second time
   */
  free(): void {
    this.requireOpen();
    this.#hold.references.free();
  }

  /** Gives up this reference; the last one frees, in the order of `stream` where the finalizer cares. */
  override close(options?: StreamOption): void {
    const stream = streamOption(options, 'close');
    if (stream && !this.closed) this.#hold.references.follow({ stream });
    super.close();
  }
}
