import { checkInstance, checkInteger, checkOptions } from '../../arguments.ts';
import { Context } from '../../context.ts';
import { ResourceSet } from '../../resource-set.ts';
import type { StreamOption } from '../buffer-options.ts';
import type { PointerInit } from './memory-pointer.ts';

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
export class References {
  /** The open pointers: all are closed at once when the memory goes. */
  readonly pointers: ResourceSet;
  readonly #finalizer: Finalizer | undefined;
  #count = 0;
  #isFreed = false;
  #last: StreamOption = {};

  /** @param init as {@link ownInit} returns it */
  constructor({ context, finalizer }: PointerInit) {
    this.pointers = new ResourceSet(context.resources);
    this.#finalizer = finalizer;
  }

  get count(): number {
    return this.#count;
  }

  /** One reference more; answers how to give it up, once. */
  take(): () => void {
    this.#count += 1;
    return () => {
      this.#count -= 1;
      this.freeUnused();
    };
  }

  /** Remembers the stream of the last close. */
  follow(options: StreamOption): void {
    this.#last = options;
  }

  /** Frees the memory if nobody refers to it. */
  freeUnused(): void {
    if (this.#count === 0) this.free();
  }

  /** Frees the memory, whoever refers to it; the second time does nothing. */
  free(): void {
    if (this.#isFreed) return;
    this.#isFreed = true;
    this.#count = 0;
    this.pointers.abandonAll('its memory was freed already');
    this.#finalizer?.(this.#last);
  }
}

/**
 * What a pointer is made of, each read once; where the memory is stays unchecked, so that the
 * finalizer can be called for what is wrong.
 *
 * @param kind the class of the pointer, for messages
 * @throws TypeError
 */
export function ownInit(kind: string, init: PointerInit): PointerInit {
  const known = ['context', 'pointer', 'byteLength', 'owner', 'finalizer'] as const;
  // A missing init is refused as one without a context.
  const own = checkOptions(init, known, kind) as PointerInit;
  checkInstance(own.context, Context, 'context');
  if (own.finalizer !== undefined && typeof own.finalizer !== 'function')
    throw new TypeError('finalizer must be a function');
  return own;
}

/** Where the memory of a pointer is. @throws TypeError, RangeError */
export function checkPlace({ pointer, byteLength }: PointerInit): void {
  checkInteger(pointer, 'pointer', 1);
  checkInteger(byteLength, 'byteLength', 0, Number.MAX_SAFE_INTEGER - pointer);
}
