import { inspect, types } from 'node:util';
import { OUT0, OUT1, OUT3, readHandle, readInt32, readSize } from '../ffi/arena.ts';
import { CU_STREAM_LEGACY, type LimitName, limits } from '../ffi/constants.ts';
import { cu, selectionCount } from '../ffi/driver.ts';
import { CUresult } from '../ffi/results.ts';
import type { CUcontext, CUstream } from '../ffi/types.ts';
import { check, isReady } from './check.ts';
import { UNCLONEABLE } from './conversions.ts';
import { beginWait, type WaitOptions } from './deadline.ts';
import { Device } from './device.ts';
import { initialize } from './driver.ts';
import { CuffiError, isSticky, NotSupportedError } from './errors.ts';
import { assertNotCapturing, isCapturing, runOutsideCapture } from './graph-capture.ts';
import { releaseOrWarn, runAll, Scope } from './lifetime.ts';
import { setLossDetector } from './lost-context.ts';
import { pollUntil } from './poller.ts';
import { ReleaseQueue, releaseLimits } from './release-queue.ts';
import { assertInternal, checkInstance, checkInteger, formatValue } from './validate.ts';
import { blockUntil, doOtherThreadsWait, hasWaitingStreams } from './waits/waiting-streams.ts';
import { WorkCounters } from './waits/work-counters.ts';
import { WorkTracker } from './work-tracker.ts';

/** Free and total memory of a device, in bytes. */
export interface MemoryInfo {
  readonly free: number;
  readonly total: number;
}

/** Where an object is created: in a context, or in the primary context of a device. */
export interface PlaceOptions {
  readonly context?: Context;
  /** A device or its ordinal. Default: device 0. */
  readonly device?: Device | number;
}

/**
 * A context: the state of a process on a device. cuffi uses the primary context, which it shares with
 * other libraries of the process. It never leaves a context current: calls that need one push and pop it.
 *
 * @see https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__CTX.html
 */
export class Context {
  /** @internal Objects that have a context cannot be cloned, as their context cannot. */
  readonly uncloneable = UNCLONEABLE;
  readonly device: Device;
  /** Whether another library owns it: cuffi never releases or resets it. */
  readonly borrowed: boolean;
  /** @internal The open resources of this context. */
  readonly resources = new Scope(undefined, false, () => this.#isLost);
  /** @internal Functions that free cached resources; none may throw. */
  readonly cacheTrimmers = new Set<() => void>();
  /** @internal Functions to call after a reset, which ends all queued work; none may throw. */
  readonly onReset = new Set<() => void>();
  /** @internal The work that is known to be running in it. */
  readonly workTracker = new WorkTracker(() => this.#handle);
  /** @internal What its streams have queued behind waits for other processes. */
  readonly workCounters = new WorkCounters(this.workTracker);
  /** @internal Releases that are queued until the GPU is done. */
  readonly releases = new ReleaseQueue(
    {
      // A stream of another thread makes a release block, too.
      isIdle: () => this.workTracker.isIdle() && !doOtherThreadsWait(this),
      fence: () => this.workTracker.fence(),
    },
    releaseLimits(() => this.device.totalMemory),
    () => this.#isLost,
  );
  /** @internal The contexts whose memory it may access. */
  readonly peerAccess = new PeerAccess(this);
  readonly #memory: ContextMemory | undefined;
  #handle: CUcontext | undefined;
  #isLost = false;

  private constructor(device: Device, handle: CUcontext | undefined) {
    assertInternal(device, Device, 'Context', 'Context.primary');
    this.device = device;
    this.#handle = handle;
    this.borrowed = handle !== undefined;
    this.#memory = createContextMemory(this);
  }

  /**
   * Returns the primary context of a device: the same object each time. It is retained at its first use,
   * and never released.
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

  /** Returns the current context of this thread, of any library; undefined if no context is current. */
  static current(): Context | undefined {
    const handle = currentHandle();
    return handle === undefined ? undefined : Context.fromHandle(handle);
  }

  /**
   * Borrows a context of another library. Each call returns a new object, except for a primary context,
   * which is {@link Context.primary}.
   */
  static fromHandle(handle: number): Context {
    const borrowedHandle = checkInteger(handle, 'handle', 1) as CUcontext;
    const device = deviceOf(borrowedHandle);
    return isPrimary(device, borrowedHandle)
      ? Context.primary(device)
      : new Context(device, borrowedHandle);
  }

  /** @internal The context that options name. Default: the primary context of device 0. */
  static resolve({ context, device }: PlaceOptions): Context {
    if (context === undefined) return Context.primary(device === undefined ? 0 : device);
    if (device !== undefined) throw new TypeError('pass either a context or a device, not both');
    return checkInstance(context, Context, 'context');
  }

  /** The driver's handle; reading it retains a primary context. */
  get handle(): CUcontext {
    if (this.#handle === undefined) this.#handle = retainPrimary(this.device);
    return this.#handle;
  }

  /** @internal The memory manager of this context, if one was set. */
  get memory(): ContextMemory | undefined {
    return this.#memory?.isActive ? this.#memory : undefined;
  }

  /** @internal Whether the context is known to be lost. */
  get isLost(): boolean {
    return this.#isLost;
  }

  /** @internal Queries whether it is lost; returns true only if that was not known. */
  checkLoss(): boolean {
    if (this.#isLost || this.#handle === undefined) return false;
    this.#isLost = isSticky(this.workTracker.poll());
    return this.#isLost;
  }

  /** @internal Counts the resets: what was made in an earlier epoch is gone. */
  get epoch(): number {
    return this.resources.epoch;
  }

  /**
   * Calls `use`, which must be synchronous, while this context is current. Afterwards the context that was
   * current before is so again, even if `use` throws.
   *
   * @example
   * context.run(() => otherLibrary.usesTheCurrentContext());
   */
  run<T>(use: () => T): T {
    if (typeof use !== 'function')
      throw new TypeError(`run() takes a function, not ${formatValue(use)}`);
    check(cu.cuCtxPushCurrent_v2(this.handle), 'cuCtxPushCurrent_v2');
    let result: T;
    try {
      result = use();
    } catch (error) {
      cu.cuCtxPopCurrent_v2(OUT3);
      throw error;
    }
    // OUT3, because the results of `use` are in the other slots, and not read yet.
    check(cu.cuCtxPopCurrent_v2(OUT3), 'cuCtxPopCurrent_v2');
    if (types.isPromise(result))
      throw new TypeError(
        'run() takes a synchronous function: the context is current only until it returns',
      );
    return result;
  }

  /**
   * Returns free and total memory of the device, in bytes. Memory used by other processes counts. If a
   * memory manager was set, it is asked instead.
   */
  memoryInfo(): MemoryInfo {
    return this.memory?.getMemoryInfo() ?? this.deviceMemoryInfo();
  }

  /** @internal Returns free and total memory of the device, as the driver knows them. */
  deviceMemoryInfo(): MemoryInfo {
    this.run(() => check(cu.cuMemGetInfo_v2(OUT0, OUT1), 'cuMemGetInfo_v2'));
    return { free: readSize(OUT0), total: readSize(OUT1) };
  }

  /** Returns a limit of the context, e.g. `stackSize`: in bytes, unless it is a depth or a count. */
  limit(name: LimitName): number {
    const number = limitNumber(name);
    this.run(() => check(cu.cuCtxGetLimit(OUT0, number), 'cuCtxGetLimit', () => `reading ${name}`));
    return readSize(OUT0);
  }

  /** Sets a limit, which the driver may round. Returns the new value. */
  setLimit(name: LimitName, value: number): number {
    const number = limitNumber(name);
    checkInteger(value, name);
    this.run(() =>
      check(cu.cuCtxSetLimit(number, value), 'cuCtxSetLimit', () => `setting ${name} to ${value}`),
    );
    return this.limit(name);
  }

  /** Returns the range of priorities of streams; a lower number is a higher priority. */
  streamPriorityRange(): { readonly least: number; readonly greatest: number } {
    this.run(() =>
      check(cu.cuCtxGetStreamPriorityRange(OUT0, OUT1), 'cuCtxGetStreamPriorityRange'),
    );
    return { least: readInt32(OUT0), greatest: readInt32(OUT1) };
  }

  /**
   * @internal Makes a call that queues one piece of work in the legacy default stream (0). Not for recording events or
   * waiting: the call is tracked as work.
   */
  enqueue(call: (stream: CUstream) => void): void {
    if (this.workCounters.isActive) this.workCounters.count(CU_STREAM_LEGACY);
    this.enqueueUncounted(call);
  }

  /** @internal As {@link enqueue}, for calls that must not be refused, or that have limits of their own. */
  enqueueUncounted(call: (stream: CUstream) => void): void {
    assertNotCapturing('work in the default stream');
    this.run(() => this.workTracker.track(CU_STREAM_LEGACY, () => call(0 as CUstream)));
  }

  /**
   * Waits, without blocking, for all work that was queued through cuffi, and for the default stream. Only
   * {@link synchronizeSync} also waits for the other streams of other libraries.
   *
   * @throws CudaError if the work failed
   */
  async synchronize(options?: WaitOptions): Promise<void> {
    assertNotCapturing('waiting for a context');
    const wait = beginWait(options, 'waiting for a context');
    await pollUntil(() => isReady(this.workTracker.poll(), 'cuStreamQuery'), wait);
  }

  /**
   * Blocks the process until all work in the context is done. While streams wait for other processes it
   * still watches those, so that it returns if one of them ends.
   *
   * @throws CudaError if the work failed
   */
  synchronizeSync(): void {
    assertNotCapturing('waiting for a context');
    this.#blockWhileStreamsWait();
    this.run(() => check(cu.cuCtxSynchronize(), 'cuCtxSynchronize'));
    this.workTracker.noteSynchronized();
  }

  /** Lets the work that cuffi knows of end before the driver waits for all of it. */
  #blockWhileStreamsWait(): void {
    if (hasWaitingStreams(this)) blockUntil(() => this.#isWorkOver());
  }

  #isWorkOver(): boolean {
    const status = this.workTracker.poll();
    // In a lost context no stream of any thread waits, whether or not the awaited values came.
    if (isSticky(status)) return true;
    return status !== CUresult.CUDA_ERROR_NOT_READY && !doOtherThreadsWait(this);
  }

  /**
   * Lets streams and kernels of this context access the memory of another device's context. It does
   * nothing if they already can. For memory of pools, use `pool.setAccess`; for virtual memory and the
   * slots of channels, their `allowAccess`.
   *
   * @throws NotSupportedError if `device.canAccessPeer` returns false
   * @see https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__PEER__ACCESS.html
   */
  enablePeerAccess(other: Context): void {
    this.peerAccess.enable(checkInstance(other, Context, 'other'));
  }

  /** Undoes {@link enablePeerAccess}; does nothing if access was not enabled. */
  disablePeerAccess(other: Context): void {
    this.peerAccess.disable(checkInstance(other, Context, 'other'));
  }

  /** What was closed but is not released yet, because the GPU may still use it. */
  get pendingReleases(): { readonly count: number; readonly byteLength: number } {
    return { count: this.releases.size, byteLength: this.releases.byteLength };
  }

  /**
   * Waits until everything that was closed while the GPU was busy is released. Device memory is freed when
   * the work queued before its `close()` is done. Mappings of other processes' memory, pinned and managed
   * memory are released once the context is idle. Staging memory of copies is freed too, unless a copy is
   * running.
   *
   * @throws CudaError if the context cannot be entered; what waits is released later
   */
  async flush(options?: WaitOptions): Promise<void> {
    const wait = beginWait(options, 'flushing a context');
    for (const trim of this.cacheTrimmers) trim();
    await this.releases.flush(wait, () => this.run(() => {}));
  }

  /**
   * Returns a scope in which closed objects are not released to the driver, as numba's
   * `defer_cleanup()`: for code in which the driver must not wait. Scopes may be nested. Releases go on
   * when the last scope ends, even by an exception.
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
   * Destroys everything in the primary context, including that of other libraries, once its work is done.
   * All objects made in it are closed; the context itself can be used again.
   */
  async reset(options?: WaitOptions): Promise<void> {
    assertNotCapturing('resetting a context');
    this.#assertOwned();
    // The driver ends the work of a context that cannot be entered, too.
    const wait = beginWait(options, 'resetting a context');
    await pollUntil(() => this.#isWorkOver(), wait);
    this.resetSync();
  }

  /** As {@link reset}, but blocks until the GPU's work is done. */
  resetSync(): void {
    assertNotCapturing('resetting a context');
    this.#assertOwned();
    if (this.#handle !== undefined) this.#blockWhileStreamsWait();
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
    this.workCounters.clear();
    this.workTracker.clear();
    const isRetained = this.#handle !== undefined;
    this.#handle = undefined;
    this.#isLost = false;
    try {
      resetPrimary(this.device, isRetained);
    } finally {
      // Even if the driver failed: everything was discarded above.
      for (const tell of [...this.onReset]) tell();
    }
  }

  /** Returns a short description. */
  toJSON(): string {
    return this.toString();
  }

  toString(): string {
    return `Context of ${this.device}${this.borrowed ? ', borrowed' : ''}`;
  }

  [inspect.custom](): string {
    return this.toString();
  }

  #assertOwned(): void {
    if (this.borrowed)
      throw new NotSupportedError(
        'a borrowed context cannot be reset: it belongs to another library',
      );
  }
}

// ---- The primary contexts, and which contexts are lost ----

/** The primary contexts by ordinal, of the driver that was selected when they were made. */
let primaryContexts: { readonly selection: number; readonly byOrdinal: Map<number, Context> } = {
  selection: -1,
  byOrdinal: new Map(),
};

/** The selection of the driver whose borrowed context was lost. */
let borrowedLossSelection = -1;

/**
 * Queries the primary contexts only: the owner of a borrowed context may have destroyed it, and the
 * driver crashes when a destroyed context is pushed. If no primary context is lost, a borrowed one is.
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

/** Whether an error in a capture reported a loss: a query would end the capture, so it comes after. */
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

// ---- Memory managers ----

/** What a context needs of its memory manager: contexts are below the memory managers. */
export interface ContextMemory {
  /** False while the manager itself runs: then the context calls the driver directly. */
  readonly isActive: boolean;
  getMemoryInfo(): MemoryInfo;
  deferCleanup(): Disposable;
  reset(): void;
}

/** Makes the memory manager of a context. */
type ContextMemoryFactory = (context: Context) => ContextMemory;

let chosenFactory:
  | { readonly selection: number; readonly create: ContextMemoryFactory }
  | undefined;
/** The driver selection in which the newest context was made. */
let lastContextSelection = -1;

/**
 * Sets the memory manager of all contexts of the selected driver.
 *
 * @throws CuffiError if a context exists already, as its memory may be from another manager
 */
export function setContextMemoryFactory(create: ContextMemoryFactory): void {
  if (lastContextSelection === selectionCount())
    throw new CuffiError(
      'a memory manager must be set before the first context exists: set it at the beginning of the ' +
        'program, before creating buffers, streams or events',
    );
  chosenFactory = { selection: selectionCount(), create };
}

/** Makes the memory manager of a new context; undefined if none was set. */
function createContextMemory(context: Context): ContextMemory | undefined {
  lastContextSelection = selectionCount();
  return chosenFactory?.selection === lastContextSelection
    ? chosenFactory.create(context)
    : undefined;
}

// ---- Driver calls ----

/** Returns the driver's number of a limit. @throws TypeError for an unknown name */
function limitNumber(name: LimitName): number {
  if (!Object.hasOwn(limits, name))
    throw new TypeError(
      `unknown limit '${String(name)}'; known: ${Object.keys(limits).join(', ')}`,
    );
  return limits[name];
}

/** Returns the current context of this thread, of any library. */
function currentHandle(): CUcontext | undefined {
  initialize();
  check(cu.cuCtxGetCurrent(OUT0), 'cuCtxGetCurrent');
  const handle = readHandle<CUcontext>(OUT0);
  return handle === 0 ? undefined : handle;
}

/** Returns the device of a context of another library. @throws CudaError if the handle is invalid */
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

/** Destroys the primary context of a device, with the objects of all libraries. */
function resetPrimary(device: Device, isRetained: boolean): void {
  const { handle } = device;
  const released = isRetained ? cu.cuDevicePrimaryCtxRelease_v2(handle) : 0;
  check(cu.cuDevicePrimaryCtxReset_v2(handle), 'cuDevicePrimaryCtxReset_v2');
  check(released, 'cuDevicePrimaryCtxRelease_v2');
}

/** Whether any library of this process has the primary context of a device open. */
export function isPrimaryOpen(device: Device): boolean {
  check(cu.cuDevicePrimaryCtxGetState(device.handle, OUT0, OUT1), 'cuDevicePrimaryCtxGetState');
  return readInt32(OUT1) !== 0;
}

/** Whether a context is the primary context of its device, even if another library retained it. */
function isPrimary(device: Device, handle: CUcontext): boolean {
  if (!isPrimaryOpen(device)) return false;
  check(cu.cuDevicePrimaryCtxRetain(OUT0, device.handle), 'cuDevicePrimaryCtxRetain');
  const primary = readHandle<CUcontext>(OUT0);
  check(cu.cuDevicePrimaryCtxRelease_v2(device.handle), 'cuDevicePrimaryCtxRelease_v2');
  return primary === handle;
}

/**
 * Closes all resources of a context before a reset: the driver keeps virtual memory and pools over a
 * reset, and only closing them releases them. They do not need an open context.
 */
function closeForReset(context: Context, reason: string, isOpen: boolean): void {
  // A failed context rejects all later calls: only the reset is left.
  if (isOpen && context.run(() => cu.cuCtxSynchronize()) !== CUresult.CUDA_SUCCESS) return;
  const { workTracker, releases, resources } = context;
  workTracker.noteSynchronized();
  runAll([
    () => releases.drainAll(),
    () => resources.closeAll(reason),
    // Resources that were closed in a scope of deferCleanup().
    () => releases.drainAll(),
    // Pools without a release threshold free their memory at a synchronization.
    () => isOpen && context.synchronizeSync(),
  ]);
}

// ---- Access to the memory of other devices ----

/** The contexts of other devices whose memory a context may access. */
class PeerAccess {
  readonly #context: Context;
  /** The epochs of both contexts when access was enabled: a reset of either ends it. */
  readonly #enabled = new WeakMap<Context, readonly [own: number, other: number]>();

  constructor(context: Context) {
    this.#context = context;
  }

  /** Whether {@link enable} gave access, and no reset has ended it. */
  has(other: Context): boolean {
    const epochs = this.#enabled.get(other);
    return epochs?.[0] === this.#context.epoch && epochs[1] === other.epoch;
  }

  /** Enables access, unless it is enabled. @throws NotSupportedError, TypeError */
  enable(other: Context): void {
    if (this.has(other)) return;
    const own = this.#context;
    assertOtherDevice(own, other);
    if (!own.device.canAccessPeer(other.device))
      throw new NotSupportedError(
        `${own.device} cannot access the memory of ${other.device}. Copies between them need no ` +
          'access: they go through the host',
      );
    const peer = other.handle;
    const status = own.run(() => cu.cuCtxEnablePeerAccess(peer, 0));
    // Another library of the process may have enabled it.
    if (status !== CUresult.CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED)
      check(
        status,
        'cuCtxEnablePeerAccess',
        () => `letting ${own.device} access the memory of ${other.device}`,
      );
    this.#enabled.set(other, [own.epoch, other.epoch]);
  }

  /** Disables access, even if another library enabled it. */
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
        () => `no longer letting ${own.device} access the memory of ${other.device}`,
      );
  }
}

function assertOtherDevice(own: Context, other: Context): void {
  if (own.device === other.device)
    throw new TypeError(
      `both contexts belong to ${own.device}: peer access is between two devices`,
    );
}
