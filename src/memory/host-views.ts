/** Host memory as ArrayBuffers, and the moment when nobody can touch it any more. */
import { MAX_VIEW_BYTE_LENGTH, viewMemory } from '../../ffi/native.ts';
import type { Address } from '../../ffi/types.ts';
import type { Context } from '../context.ts';
import { ClosedError } from '../errors.ts';
import { releaseOrWarn } from '../lifetime.ts';
import type { ReleaseOptions } from '../release-queue.ts';
import { checkInteger } from '../validate.ts';

/** Keeps each view's {@link HostViews} as long as the view: the last one takes it along. */
const viewsByBuffer = new WeakMap<ArrayBuffer, HostViews>();

// As for resources: a finalizer only queues what is to be done.
const finalizers = new FinalizationRegistry<() => void>((whenUnused) => {
  setImmediate(() => releaseOrWarn(whenUnused));
});

const throwOnTransfer = {
  value: (): never => {
    throw new TypeError('a view of page-locked or managed memory cannot be transferred');
  },
};

/** A moved view would outlive the object that the memory's life hangs on. */
function forbidTransfer(view: ArrayBuffer): void {
  for (const move of ['transfer', 'transferToFixedLength'])
    if (move in view) Object.defineProperty(view, move, throwOnTransfer);
}

/**
 * Says that memory stays for the life of the process, as a view of it was moved: by a BYOB reader,
 * or by `ArrayBuffer.prototype.transfer`.
 */
export function warnOfDetachedView(byteLength: number, what: string): void {
  process.emitWarning(
    `${byteLength} bytes of host memory were closed after their ArrayBuffer was transferred: ${what}`,
    { code: 'CUFFI_DETACHED' },
  );
}

/**
 * The views of a range of host memory. Each costs V8 an account of all its bytes, so the whole has
 * one, and a window that is asked for again is the same while anybody has it.
 */
export class HostViews {
  readonly #address: Address;
  #byteLength: number;
  readonly #windows = new Map<string, WeakRef<ArrayBuffer>>();
  #fullView: ArrayBuffer | undefined;
  #wasViewed = false;
  #isRetiring = false;

  /**
   * @param whenUnused called once, after this object and all views of it were collected; must not
   * refer to this object
   */
  constructor(address: Address, byteLength: number, whenUnused: () => void) {
    this.#address = address;
    this.#byteLength = byteLength;
    finalizers.register(this, whenUnused, this);
  }

  /** Whether there ever was a view. */
  get wasViewed(): boolean {
    return this.#wasViewed;
  }

  /** From now on only the first `byteLength` bytes are viewed: a manager may have given out more. */
  shorten(byteLength: number): void {
    this.#byteLength = byteLength;
  }

  /** Whether the memory turns to zeros under its views, at once or when the GPU is done with it. */
  get isRetiring(): boolean {
    return this.#isRetiring;
  }

  /** Says that the memory was closed and will be retired. */
  retire(): void {
    this.#isRetiring = true;
  }

  /**
   * Whether a view was found detached: another ArrayBuffer has its memory, and nothing here is told
   * when that one is collected.
   */
  get hasDetachedView(): boolean {
    const windows = [...this.#windows.values()].map((reference) => reference.deref());
    return [this.#fullView, ...windows].some((view) => view?.byteLength === 0);
  }

  /** All of it. @throws RangeError where it is longer than an ArrayBuffer can be */
  get fullView(): ArrayBuffer {
    if (this.#byteLength > MAX_VIEW_BYTE_LENGTH)
      throw new RangeError(
        `${this.#byteLength} bytes are more than the ${MAX_VIEW_BYTE_LENGTH} of one ArrayBuffer: use window(byteOffset, byteLength)`,
      );
    this.#fullView ??= this.#view(0, this.#byteLength);
    return this.#fullView;
  }

  /** A part of it, as an ArrayBuffer of its own. @throws RangeError beyond the end */
  window(byteOffset: number, byteLength: number): ArrayBuffer {
    checkInteger(byteOffset, 'byteOffset', 0, this.#byteLength - 1);
    const most = Math.min(this.#byteLength - byteOffset, MAX_VIEW_BYTE_LENGTH);
    checkInteger(byteLength, 'byteLength', 1, most);
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

  /** Calls off `whenUnused`: nobody has a view, and nobody will. */
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

/** @throws ClosedError where host memory is a view of a closed buffer, and turns to zeros */
export function assertNotRetired(host: Uint8Array): void {
  if (host.buffer instanceof ArrayBuffer && viewsByBuffer.get(host.buffer)?.isRetiring)
    throw new ClosedError('the host memory is that of a closed buffer');
}

/** How an open object holds on to its views; what was released holds none. */
export interface ViewsReference {
  views: HostViews | undefined;
}

/** Host memory that is viewed, and how its owner gives it up. */
export interface ViewedMemory {
  readonly viewsReference: ViewsReference;
  readonly release: () => void;
}

// Made here, so that the closure, which lives as long as a view, refers to nothing else.
const makeRelease =
  (context: Context, free: () => void, options: ReleaseOptions): (() => void) =>
  () =>
    context.releases.enqueue(free, options);

/**
 * Memory that the driver mapped here: `free` is called when it was released, nobody can touch a
 * view of it, and the GPU is done with it. `free` must not refer to what comes back.
 *
 * @param options what is known of the release: memory of the device says its bytes there
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
      warnOfDetachedView(byteLength, 'they are never given back');
      return;
    }
    if (!views || views.wasViewed) return;
    views.cancelFinalizer();
    submit();
  };
  return { viewsReference, release };
}
