/** Contexts: the primary context of each device, created ones, and the current one. */
import { limits } from '../constants.ts';
import type { Driver } from '../functions.ts';
import { CUresult } from '../results.ts';
import type { Handles } from './handles.ts';
import type { HostMemory } from './host-memory.ts';
import type { Settings } from './settings.ts';

const {
  CUDA_SUCCESS,
  CUDA_ERROR_INVALID_VALUE,
  CUDA_ERROR_INVALID_CONTEXT,
  CUDA_ERROR_INVALID_DEVICE,
  CUDA_ERROR_CONTEXT_IS_DESTROYED,
  CUDA_ERROR_UNSUPPORTED_LIMIT,
} = CUresult;

/** All limits but devRuntimeSyncDepth, which compute capability 9.0 lacks. */
const defaultLimits: readonly (readonly [number, number])[] = [
  [limits.stackSize, 1024],
  [limits.printfFifoSize, 7_340_032],
  [limits.mallocHeapSize, 8_388_608],
  [limits.devRuntimePendingLaunchCount, 2048],
  [limits.maxL2FetchGranularity, 128],
  [limits.persistingL2CacheSize, 0],
];

// CU_CTX_FLAGS_MASK
const MAX_FLAGS = 0xff;

export interface Context {
  readonly handle: number;
  readonly device: number;
  readonly primary: boolean;
  readonly flags: number;
  readonly limits: Map<number, number>;
  alive: boolean;
  /**
   * The error of work that failed, in this or another context: a failure invalidates all contexts of
   * the process. Every later call in one returns it.
   */
  failure: CUresult;
  /** The retain count of a primary context. */
  references: number;
}

/** The contexts of this process, and its stack of current ones. */
export class Contexts {
  readonly #handles: Handles;
  readonly #visible: readonly number[];
  readonly #all = new Map<number, Context>();
  readonly #primary = new Map<number, Context>();
  readonly #stack: Context[] = [];
  readonly #endListeners: ((context: Context) => void)[] = [];
  readonly #processFailure = { status: CUDA_SUCCESS as CUresult };
  /** For each context, the contexts of other devices whose memory it may access. */
  readonly #accessible = new WeakMap<Context, Set<Context>>();

  #hasForeign = false;

  constructor(settings: Settings, handles: Handles) {
    this.#handles = handles;
    this.#visible = settings.visible.devices;
  }

  /** Registers a function that releases what belongs to a context when that ends. */
  onEnd(release: (context: Context) => void): void {
    this.#endListeners.push(release);
  }

  /** The error that invalidated the contexts of the process, or success. */
  get processFailure(): CUresult {
    return this.#processFailure.status;
  }

  get top(): Context | undefined {
    return this.#stack.at(-1);
  }

  /** The current context. The preconditions guarantee one. */
  get current(): Context {
    const context = this.top;
    if (!context) throw new Error('no current context after the preconditions');
    return context;
  }

  /** The status of a call that needs a current context: success if it may continue. */
  get status(): CUresult {
    const context = this.top;
    if (!context) return CUDA_ERROR_INVALID_CONTEXT;
    return context.alive ? context.failure : CUDA_ERROR_CONTEXT_IS_DESTROYED;
  }

  /** How many contexts there are, without the primary ones and that of another library. */
  get createdCount(): number {
    return this.#all.size - this.#primary.size - (this.#hasForeign ? 1 : 0);
  }

  /** Makes a context current that nobody destroys, as another library of the process may have. */
  enterForeign(): void {
    this.push(this.create(this.#visible.length - 1, 0));
    this.#hasForeign = true;
  }

  hasDevice(device: number): boolean {
    return this.#visible[device] !== undefined;
  }

  /** The number in the machine of a visible device: processes with other visible devices know it. */
  physicalDevice(device: number): number {
    return this.#visible[device] ?? -1;
  }

  /** The ordinal here of a device of the machine. -1 if this process does not see it. */
  visibleDevice(physical: number): number {
    return this.#visible.indexOf(physical);
  }

  get(handle: number): Context | undefined {
    return this.#all.get(handle);
  }

  primary(device: number): Context {
    const known = this.#primary.get(device);
    if (known) return known;
    const context = this.#make(device, true, 0);
    context.alive = false;
    this.#primary.set(device, context);
    return context;
  }

  /** Activates a primary context, with the limits of a new one. */
  activate(context: Context): void {
    if (context.alive) return;
    for (const [limit, value] of defaultLimits) context.limits.set(limit, value);
    context.alive = true;
  }

  create(device: number, flags: number): Context {
    return this.#make(device, false, flags);
  }

  /** Ends a context and everything in it. A primary context keeps its handle. */
  end(context: Context): void {
    if (!context.alive) return;
    for (const release of this.#endListeners) release(context);
    context.alive = false;
    this.#accessible.delete(context);
    for (const other of this.#all.values()) this.accessibleFrom(other).delete(context);
    if (context.primary) return;
    this.#all.delete(context.handle);
    this.#handles.release('CUcontext', context.handle);
  }

  /** The contexts whose memory a context may access. */
  accessibleFrom(context: Context): Set<Context> {
    const peers = this.#accessible.get(context) ?? new Set();
    this.#accessible.set(context, peers);
    return peers;
  }

  /** Whether work of a context may access memory of another one. */
  canAccess(context: Context, owner: Context): boolean {
    return context.device === owner.device || this.accessibleFrom(context).has(owner);
  }

  push(context: Context): void {
    this.#stack.push(context);
  }

  pop(): Context | undefined {
    return this.#stack.pop();
  }

  #make(device: number, primary: boolean, flags: number): Context {
    const loss = this.#processFailure;
    const context: Context = {
      handle: this.#handles.make('CUcontext'),
      device,
      primary,
      flags,
      limits: new Map(defaultLimits),
      alive: true,
      get failure() {
        return loss.status;
      },
      set failure(status) {
        loss.status ||= status;
      },
      references: 0,
    };
    this.#all.set(context.handle, context);
    return context;
  }
}

type PrimaryFunctions = Pick<
  Driver,
  | 'cuDevicePrimaryCtxRetain'
  | 'cuDevicePrimaryCtxRelease_v2'
  | 'cuDevicePrimaryCtxReset_v2'
  | 'cuDevicePrimaryCtxGetState'
>;

export const primaryContextFunctions = (
  contexts: Contexts,
  host: HostMemory,
): PrimaryFunctions => ({
  cuDevicePrimaryCtxRetain(out, device) {
    if (!contexts.hasDevice(device)) return CUDA_ERROR_INVALID_DEVICE;
    const context = contexts.primary(device);
    // A reset does not repair a failure: the process can no longer have a primary context.
    if (!context.alive && context.failure !== CUDA_SUCCESS) return context.failure;
    contexts.activate(context);
    context.references += 1;
    host.setUint64(out, context.handle);
    return CUDA_SUCCESS;
  },
  cuDevicePrimaryCtxRelease_v2(device) {
    if (!contexts.hasDevice(device)) return CUDA_ERROR_INVALID_DEVICE;
    const context = contexts.primary(device);
    if (context.references === 0) return CUDA_ERROR_INVALID_CONTEXT;
    context.references -= 1;
    if (context.references === 0) contexts.end(context);
    return CUDA_SUCCESS;
  },
  // Does not change the retain count: earlier retains must still be released.
  cuDevicePrimaryCtxReset_v2(device) {
    if (!contexts.hasDevice(device)) return CUDA_ERROR_INVALID_DEVICE;
    contexts.end(contexts.primary(device));
    return CUDA_SUCCESS;
  },
  cuDevicePrimaryCtxGetState(device, flags, active) {
    if (!contexts.hasDevice(device)) return CUDA_ERROR_INVALID_DEVICE;
    host.setInt32(flags, 0);
    host.setInt32(active, contexts.primary(device).alive ? 1 : 0);
    return CUDA_SUCCESS;
  },
});

/** The status for a limit that contexts do not have: unsupported or unknown. */
const unknownLimitStatus = (limit: number): CUresult =>
  limit === limits.devRuntimeSyncDepth ? CUDA_ERROR_UNSUPPORTED_LIMIT : CUDA_ERROR_INVALID_VALUE;

type ContextFunctions = Pick<
  Driver,
  | 'cuCtxCreate_v2'
  | 'cuCtxDestroy_v2'
  | 'cuCtxGetCurrent'
  | 'cuCtxPushCurrent_v2'
  | 'cuCtxPopCurrent_v2'
  | 'cuCtxGetDevice'
  | 'cuCtxGetLimit'
  | 'cuCtxSetLimit'
>;

export const contextFunctions = (contexts: Contexts, host: HostMemory): ContextFunctions => ({
  cuCtxCreate_v2(out, flags, device) {
    if (!contexts.hasDevice(device)) return CUDA_ERROR_INVALID_DEVICE;
    if (flags > MAX_FLAGS) return CUDA_ERROR_INVALID_VALUE;
    if (contexts.processFailure !== CUDA_SUCCESS) return contexts.processFailure;
    const context = contexts.create(device, flags);
    contexts.push(context);
    host.setUint64(out, context.handle);
    return CUDA_SUCCESS;
  },
  cuCtxDestroy_v2(handle) {
    const context = contexts.get(handle);
    if (!context || context.primary) return CUDA_ERROR_INVALID_CONTEXT;
    contexts.end(context);
    if (contexts.top === context) contexts.pop();
    return CUDA_SUCCESS;
  },
  cuCtxGetCurrent(out) {
    host.setUint64(out, contexts.top?.handle ?? 0);
    return CUDA_SUCCESS;
  },
  cuCtxPushCurrent_v2(handle) {
    if (handle === 0) return CUDA_ERROR_INVALID_VALUE;
    const context = contexts.get(handle);
    if (!context) return CUDA_ERROR_INVALID_CONTEXT;
    // An inactive primary context may be pushed: calls that need it then fail.
    contexts.push(context);
    return CUDA_SUCCESS;
  },
  cuCtxPopCurrent_v2(out) {
    if (out !== 0) host.setUint64(out, contexts.current.handle);
    contexts.pop();
    return CUDA_SUCCESS;
  },
  cuCtxGetDevice(out) {
    host.setInt32(out, contexts.current.device);
    return CUDA_SUCCESS;
  },
  cuCtxGetLimit(out, limit) {
    const value = contexts.current.limits.get(limit);
    if (value === undefined) return unknownLimitStatus(limit);
    host.setUint64(out, value);
    return CUDA_SUCCESS;
  },
  cuCtxSetLimit(limit, value) {
    if (!contexts.current.limits.has(limit)) return unknownLimitStatus(limit);
    contexts.current.limits.set(limit, value);
    return CUDA_SUCCESS;
  },
});
