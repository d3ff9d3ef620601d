import { inspect } from 'node:util';
import { OUT3 } from '../ffi/arena.ts';
import { CU_STREAM_LEGACY } from '../ffi/constants.ts';
import { cu, selectionCount } from '../ffi/driver.ts';
import type { CUcontext, CUstream } from '../ffi/types.ts';
import { Activity } from './activity.ts';
import { checkInstance, checkInteger, requireMade, shown } from './arguments.ts';
import { isCapturing, outsideCapture, refuseInCapture } from './capture.ts';
import { check, isReady } from './check.ts';
import * as driver from './context-driver.ts';
import { type ContextMemory, serveContext } from './context-memory.ts';
import { closeForReset } from './context-reset.ts';
import { ContextState } from './context-state.ts';
import { Device } from './device.ts';
import { isSticky, NotSupportedError } from './errors.ts';
import { findLostWith } from './lost.ts';
import { PeerAccess } from './peer-access.ts';
import { ReleaseQueue } from './release.ts';
import { releaseLimits } from './release-limits.ts';
import { releaseQuietly } from './resource.ts';
import { ResourceSet } from './resource-set.ts';
import { type WaitOptions, waitUntil } from './wait.ts';

/** Where an object is made: in a context, or in the primary context of a device. */
export interface PlaceOptions {
  readonly context?: Context;
  /** A device or its ordinal. Default: device 0. */
  readonly device?: Device | number;
}

/** The primary contexts by ordinal, of the driver that was in use when they were made. */
let primaries: { readonly selection: number; readonly byOrdinal: Map<number, Context> } = {
  selection: -1,
  byOrdinal: new Map(),
};

/**
 * A context: what a process has on a device. cuffi uses the primary one, which other libraries of
 * the process share, and never leaves a context current: calls that need one push it and pop it.
 *
 * @see https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__CTX.html
 */
export class Context extends ContextState {
  readonly device: Device;
  /** Whether another library owns it: it is never released or reset from here. */
  readonly borrowed: boolean;
  /** @internal What was made in it and is open. */
  readonly resources = new ResourceSet(undefined, false, () => this.#isLost);
  /** @internal How to give back what is kept only to be quicker; nothing of it may throw. */
  readonly spares = new Set<() => void>();
  /** @internal Called when a reset has ended all that was queued in it; nothing of it may throw. */
  readonly afterReset = new Set<() => void>();
  /** @internal What is known to run in it. */
  readonly activity = new Activity(() => this.#handle);
  /** @internal Releases that wait for the GPU. */
  readonly releases = new ReleaseQueue(
    this.activity,
    releaseLimits(() => this.device.totalMemory),
    () => this.#isLost,
  );
  /** @internal The contexts whose memory it was allowed to reach. */
  readonly peers = new PeerAccess(this);
  readonly #memory: ContextMemory | undefined;
  #handle: CUcontext | undefined;
  #isLost = false;

  private constructor(device: Device, handle: CUcontext | undefined) {
    requireMade(device, Device, 'Context', 'Context.primary');
    super();
    this.device = device;
    this.#handle = handle;
    this.borrowed = handle !== undefined;
    this.#memory = serveContext(this);
  }

  /**
   * The primary context of a device: the same object each time, retained at its first use and
   * kept for the life of the process.
   */
  static primary(device: Device | number = 0): Context {
    const of = Device.of(device);
    if (primaries.selection !== selectionCount())
      primaries = { selection: selectionCount(), byOrdinal: new Map() };
    const context = primaries.byOrdinal.get(of.ordinal) ?? new Context(of, undefined);
    primaries.byOrdinal.set(of.ordinal, context);
    return context;
  }

  /** The context that is current on this thread, made by whomever; undefined where none is. */
  static current(): Context | undefined {
    const handle = driver.currentHandle();
    return handle === undefined ? undefined : Context.fromHandle(handle);
  }

  /**
   * A context that another library made, borrowed: a new object at each call, except for a primary
   * context, which is {@link Context.primary}.
   */
  static fromHandle(handle: number): Context {
    const theirs = checkInteger(handle, 'handle', 1) as CUcontext;
    const device = driver.deviceOf(theirs);
    return driver.isPrimary(device, theirs) ? Context.primary(device) : new Context(device, theirs);
  }

  /** @internal The context that options name; by default the primary one of device 0. */
  static of({ context, device }: PlaceOptions): Context {
    if (context === undefined) return Context.primary(device === undefined ? 0 : device);
    if (device !== undefined) throw new TypeError('give either a context or a device, not both');
    return checkInstance(context, Context, 'context');
  }

  /** The driver's handle; a primary context is retained by asking for it. */
  get handle(): CUcontext {
    if (this.#handle === undefined) this.#handle = driver.retainPrimary(this.device);
    return this.#handle;
  }

  /** @internal The memory manager that serves it, where one was set. */
  override get memory(): ContextMemory | undefined {
    return this.#memory?.answers ? this.#memory : undefined;
  }

  /** @internal Whether an error has said that the context is lost. */
  get isLost(): boolean {
    return this.#isLost;
  }

  /** @internal Asks whether it is lost; whether it is, and was not known to be. */
  noteLoss(): boolean {
    if (this.#isLost || this.#handle === undefined) return false;
    this.#isLost = isSticky(this.activity.poll());
    return this.#isLost;
  }

  /** @internal Counts the resets: what was made under another count is gone. */
  get resets(): number {
    return this.resources.generation;
  }

  /**
   * Calls `use` while this context is current; afterwards what was current before is so again,
   * whether `use` returned or threw. `use` must be synchronous.
   *
   * @example
   * context.run(() => otherLibrary.usesTheCurrentContext());
   */
  override run<T>(use: () => T): T {
    if (typeof use !== 'function') throw new TypeError(`run takes a function, not ${shown(use)}`);
    check(cu.cuCtxPushCurrent_v2(this.handle), 'cuCtxPushCurrent_v2');
    let result: T;
    try {
      result = use();
    } catch (error) {
      cu.cuCtxPopCurrent_v2(OUT3);
      throw error;
    }
    // OUT3 alone: what `use` left in the other slots is yet to be read.
    check(cu.cuCtxPopCurrent_v2(OUT3), 'cuCtxPopCurrent_v2');
    if (result instanceof Promise)
      throw new TypeError(
        'run takes a synchronous function: the context is current only until it returns',
      );
    return result;
  }

  /**
   * @internal Makes a call that works in the legacy default stream (0). Not for recording events or
   * waiting: what it queues counts as work.
   */
  enqueue(call: (stream: CUstream) => void): void {
    refuseInCapture('work in the default stream');
    this.run(() => this.activity.marked(CU_STREAM_LEGACY as CUstream, () => call(0 as CUstream)));
  }

  /**
   * Waits, without blocking, for all work that was queued through cuffi, and for the default
   * stream. Work of other libraries in streams of theirs: {@link synchronizeSync} waits for it too.
   *
   * @throws CudaError where the work failed
   */
  async synchronize(options: WaitOptions = {}): Promise<void> {
    refuseInCapture('waiting for a context');
    await waitUntil(() => isReady(this.activity.poll(), 'cuStreamQuery'), options);
  }

  /** Blocks the process until all work in the context is done. */
  synchronizeSync(): void {
    refuseInCapture('waiting for a context');
    this.run(() => check(cu.cuCtxSynchronize(), 'cuCtxSynchronize'));
    this.activity.waitedForAll();
  }

  /**
   * Lets this context's streams and kernels use the memory of another device's context, directly
   * where there is a link between the devices; nothing where they may already. Memory of pools
   * has its own, `pool.setAccess`.
   *
   * @throws NotSupportedError where `device.canAccessPeer` says no
   * @see https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__PEER__ACCESS.html
   */
  enablePeerAccess(other: Context): void {
    this.peers.enable(checkInstance(other, Context, 'other'));
  }

  /** Takes back what {@link enablePeerAccess} gave; nothing where it was not given. */
  disablePeerAccess(other: Context): void {
    this.peers.disable(checkInstance(other, Context, 'other'));
  }

  /** What was closed and not given back yet, as the GPU may still use it. */
  get pendingReleases(): { readonly count: number; readonly byteLength: number } {
    return { count: this.releases.size, byteLength: this.releases.byteLength };
  }

  /**
   * Waits until what was closed while the GPU was busy has been given back. Device memory is when
   * the work queued before its `close()` is done; mappings of other processes' memory, pinned and
   * managed memory only when no work that cuffi knows of runs any more. The
   * staging memory of copies goes too, unless one is under way.
   */
  async flush(options: WaitOptions = {}): Promise<void> {
    for (const giveBack of this.spares) giveBack();
    await this.releases.flush(options);
  }

  /**
   * A scope in which nothing that is closed is given back to the driver, as numba's
   * `defer_cleanup()`: for moments in which the driver must not be made to wait. Scopes may be
   * nested; when the last one ends, also by an exception, releasing goes on.
   *
   * @example
   * {
   *   using _ = context.deferCleanup();
   *   buffer.close(); // freed after the scope
   * }
   */
  deferCleanup(): Disposable {
    return this.memory?.deferCleanup() ?? this.releases.defer();
  }

  /**
   * Destroys everything in the primary context, of other libraries too, once its work is done.
   * All objects made in it are closed; the context itself can be used again.
   */
  async reset(options: WaitOptions = {}): Promise<void> {
    refuseInCapture('resetting a context');
    this.#requireOwn();
    await waitUntil(() => this.activity.isIdle(), options);
    this.resetSync();
  }

  /** As {@link reset}, at once: blocks until the GPU's work is done. */
  resetSync(): void {
    refuseInCapture('resetting a context');
    this.#requireOwn();
    try {
      this.memory?.reset();
    } finally {
      this.#reset();
    }
  }

  #reset(): void {
    const reason = 'its context was reset';
    const isOpen = this.#handle !== undefined;
    releaseQuietly(() => closeForReset(this, reason, isOpen));
    this.resources.abandonAll(reason);
    this.releases.clear();
    this.activity.clear();
    const isRetained = this.#handle !== undefined;
    this.#handle = undefined;
    this.#isLost = false;
    try {
      driver.resetPrimary(this.device, isRetained);
    } finally {
      // Also where the driver has failed: all is abandoned here, and nobody else would tell.
      for (const tell of [...this.afterReset]) tell();
    }
  }

  override toString(): string {
    return `Context of ${this.device}${this.borrowed ? ', borrowed' : ''}`;
  }

  [inspect.custom](): string {
    return this.toString();
  }

  #requireOwn(): void {
    if (this.borrowed)
      throw new NotSupportedError(
        'a borrowed context belongs to another library: it is not reset from here',
      );
  }
}

/** The driver, by the number of its selection, of which a borrowed context was lost. */
let lostBorrowed = -1;

/**
 * A borrowed context is not asked whether it is lost: its owner may have destroyed it, and the driver
 * crashes when such a one is pushed. It must be one where no other is.
 */
function findLost(): boolean {
  const selection = selectionCount();
  const contexts = primaries.selection === selection ? [...primaries.byOrdinal.values()] : [];
  if (contexts.filter((context) => context.noteLoss()).length > 0) return true;
  if (lostBorrowed === selection || contexts.some((context) => context.isLost)) return false;
  lostBorrowed = selection;
  return true;
}

/** Whether a loss was said in a capture, which a question would end: asked afterwards. */
let isAskedLater = false;

findLostWith(() => {
  if (!isCapturing()) return findLost();
  if (isAskedLater) return false;
  isAskedLater = true;
  outsideCapture(() => {
    isAskedLater = false;
    findLost();
  });
  return true;
});
