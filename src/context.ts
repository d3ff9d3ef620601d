import { inspect } from 'node:util';
import { OUT0, OUT1, OUT3, readHandle, readInt32, readSize } from '../ffi/arena.ts';
import { CU_STREAM_LEGACY, type LimitName, limits } from '../ffi/constants.ts';
import { cu, selectionCount } from '../ffi/driver.ts';
import { CUresult } from '../ffi/results.ts';
import type { CUcontext, CUstream } from '../ffi/types.ts';
import { check, isReady } from './check.ts';
import { Device } from './device.ts';
import { initialize } from './driver.ts';
import { CuffiError, isSticky, NotSupportedError } from './errors.ts';
import { assertNotCapturing, isCapturing, runOutsideCapture } from './graph-capture.ts';
import { releaseOrWarn, runAll, Scope } from './lifetime.ts';
import { setLossDetector } from './lost-context.ts';
import { pollUntil, type WaitOptions } from './poller.ts';
import { ReleaseQueue, releaseLimits } from './release-queue.ts';
import { assertInternal, checkInstance, checkInteger, formatValue } from './validate.ts';
import { WorkTracker } from './work-tracker.ts';

/** Free and total memory of a device, in bytes. */
export interface MemoryInfo {
  readonly free: number;
  readonly total: number;
}

/** A context as the driver keeps its accounts: its memory, its limits, its priorities. */
abstract class ContextState {
  /** @internal The memory manager that serves it, where one was set. */
  abstract get memory(): ContextMemory | undefined;

  abstract run<T>(use: () => T): T;

  /**
   * Free and total memory of the device, in bytes; other processes' use counts. A memory manager
   * that was set answers instead.
   */
  memoryInfo(): MemoryInfo {
    return this.memory?.getMemoryInfo() ?? this.deviceMemoryInfo();
  }

  /** @internal What the driver says of the device's memory. */
  deviceMemoryInfo(): MemoryInfo {
    this.run(() => check(cu.cuMemGetInfo_v2(OUT0, OUT1), 'cuMemGetInfo_v2'));
    return { free: readSize(OUT0), total: readSize(OUT1) };
  }

  /** A limit of the context, e.g. `stackSize`, in bytes (depths and counts as such). */
  limit(name: LimitName): number {
    const number = limitNumber(name);
    this.run(() => check(cu.cuCtxGetLimit(OUT0, number), 'cuCtxGetLimit', () => `reading ${name}`));
    return readSize(OUT0);
  }

  /** Asks for another limit; the driver may round it. Answers what it is now. */
  setLimit(name: LimitName, value: number): number {
    const number = limitNumber(name);
    checkInteger(value, name);
    this.run(() =>
      check(cu.cuCtxSetLimit(number, value), 'cuCtxSetLimit', () => `setting ${name} to ${value}`),
    );
    return this.limit(name);
  }

  /** The priorities that streams can have; a lower number is a higher priority. */
  streamPriorityRange(): { readonly least: number; readonly greatest: number } {
    this.run(() =>
      check(cu.cuCtxGetStreamPriorityRange(OUT0, OUT1), 'cuCtxGetStreamPriorityRange'),
    );
    return { least: readInt32(OUT0), greatest: readInt32(OUT1) };
  }
}

function limitNumber(name: LimitName): number {
  if (!Object.hasOwn(limits, name))
    throw new TypeError(
      `there is no limit '${String(name)}'; known: ${Object.keys(limits).join(', ')}`,
    );
  return limits[name];
}

/** Where an object is made: in a context, or in the primary context of a device. */
export interface PlaceOptions {
  readonly context?: Context;
  /** A device or its ordinal. Default: device 0. */
  readonly device?: Device | number;
}

/** The primary contexts by ordinal, of the driver that was in use when they were made. */
let primaryContexts: { readonly selection: number; readonly byOrdinal: Map<number, Context> } = {
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
  readonly resources = new Scope(undefined, false, () => this.#isLost);
  /** @internal How to give back what is kept only to be quicker; nothing of it may throw. */
  readonly cacheTrimmers = new Set<() => void>();
  /** @internal Called when a reset has ended all that was queued in it; nothing of it may throw. */
  readonly onReset = new Set<() => void>();
  /** @internal What is known to run in it. */
  readonly workTracker = new WorkTracker(() => this.#handle);
  /** @internal Releases that wait for the GPU. */
  readonly releases = new ReleaseQueue(
    this.workTracker,
    releaseLimits(() => this.device.totalMemory),
    () => this.#isLost,
  );
  /** @internal The contexts whose memory it was allowed to reach. */
  readonly peerAccess = new PeerAccess(this);
  readonly #memory: ContextMemory | undefined;
  #handle: CUcontext | undefined;
  #isLost = false;

  private constructor(device: Device, handle: CUcontext | undefined) {
    assertInternal(device, Device, 'Context', 'Context.primary');
    super();
    this.device = device;
    this.#handle = handle;
    this.borrowed = handle !== undefined;
    this.#memory = createContextMemory(this);
  }

  /**
   * The primary context of a device: the same object each time, retained at its first use and
   * kept for the life of the process.
   */
  static primary(device: Device | number = 0): Context {
    const resolved = Device.resolve(device);
    if (primaryContexts.selection !== selectionCount())
      primaryContexts = { selection: selectionCount(), byOrdinal: new Map() };
    const context =
      primaryContexts.byOrdinal.get(resolved.ordinal) ?? new Context(resolved, undefined);
    primaryContexts.byOrdinal.set(resolved.ordinal, context);
    return context;
  }

  /** The context that is current on this thread, made by whomever; undefined where none is. */
  static current(): Context | undefined {
    const handle = currentHandle();
    return handle === undefined ? undefined : Context.fromHandle(handle);
  }

  /**
   * A context that another library made, borrowed: a new object at each call, except for a primary
   * context, which is {@link Context.primary}.
   */
  static fromHandle(handle: number): Context {
    const borrowedHandle = checkInteger(handle, 'handle', 1) as CUcontext;
    const device = deviceOf(borrowedHandle);
    return isPrimary(device, borrowedHandle)
      ? Context.primary(device)
      : new Context(device, borrowedHandle);
  }

  /** @internal The context that options name; by default the primary one of device 0. */
  static resolve({ context, device }: PlaceOptions): Context {
    if (context === undefined) return Context.primary(device === undefined ? 0 : device);
    if (device !== undefined) throw new TypeError('give either a context or a device, not both');
    return checkInstance(context, Context, 'context');
  }

  /** The driver's handle; a primary context is retained by asking for it. */
  get handle(): CUcontext {
    if (this.#handle === undefined) this.#handle = retainPrimary(this.device);
    return this.#handle;
  }

  /** @internal The memory manager that serves it, where one was set. */
  override get memory(): ContextMemory | undefined {
    return this.#memory?.isActive ? this.#memory : undefined;
  }

  /** @internal Whether an error has said that the context is lost. */
  get isLost(): boolean {
    return this.#isLost;
  }

  /** @internal Asks whether it is lost; whether it is, and was not known to be. */
  checkLoss(): boolean {
    if (this.#isLost || this.#handle === undefined) return false;
    this.#isLost = isSticky(this.workTracker.poll());
    return this.#isLost;
  }

  /** @internal Counts the resets: what was made under another count is gone. */
  get epoch(): number {
    return this.resources.epoch;
  }

  /**
   * Calls `use` while this context is current; afterwards what was current before is so again,
   * whether `use` returned or threw. `use` must be synchronous.
   *
   * @example
   * context.run(() => otherLibrary.usesTheCurrentContext());
   */
  override run<T>(use: () => T): T {
    if (typeof use !== 'function')
      throw new TypeError(`run takes a function, not ${formatValue(use)}`);
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
    assertNotCapturing('work in the default stream');
    this.run(() => this.workTracker.track(CU_STREAM_LEGACY as CUstream, () => call(0 as CUstream)));
  }

  /**
   * Waits, without blocking, for all work that was queued through cuffi, and for the default
   * stream. Work of other libraries in streams of theirs: {@link synchronizeSync} waits for it too.
   *
   * @throws CudaError where the work failed
   */
  async synchronize(options: WaitOptions = {}): Promise<void> {
    assertNotCapturing('waiting for a context');
    await pollUntil(() => isReady(this.workTracker.poll(), 'cuStreamQuery'), options);
  }

  /** Blocks the process until all work in the context is done. */
  synchronizeSync(): void {
    assertNotCapturing('waiting for a context');
    this.run(() => check(cu.cuCtxSynchronize(), 'cuCtxSynchronize'));
    this.workTracker.noteSynchronized();
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
    this.peerAccess.enable(checkInstance(other, Context, 'other'));
  }

  /** Takes back what {@link enablePeerAccess} gave; nothing where it was not given. */
  disablePeerAccess(other: Context): void {
    this.peerAccess.disable(checkInstance(other, Context, 'other'));
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
   *
   * @throws CudaError where the context cannot be entered: what waits is given back later
   */
  async flush(options: WaitOptions = {}): Promise<void> {
    for (const giveBack of this.cacheTrimmers) giveBack();
    await this.releases.flush(options, () => this.run(() => {}));
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
    assertNotCapturing('resetting a context');
    this.#assertOwned();
    // The driver ends the work of a context that cannot be entered, too.
    await pollUntil(() => this.workTracker.poll() !== CUresult.CUDA_ERROR_NOT_READY, options);
    this.resetSync();
  }

  /** As {@link reset}, at once: blocks until the GPU's work is done. */
  resetSync(): void {
    assertNotCapturing('resetting a context');
    this.#assertOwned();
    try {
      this.memory?.reset();
    } finally {
      this.#reset();
    }
  }

  #reset(): void {
    const reason = 'its context was reset';
    const isOpen = this.#handle !== undefined;
    releaseOrWarn(() => closeForReset(this, reason, isOpen));
    this.resources.discardAll(reason);
    this.releases.clear();
    this.workTracker.clear();
    const isRetained = this.#handle !== undefined;
    this.#handle = undefined;
    this.#isLost = false;
    try {
      resetPrimary(this.device, isRetained);
    } finally {
      // Also where the driver has failed: all is abandoned here, and nobody else would tell.
      for (const tell of [...this.onReset]) tell();
    }
  }

  override toString(): string {
    return `Context of ${this.device}${this.borrowed ? ', borrowed' : ''}`;
  }

  [inspect.custom](): string {
    return this.toString();
  }

  #assertOwned(): void {
    if (this.borrowed)
      throw new NotSupportedError(
        'a borrowed context belongs to another library: it is not reset from here',
      );
  }
}

/** The driver, by the number of its selection, of which a borrowed context was lost. */
let borrowedLossSelection = -1;

/**
 * A borrowed context is not asked whether it is lost: its owner may have destroyed it, and the driver
 * crashes when such a one is pushed. It must be one where no other is.
 */
function detectNewLoss(): boolean {
  const selection = selectionCount();
  const contexts =
    primaryContexts.selection === selection ? [...primaryContexts.byOrdinal.values()] : [];
  if (contexts.filter((context) => context.checkLoss()).length > 0) return true;
  if (borrowedLossSelection === selection || contexts.some((context) => context.isLost))
    return false;
  borrowedLossSelection = selection;
  return true;
}

/** Whether a loss was said in a capture, which a question would end: asked afterwards. */
let isDetectionDeferred = false;

setLossDetector(() => {
  if (!isCapturing()) return detectNewLoss();
  if (isDetectionDeferred) return false;
  isDetectionDeferred = true;
  runOutsideCapture(() => {
    isDetectionDeferred = false;
    detectNewLoss();
  });
  return true;
});

/** Where a memory manager is put, so that contexts know of it without knowing its room. */

/** What a context asks of the memory manager that serves it. */
export interface ContextMemory {
  /** False while the manager itself works: what it asks of its context, the driver answers. */
  readonly isActive: boolean;
  getMemoryInfo(): MemoryInfo;
  deferCleanup(): Disposable;
  reset(): void;
}

/** Makes what serves a context. */
type ContextMemoryFactory = (context: Context) => ContextMemory;

let chosenFactory: { readonly selection: number; readonly serve: ContextMemoryFactory } | undefined;
/** The driver selection in which the newest context was made. */
let lastContextSelection = -1;

/**
 * Chooses who serves the memory of all contexts of the driver in use.
 *
 * @throws CuffiError once there is a context, whose memory came from elsewhere
 */
export function setContextMemoryFactory(serve: ContextMemoryFactory): void {
  if (lastContextSelection === selectionCount())
    throw new CuffiError(
      'a memory manager is set before the first context is made: at the beginning of the program, ' +
        'before it makes buffers, streams or events',
    );
  chosenFactory = { selection: selectionCount(), serve };
}

/** What serves a new context; undefined where that is the driver. */
function createContextMemory(context: Context): ContextMemory | undefined {
  lastContextSelection = selectionCount();
  return chosenFactory?.selection === lastContextSelection
    ? chosenFactory.serve(context)
    : undefined;
}

/** What contexts ask of the driver: which is current, on which device, and whether the primary one. */

/** The context that is current on this thread, whoever made it. */
function currentHandle(): CUcontext | undefined {
  initialize();
  check(cu.cuCtxGetCurrent(OUT0), 'cuCtxGetCurrent');
  const handle = readHandle<CUcontext>(OUT0);
  return handle === 0 ? undefined : handle;
}

/** The device of a context that another library made. @throws CudaError where it is none */
function deviceOf(handle: CUcontext): Device {
  initialize();
  check(cu.cuCtxPushCurrent_v2(handle), 'cuCtxPushCurrent_v2', () => `borrowing context ${handle}`);
  const status = cu.cuCtxGetDevice(OUT0);
  const ordinal = readInt32(OUT0);
  check(cu.cuCtxPopCurrent_v2(OUT3), 'cuCtxPopCurrent_v2');
  check(status, 'cuCtxGetDevice');
  return Device.get(ordinal);
}

/** Retains the primary context of a device, until {@link resetPrimary}. */
function retainPrimary(device: Device): CUcontext {
  const { handle } = device;
  check(
    cu.cuDevicePrimaryCtxRetain(OUT0, handle),
    'cuDevicePrimaryCtxRetain',
    () => `opening the primary context of ${device}`,
  );
  return readHandle<CUcontext>(OUT0, () => cu.cuDevicePrimaryCtxRelease_v2(handle));
}

/** Destroys what is in the primary context of a device, whoever made it. */
function resetPrimary(device: Device, isRetained: boolean): void {
  const { handle } = device;
  const released = isRetained ? cu.cuDevicePrimaryCtxRelease_v2(handle) : 0;
  check(cu.cuDevicePrimaryCtxReset_v2(handle), 'cuDevicePrimaryCtxReset_v2');
  check(released, 'cuDevicePrimaryCtxRelease_v2');
}

/** Whether a context is the primary one of its device, whoever retained it. */
function isPrimary(device: Device, handle: CUcontext): boolean {
  check(cu.cuDevicePrimaryCtxGetState(device.handle, OUT0, OUT1), 'cuDevicePrimaryCtxGetState');
  if (readInt32(OUT1) === 0) return false;
  check(cu.cuDevicePrimaryCtxRetain(OUT0, device.handle), 'cuDevicePrimaryCtxRetain');
  const primary = readHandle<CUcontext>(OUT0);
  check(cu.cuDevicePrimaryCtxRelease_v2(device.handle), 'cuDevicePrimaryCtxRelease_v2');
  return primary === handle;
}

/**
 * Closes all that was made in a context, before a reset: the driver keeps virtual memory and pools
 * over one, and only closing gives them back. Both are made without opening the context, so there may
 * be some where it is not open.
 */
function closeForReset(context: Context, reason: string, isOpen: boolean): void {
  // A context that failed refuses all that follows: the reset is what is left.
  if (isOpen && context.run(() => cu.cuCtxSynchronize()) !== CUresult.CUDA_SUCCESS) return;
  const { workTracker, releases, resources } = context;
  workTracker.noteSynchronized();
  runAll([
    () => releases.drainAll(),
    () => resources.closeAll(reason),
    // What was closed in a deferral.
    () => releases.drainAll(),
    // Pools that keep nothing let go of what was freed when it is waited for.
    () => isOpen && context.synchronizeSync(),
  ]);
}

/** Which contexts of other devices a context may reach the memory of. */

/** The peers of one context. */
class PeerAccess {
  readonly #context: Context;
  /** The resets of both sides when access was given: it is gone with either. */
  readonly #enabled = new WeakMap<Context, readonly [own: number, other: number]>();

  constructor(context: Context) {
    this.#context = context;
  }

  /** Whether access was given through here and still holds. */
  has(other: Context): boolean {
    const epochs = this.#enabled.get(other);
    return epochs?.[0] === this.#context.epoch && epochs[1] === other.epoch;
  }

  /** Gives access; nothing where it was given. @throws NotSupportedError, TypeError */
  enable(other: Context): void {
    if (this.has(other)) return;
    const own = this.#context;
    assertOtherDevice(own, other);
    if (!own.device.canAccessPeer(other.device))
      throw new NotSupportedError(
        `${own.device} does not reach the memory of ${other.device}: copies between them go ` +
          'through the host, and need no access',
      );
    const peer = other.handle;
    const status = own.run(() => cu.cuCtxEnablePeerAccess(peer, 0));
    // Another library of the process may have been first.
    if (status !== CUresult.CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED)
      check(
        status,
        'cuCtxEnablePeerAccess',
        () => `letting ${own.device} reach the memory of ${other.device}`,
      );
    this.#enabled.set(other, [own.epoch, other.epoch]);
  }

  /** Takes it back, of other libraries too; nothing where it was not given. */
  disable(other: Context): void {
    const own = this.#context;
    assertOtherDevice(own, other);
    this.#enabled.delete(other);
    const peer = other.handle;
    const status = own.run(() => cu.cuCtxDisablePeerAccess(peer));
    if (status !== CUresult.CUDA_ERROR_PEER_ACCESS_NOT_ENABLED)
      check(
        status,
        'cuCtxDisablePeerAccess',
        () => `no longer letting ${own.device} reach the memory of ${other.device}`,
      );
  }
}

function assertOtherDevice(own: Context, other: Context): void {
  if (own.device === other.device)
    throw new TypeError(`both contexts are of ${own.device}: peers are of two devices`);
}
