/** Host memory as ArrayBuffers, and a callback for when no view of it is left. */
import { MAX_VIEW_BYTE_LENGTH, viewMemory } from '../../ffi/native.ts';
import type { Address } from '../../ffi/types.ts';
import type { Context } from '../context.ts';
import { ClosedError } from '../errors.ts';
import { releaseOrWarn } from '../lifetime.ts';
import type { ReleaseOptions } from '../release-queue.ts';
import { checkInteger, formatBytes } from '../validate.ts';

/**
 * The views of a range of host memory. V8 accounts for all bytes of each view. So the full range
 * has one view, and a repeated window returns the same view while it is alive.
 */
export class HostViews {
  readonly #address: Address;
  #byteLength: number;
  readonly #windows = new Map<string, WeakRef<ArrayBuffer>>();
  #fullView: ArrayBuffer | undefined;
  #wasViewed = false;
  #isRetiring = false;

  /**
   * @param whenUnused called once, after this object and all its views were collected; must not
   * reference this object
   */
  constructor(address: Address, byteLength: number, whenUnused: () => void) {
    this.#address = address;
    this.#byteLength = byteLength;
    finalizers.register(this, whenUnused, this);
  }

  /** Whether any view was ever made. */
  get wasViewed(): boolean {
    return this.#wasViewed;
  }

  /** Limits later views to the first `byteLength` bytes: a manager may have allocated more. */
  shorten(byteLength: number): void {
    this.#byteLength = byteLength;
  }

  /**
   * Whether the memory was closed. Its views then read zeros, at once or when the GPU is done with
   * it.
   */
  get isRetiring(): boolean {
    return this.#isRetiring;
  }

  /** Notes that the memory was closed and will be retired. */
  retire(): void {
    this.#isRetiring = true;
  }

  /**
   * Whether a view was detached: another ArrayBuffer has its memory, and its collection cannot be
   * observed.
   */
  get hasDetachedView(): boolean {
    const windows = [...this.#windows.values()].map((reference) => reference.deref());
    return [this.#fullView, ...windows].some((view) => view?.byteLength === 0);
  }

  /** The full range. @throws RangeError if it is longer than an ArrayBuffer can be */
  get fullView(): ArrayBuffer {
    if (this.#byteLength > MAX_VIEW_BYTE_LENGTH)
      throw new RangeError(
        `${formatBytes(this.#byteLength)} do not fit in one ArrayBuffer of at most ${MAX_VIEW_BYTE_LENGTH}: use window(byteOffset, byteLength)`,
      );
    this.#fullView ??= this.#view(0, this.#byteLength);
    return this.#fullView;
  }

  /** A part of the range as a separate ArrayBuffer. @throws RangeError beyond the end */
  window(byteOffset: number, byteLength: number): ArrayBuffer {
    checkInteger(byteOffset, 'byteOffset', 0, this.#byteLength - 1);
    const maxByteLength = Math.min(this.#byteLength - byteOffset, MAX_VIEW_BYTE_LENGTH);
    checkInteger(byteLength, 'byteLength', 1, maxByteLength);
    const key = `${byteOffset} ${byteLength}`;
    const existing = this.#windows.get(key)?.deref();
    if (existing) return existing;
    for (const [old, reference] of this.#windows) {
      if (!reference.deref()) this.#windows.delete(old);
    }
    const view = this.#view(byteOffset, byteLength);
    this.#windows.set(key, new WeakRef(view));
    return view;
  }

  /** Cancels `whenUnused`: no view exists, and none will be made. */
  cancelFinalizer(): void {
    finalizers.unregister(this);
  }

  #view(byteOffset: number, byteLength: number): ArrayBuffer {
    const view = viewMemory((this.#address + byteOffset) as Address, byteLength);
    forbidTransfer(view);
    this.#wasViewed = true;
    viewsByBuffer.set(view, this);
    return view;
  }
}

/** @throws ClosedError if host memory is a view of a closed buffer, which reads zeros */
export function assertNotRetired(host: Uint8Array): void {
  if (viewsByBuffer.get(host.buffer)?.isRetiring)
    throw new ClosedError(
      'the host memory belongs to a closed buffer: use it before close(), and within its using scope',
    );
}

/** An open object's reference to its views; cleared by its release. */
export interface ViewsReference {
  views: HostViews | undefined;
}

/** Viewed host memory and how to release it. */
export interface ViewedMemory {
  readonly viewsReference: ViewsReference;
  readonly release: () => void;
}

/**
 * Views memory that the driver mapped here. Calls `free` when the memory was released, no view of
 * it is left and the GPU is done with it. `free` must not reference the result.
 *
 * @param options of the release: for device memory, its size
 */
export function viewDriverMemory(
  context: Context,
  address: Address,
  byteLength: number,
  free: () => void,
  options: ReleaseOptions = {},
): ViewedMemory {
  const submit = makeRelease(context, free, options);
  const viewsReference: ViewsReference = { views: new HostViews(address, byteLength, submit) };
  const release = (): void => {
    const { views } = viewsReference;
    viewsReference.views = undefined;
    if (views?.hasDetachedView) {
      views.cancelFinalizer();
      warnOfDetachedView(byteLength, 'they are never freed');
      return;
    }
    if (!views || views.wasViewed) return;
    views.cancelFinalizer();
    submit();
  };
  return { viewsReference, release };
}

/**
 * Warns that memory stays allocated until the process exits, because a view was transferred by a
 * BYOB reader or `ArrayBuffer.prototype.transfer`.
 */
export function warnOfDetachedView(byteLength: number, what: string): void {
  process.emitWarning(
    `${formatBytes(byteLength)} of host memory were closed after their ArrayBuffer was transferred: ${what}`,
    { code: 'CUFFI_DETACHED' },
  );
}

// ---- How views are kept alive, finalized and protected from transfer ----

/** Keeps each view's {@link HostViews} alive as long as the view. */
const viewsByBuffer = new WeakMap<ArrayBufferLike, HostViews>();

// As for resources, a finalizer only schedules the work.
const finalizers = new FinalizationRegistry<() => void>((whenUnused) => {
  setImmediate(() => releaseOrWarn(whenUnused));
});

const throwOnTransfer = {
  value: (): never => {
    throw new TypeError('a view of page-locked or managed memory cannot be transferred');
  },
};

/** A transferred view would outlive the object that keeps the memory alive. */
function forbidTransfer(view: ArrayBuffer): void {
  for (const move of ['transfer', 'transferToFixedLength'])
    if (move in view) Object.defineProperty(view, move, throwOnTransfer);
}

// The closure lives as long as a view. Made here, it captures nothing else.
const makeRelease =
  (context: Context, free: () => void, options: ReleaseOptions): (() => void) =>
  () =>
    context.releases.enqueue(free, options);
