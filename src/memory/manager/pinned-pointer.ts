import type { Address } from '../../../ffi/types.ts';
import type { Context } from '../../context.ts';
import { Resource } from '../../resource.ts';
import type { PointerInit } from './memory-pointer.ts';
import { checkPlace, ownInit, References } from './references.ts';

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
    const own = ownInit('PinnedPointer', init);
    const references = new References(own);
    checkPlace(own);
    super('PinnedPointer', { owner: references.pointers, release: references.take() });
    this.context = own.context;
    this.byteLength = own.byteLength;
    this.owner = own.owner;
    this.#pointer = own.pointer as Address;
  }

  /** The host address of the first byte. @throws ClosedError */
  get pointer(): Address {
    this.requireOpen();
    return this.#pointer;
  }
}
