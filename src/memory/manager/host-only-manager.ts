import { withAddress } from '../../../ffi/native.ts';
import { checkBoolean, checkInteger, checkOptions, type HostMemory } from '../../arguments.ts';
import { allocateHost } from '../host-allocation.ts';
import type { HeldViews } from '../host-views.ts';
import { endLock } from '../page-lock.ts';
import { checkPinnable, lockHost } from '../pin.ts';
import { BaseMemoryManager, type MemhostallocOptions, type MempinOptions } from './base-manager.ts';
import { MappedPointer } from './mapped-pointer.ts';
import type { PointerInit } from './memory-pointer.ts';
import { PinnedPointer } from './pinned-pointer.ts';

type HostPointer = PinnedPointer | MappedPointer;

/** The views of host memory that can be retired under them, by its pointer. */
const views = new WeakMap<HostPointer, HeldViews>();

/** @internal The views that a pointer brings along, where it is of {@link HostOnlyMemoryManager}. */
export const viewsOf = (pointer: HostPointer): HeldViews | undefined => views.get(pointer);

/**
 * A memory manager whose host half is done, by cuffi itself: a plugin that extends it writes
 * `memalloc`, `getIpcHandle`, `getMemoryInfo` and `interfaceVersion`, and calls `super.reset()` in
 * a `reset` of its own.
 */
export abstract class HostOnlyMemoryManager extends BaseMemoryManager {
  /** What is out since the last reset of the context. A pointer that is dropped must be collected. */
  readonly #out = new Set<WeakRef<HostPointer>>();
  #resets = 0;

  /** @throws RangeError where the system has no such memory, NotSupportedError, CudaError */
  memhostalloc(byteLength: number, options?: MemhostallocOptions): HostPointer {
    checkInteger(byteLength, 'byteLength', 1);
    const { mapped, portable, writeCombined } = checkOptions(
      options,
      ['mapped', 'portable', 'writeCombined'],
      'memhostalloc',
    );
    const kind = {
      mapped: checkBoolean(mapped, 'mapped', false),
      portable: checkBoolean(portable, 'portable', true),
      writeCombined: checkBoolean(writeCombined, 'writeCombined', false),
    };
    const { context } = this;
    const { address, held, release } = allocateHost(context, byteLength, kind);
    const pointer = this.#give(kind.mapped, { context, pointer: address, byteLength }, release);
    views.set(pointer, held);
    return pointer;
  }

  /** @throws RangeError where a page is locked already, NotSupportedError, CudaError */
  mempin(owner: HostMemory, options?: MempinOptions): HostPointer {
    const { mapped, portable } = checkOptions(options, ['mapped', 'portable'], 'mempin');
    const flags = {
      mapped: checkBoolean(mapped, 'mapped', false),
      portable: checkBoolean(portable, 'portable', true),
    };
    const memory = checkPinnable(owner, 'owner');
    const { context } = this;
    const unlock = lockHost(context, memory, 'owner', flags);
    const init = withAddress(memory, (pointer) => ({
      context,
      pointer,
      byteLength: memory.byteLength,
      owner,
    }));
    return this.#give(flags.mapped, init, () => {
      endLock(unlock);
      context.releases.submit(unlock);
    });
  }

  /** Gives back all host memory that is still out. */
  reset(): void {
    const out = [...this.#out].reverse();
    this.#out.clear();
    for (const reference of out) {
      // What is collected already goes back by its own finalizer, or with the context.
      const pointer = reference.deref();
      if (!pointer) continue;
      if (pointer instanceof MappedPointer && !pointer.closed) pointer.free();
      else pointer.close();
    }
  }

  deferCleanup(): Disposable {
    return this.context.deferCleanup();
  }

  #give(mapped: boolean, init: PointerInit, release: () => void): HostPointer {
    const { resets } = this.context;
    // After a reset no finalizer took the earlier ones out.
    if (this.#resets !== resets) this.#out.clear();
    this.#resets = resets;
    const out = this.#out;
    let reference: WeakRef<HostPointer> | undefined;
    // Lives as long as the memory is out, so it must not refer to the pointer.
    const finalizer = (): void => {
      if (reference) out.delete(reference);
      release();
    };
    const pointer = mapped
      ? new MappedPointer({ ...init, finalizer })
      : new PinnedPointer({ ...init, finalizer });
    reference = new WeakRef(pointer);
    out.add(reference);
    return pointer;
  }
}
