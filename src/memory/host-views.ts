/** Host memory as ArrayBuffers, and the moment when nobody can touch it any more. */
import { MAX_VIEW_BYTE_LENGTH, viewMemory } from '../../ffi/native.ts';
import type { Address } from '../../ffi/types.ts';
import type { Context } from '../context.ts';
import { ClosedError } from '../errors.ts';
import { releaseQuietly } from '../lifetime.ts';
import type { ReleaseOptions } from '../release-queue.ts';
import { checkInteger } from '../validate.ts';

/** Keeps each view's {@link HostViews} as long as the view: the last one takes it along. */
const viewsOf = new WeakMap<ArrayBuffer, HostViews>();

// As for resources: a finalizer only queues what is to be done.
const unused = new FinalizationRegistry<() => void>((whenUnused) => {
  setImmediate(() => releaseQuietly(whenUnused));
});

const refuseToMove = {
  value: (): never => {
    throw new TypeError('a view of page-locked or managed memory cannot be transferred');
  },
};

/** A moved view would outlive the object that the memory's life hangs on. */
function refuseMoves(view: ArrayBuffer): void {
  for (const move of ['transfer', 'transferToFixedLength'])
    if (move in view) Object.defineProperty(view, move, refuseToMove);
}

/**
 * Says that memory stays for the life of the process, as a view of it was moved: by a BYOB reader,
 * or by `ArrayBuffer.prototype.transfer`.
 */
export function warnOfMoved(byteLength: number, what: string): void {
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
  #whole: ArrayBuffer | undefined;
  #viewed = false;
  #retiring = false;

  /**
   * @param whenUnused called once, after this object and all views of it were collected; must not
   * refer to this object
   */
  constructor(address: Address, byteLength: number, whenUnused: () => void) {
    this.#address = address;
    this.#byteLength = byteLength;
    unused.register(this, whenUnused, this);
  }

  /** Whether there ever was a view. */
  get viewed(): boolean {
    return this.#viewed;
  }

  /** From now on only the first `byteLength` bytes are viewed: a manager may have given out more. */
  shorten(byteLength: number): void {
    this.#byteLength = byteLength;
  }

  /** Whether the memory turns to zeros under its views, at once or when the GPU is done with it. */
  get retiring(): boolean {
    return this.#retiring;
  }

  /** Says that the memory was closed and will be retired. */
  retire(): void {
    this.#retiring = true;
  }

  /**
   * Whether a view was found detached: another ArrayBuffer has its memory, and nothing here is told
   * when that one is collected.
   */
  get moved(): boolean {
    const windows = [...this.#windows.values()].map((reference) => reference.deref());
    return [this.#whole, ...windows].some((view) => view?.byteLength === 0);
  }

  /** All of it. @throws RangeError where it is longer than an ArrayBuffer can be */
  get whole(): ArrayBuffer {
    if (this.#byteLength > MAX_VIEW_BYTE_LENGTH)
      throw new RangeError(
        `${this.#byteLength} bytes are more than the ${MAX_VIEW_BYTE_LENGTH} of one ArrayBuffer: use window(byteOffset, byteLength)`,
      );
    this.#whole ??= this.#view(0, this.#byteLength);
    return this.#whole;
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
  dismiss(): void {
    unused.unregister(this);
  }

  #view(byteOffset: number, byteLength: number): ArrayBuffer {
    const view = viewMemory((this.#address + byteOffset) as Address, byteLength);
    refuseMoves(view);
    this.#viewed = true;
    viewsOf.set(view, this);
    return view;
  }
}

/** @throws ClosedError where host memory is a view of a closed buffer, and turns to zeros */
export function requireKept(host: Uint8Array): void {
  if (host.buffer instanceof ArrayBuffer && viewsOf.get(host.buffer)?.retiring)
    throw new ClosedError('the host memory is that of a closed buffer');
}

/** How an open object holds on to its views; what was released holds none. */
export interface HeldViews {
  views: HostViews | undefined;
}

/** Host memory that is viewed, and how its owner gives it up. */
export interface ViewedMemory {
  readonly held: HeldViews;
  readonly release: () => void;
}

// Made here, so that the closure, which lives as long as a view, refers to nothing else.
const submitting =
  (context: Context, free: () => void, options: ReleaseOptions): (() => void) =>
  () =>
    context.releases.submit(free, options);

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
  const submit = submitting(context, free, options);
  const held: HeldViews = { views: new HostViews(address, byteLength, submit) };
  const release = (): void => {
    const { views } = held;
    held.views = undefined;
    if (views?.moved) {
      views.dismiss();
      warnOfMoved(byteLength, 'they are never given back');
      return;
    }
    if (!views || views.viewed) return;
    views.dismiss();
    submit();
  };
  return { held, release };
}
