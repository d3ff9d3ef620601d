import { type Hold, MemoryPointer, type PointerInit } from './memory-pointer.ts';
import { ownInit, References } from './references.ts';

/** @internal A pointer that is no reference by itself: closing it frees what nobody uses. */
export function unownedHold(kind: string, init: PointerInit): Hold {
  const own = ownInit(kind, init);
  const references = new References(own);
  return { kind, init: own, references, release: () => references.freeUnused() };
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
  constructor(init: PointerInit, hold: Hold);
  constructor(init: PointerInit, hold: Hold = unownedHold('AutoFreePointer', init)) {
    super(init, hold);
  }
}
