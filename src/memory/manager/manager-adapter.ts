/** Selects the memory manager of this process's contexts, calls it, and checks what it returns. */

import { withAddress } from '../../../ffi/native.ts';
import type { CUdeviceptr } from '../../../ffi/types.ts';
import { Context, type MemoryInfo, setContextMemoryFactory } from '../../context.ts';
import { NotSupportedError } from '../../errors.ts';
import { releaseOrWarn } from '../../lifetime.ts';
import type { Stream } from '../../stream.ts';
import {
  type ClassOf,
  checkInstance,
  checkInteger,
  checkOptions,
  className,
  classNameOf,
  formatBytes,
} from '../../validate.ts';
import { type AllocateOptions, DeviceBuffer, type ManagerResource } from '../buffer.ts';
import type { HostAllocation, HostMemoryKind } from '../host-allocation.ts';
import { viewDriverMemory } from '../host-views.ts';
import type { LockFlags, PageLock } from '../page-lock.ts';
import { BaseMemoryManager, DriverMemoryManager, viewsOfPointer } from './memory-manager.ts';
import {
  AutoFreePointer,
  IpcHandle,
  MappedPointer,
  MemoryPointer,
  PinnedPointer,
} from './memory-pointer.ts';

/** A memory manager's class. Its constructor receives the context whose memory it owns. */
export type MemoryManagerClass = new (context: Context) => BaseMemoryManager;

/**
 * Replaces cuffi's own allocations with a memory manager, like numba's `set_memory_manager`. Each
 * context gets an instance at its first use. It serves `DeviceBuffer.allocate` without
 * `{ memory }`, `PinnedBuffer`, `MappedMemory`, `pin`, `context.memoryInfo()` and `getIpcHandle`.
 * Explicitly named resources are not affected. For a borrowed context, each Context object has its
 * own instance.
 *
 * To set a manager for an unmodified program: `node --import ./set-it.js program.js`.
 *
 * @throws CuffiError if a context already exists; NotSupportedError for another version of the
 * interface
 * @example
 * cuda.setMemoryManager(PoolManager);
 * using buffer = cuda.DeviceBuffer.allocate(4096); // from the pool
 * @see https://numba.readthedocs.io/en/stable/cuda/external-memory.html
 */
export function setMemoryManager(Manager: MemoryManagerClass): void {
  if (typeof Manager !== 'function' || !(Manager.prototype instanceof BaseMemoryManager))
    throw new TypeError('Manager must be a class that extends BaseMemoryManager');
  // A field exists only on an instance, and is checked then.
  const version: unknown = Manager.prototype.interfaceVersion;
  if (version !== undefined) checkVersion(className(Manager), version);
  setContextMemoryFactory((context) => new ManagerAdapter(context, Manager));
}

const driverManagers = new WeakMap<Context, DriverMemoryManager>();

/**
 * The memory manager of a context, by default of the primary context of device 0. If none was set,
 * a plain manager over the driver.
 */
export function memoryManager(context: Context = Context.primary()): BaseMemoryManager {
  const { memory } = Context.resolve({ context });
  if (memory instanceof ManagerAdapter) return memory.manager;
  const manager = driverManagers.get(context) ?? new DriverMemoryManager(context);
  driverManagers.set(context, manager);
  return manager;
}

// ---- The manager of a context, as cuffi calls it ----

/** The pointer behind each buffer that a manager allocated. */
const pointersByBuffer = new WeakMap<DeviceBuffer, MemoryPointer>();

/**
 * @internal Adapts a context's memory manager to {@link MemoryResource}, the resource of its
 * buffers. Creates the manager at the first use, and checks all that it returns.
 */
export class ManagerAdapter implements ManagerResource {
  readonly context: Context;
  readonly deviceAccessible = true;
  readonly hostAccessible = false;
  readonly #Manager: MemoryManagerClass;
  #manager: BaseMemoryManager | undefined;
  #isReady = false;
  #isInManager = false;
  /** The locks of host memory whose release waits for the GPU. */
  readonly #releasingLocks: ReleasingLocks = new Map();

  constructor(context: Context, Manager: MemoryManagerClass) {
    this.context = context;
    this.#Manager = Manager;
  }

  get isActive(): boolean {
    return !this.#isInManager;
  }

  /** The manager, initialized. */
  get manager(): BaseMemoryManager {
    return this.#callManager((manager) => manager);
  }

  allocate(byteLength: number, options?: AllocateOptions): DeviceBuffer {
    checkInteger(byteLength, 'byteLength', 1);
    const { stream } = checkOptions(options, ['stream'], 'allocate');
    const { context } = this;
    const result = this.#callManager((manager) =>
      manager.memalloc(byteLength, stream ? { stream } : {}),
    );
    const pointer = this.#check('memalloc', result, MemoryPointer, byteLength);
    const ownPointer = pointer instanceof AutoFreePointer ? pointer.own() : pointer;
    const { owner } = ownPointer;
    let releaseStream: Stream | undefined;
    const buffer = new DeviceBuffer({
      context,
      address: ownPointer.pointer,
      byteLength,
      origin: 'allocated',
      resource: this,
      // A manager may free the memory under the buffer, which is then closed.
      keepalive: ownPointer,
      deviceAccess: owner instanceof DeviceBuffer ? owner.deviceAccess : undefined,
      release: {
        setStream: (other) => {
          releaseStream = other;
        },
        orderUse(other) {
          if (owner instanceof DeviceBuffer) owner.orderUse(other);
        },
        release: () => ownPointer.close(releaseStream ? { stream: releaseStream } : {}),
      },
    });
    pointersByBuffer.set(buffer, pointer);
    return buffer;
  }

  allocateHost(byteLength: number, kind: HostMemoryKind): HostAllocation {
    const { mapped, portable, writeCombined } = kind;
    const result = this.#callManager((manager) =>
      manager.memhostalloc(byteLength, { mapped, portable, writeCombined }),
    );
    if (!mapped) {
      const pointer = this.#check('memhostalloc', result, PinnedPointer, byteLength);
      const { pointer: address } = pointer;
      const views = this.#viewsFor(pointer, address, byteLength, pointer);
      return { address, devicePointer: undefined, ...views };
    }
    const pointer = this.#check('memhostalloc', result, MappedPointer, byteLength);
    const { hostPointer: address, pointer: devicePointer } = pointer;
    return {
      address,
      devicePointer,
      ...this.#viewsFor(pointer, address, byteLength, pointer.own()),
    };
  }

  lockHost(memory: Uint8Array, flags: LockFlags): PageLock {
    const range = describeRange(memory, flags);
    const releasing = this.#releasingLocks;
    const pointer = releasing.get(range)?.takeOver() ?? this.#pinHost(memory, flags);
    return new PointerLock(pointer, memory, range, releasing);
  }

  #pinHost(memory: Uint8Array, { mapped, portable }: LockFlags): PinnedPointer | MemoryPointer {
    const result = this.#callManager((manager) => manager.mempin(memory, { mapped, portable }));
    const { byteLength } = memory;
    return mapped
      ? this.#check('mempin', result, MappedPointer, byteLength).own()
      : this.#check('mempin', result, PinnedPointer, byteLength);
  }

  /**
   * The legacy IPC handle of the allocation that contains a buffer.
   *
   * @param base the start of the allocation
   */
  getLegacyHandle(buffer: DeviceBuffer, base: CUdeviceptr): Uint8Array {
    const { address, byteLength, context } = buffer;
    const allocation = pointersByBuffer.get(buffer.root) as MemoryPointer;
    const start = address - allocation.pointer;
    const memory = allocation.view(start, start + byteLength);
    try {
      const result = this.#callManager((manager) => manager.getIpcHandle(memory));
      return checkIpcHandle(this.#callOf('getIpcHandle'), result, {
        byteLength,
        device: context.device.uuid,
        offset: address - base,
      }).handle;
    } finally {
      memory.close();
    }
  }

  getMemoryInfo(): MemoryInfo {
    const result = this.#callManager((manager) => manager.getMemoryInfo());
    return checkMemoryInfo(this.#callOf('getMemoryInfo'), result);
  }

  deferCleanup(): Disposable {
    // The manager does not own streams, events and explicitly named resources.
    const cuffiScope = this.context.releases.defer();
    try {
      const result = this.#callManager((manager) => manager.deferCleanup());
      const managerScope = checkDisposable(this.#callOf('deferCleanup'), result);
      return { [Symbol.dispose]: () => disposeBoth(managerScope, cuffiScope) };
    } catch (error) {
      cuffiScope[Symbol.dispose]();
      throw error;
    }
  }

  reset(): void {
    this.#isReady = false;
    this.#releasingLocks.clear();
    const manager = this.#manager;
    // A manager that was never created has nothing to drop.
    if (manager) this.#insideManager(() => manager.reset());
  }

  /** Calls the manager. Creates and initializes it first if necessary. */
  #callManager<T>(use: (manager: BaseMemoryManager) => T): T {
    return this.#insideManager(() => {
      const Manager = this.#Manager;
      this.#manager ??= checkManager(new Manager(this.context));
      if (!this.#isReady) this.#manager.initialize();
      this.#isReady = true;
      return use(this.#manager);
    });
  }

  /** Meanwhile, the context uses the driver directly. */
  #insideManager<T>(use: () => T): T {
    const wasAsking = this.#isInManager;
    this.#isInManager = true;
    try {
      return use();
    } finally {
      this.#isInManager = wasAsking;
    }
  }

  #check<P extends MemoryPointer | PinnedPointer>(
    method: ManagerMethod,
    result: unknown,
    type: ClassOf<P>,
    byteLength: number,
  ): P {
    const { context } = this;
    return checkPointer(this.#callOf(method), result, { type, context, byteLength });
  }

  #callOf(method: ManagerMethod): string {
    return `${className(this.#Manager)}.${method}`;
  }

  /** The requested host memory as ArrayBuffers. `owned` is closed when no view is left. */
  #viewsFor(
    pointer: PinnedPointer | MappedPointer,
    address: HostAllocation['address'],
    byteLength: number,
    owned: MemoryPointer | PinnedPointer,
  ): Pick<HostAllocation, 'viewsReference' | 'release'> {
    const close = (): void => owned.close();
    const existing = viewsOfPointer(pointer);
    if (!existing) return viewDriverMemory(this.context, address, byteLength, close);
    existing.views?.shorten(byteLength);
    return { viewsReference: existing, release: close };
  }
}

/** By range and flags. */
type ReleasingLocks = Map<string, PointerLock>;

const describeRange = (memory: Uint8Array, { mapped, portable }: LockFlags): string =>
  withAddress(memory, (address) => `${address} ${memory.byteLength} ${mapped} ${portable}`);

/** Host memory that a manager has page-locked, for as long as its pointer is open. */
class PointerLock implements PageLock {
  /** Undefined if it was unlocked, or a new lock has it. */
  #pointer: PinnedPointer | MemoryPointer | undefined;
  /** Must not be garbage collected while it is locked. */
  readonly memory: Uint8Array;
  readonly #range: string;
  readonly #releasing: ReleasingLocks;

  constructor(
    pointer: PinnedPointer | MemoryPointer,
    memory: Uint8Array,
    range: string,
    releasing: ReleasingLocks,
  ) {
    this.#pointer = pointer;
    this.memory = memory;
    this.#range = range;
    this.#releasing = releasing;
  }

  markReleasing(): void {
    this.#releasing.set(this.#range, this);
  }

  /** Returns the pointer, which the caller owns from now on; undefined if the manager has closed it. */
  takeOver(): PinnedPointer | MemoryPointer | undefined {
    const pointer = this.#release();
    return pointer?.closed ? undefined : pointer;
  }

  unlock(): void {
    this.#release()?.close();
  }

  #release(): PinnedPointer | MemoryPointer | undefined {
    if (this.#releasing.get(this.#range) === this) this.#releasing.delete(this.#range);
    const pointer = this.#pointer;
    this.#pointer = undefined;
    return pointer;
  }
}

/** The name of a method of a manager. */
type ManagerMethod = keyof BaseMemoryManager & string;

function disposeBoth(first: Disposable, second: Disposable): void {
  try {
    first[Symbol.dispose]();
  } finally {
    second[Symbol.dispose]();
  }
}

// ---- Checks of what a memory manager returns: no result of a plugin is trusted ----

/** The version of the interface that cuffi supports. */
const INTERFACE_VERSION = 1;

const METHODS = [
  'initialize',
  'memalloc',
  'memhostalloc',
  'mempin',
  'getIpcHandle',
  'getMemoryInfo',
  'reset',
  'deferCleanup',
] as const;

/** @throws NotSupportedError for any other version */
function checkVersion(name: string, version: unknown): void {
  if (version !== INTERFACE_VERSION)
    throw new NotSupportedError(
      `${name} implements version ${String(version)} of the memory manager interface: version ${INTERFACE_VERSION} is required`,
    );
}

/** @throws TypeError for a missing method, NotSupportedError for another version */
function checkManager(manager: BaseMemoryManager): BaseMemoryManager {
  const name = classNameOf(manager);
  const missing = METHODS.filter((method) => typeof manager[method] !== 'function');
  if (missing.length > 0) throw new TypeError(`${name} lacks ${missing.join(', ')}`);
  checkVersion(name, manager.interfaceVersion);
  return manager;
}

type Pointer = MemoryPointer | PinnedPointer;

/**
 * Every pointer that a manager returned. If it were returned again, one user's close would free the
 * other's memory.
 */
const returnedPointers = new WeakSet<Pointer>();

/** What a returned pointer must satisfy. */
interface PointerRequirements<P extends Pointer> {
  readonly type: ClassOf<P>;
  readonly context: Context;
  readonly byteLength: number;
}

/**
 * Checks a pointer that a manager returned. Closes an unsuitable one.
 *
 * @param call the method, with the manager's name
 * @throws TypeError that says what must be returned
 */
function checkPointer<P extends Pointer>(
  call: string,
  result: unknown,
  required: PointerRequirements<P>,
): P {
  const isPointer = result instanceof MemoryPointer || result instanceof PinnedPointer;
  if (isPointer && returnedPointers.has(result))
    throw new TypeError(
      `${call} must return a new pointer for each call, not one that it returned before`,
    );
  if (isPointer) returnedPointers.add(result);
  try {
    const pointer = checkInstance(result, required.type, `what ${call} returns`);
    assertFits(call, pointer, required);
    return pointer;
  } catch (error) {
    if (isPointer) releaseOrWarn(() => result.close());
    throw error;
  }
}

function assertFits(
  call: string,
  pointer: Pointer,
  { context, byteLength }: PointerRequirements<Pointer>,
): void {
  if (pointer.closed) throw new TypeError(`${call} must return an open pointer, not a closed one`);
  if (pointer.context !== context)
    throw new TypeError(`${call} must return memory of its own context, not of another`);
  if (pointer.byteLength < byteLength)
    throw new TypeError(
      `${call} must return at least ${formatBytes(byteLength)}, not ${pointer.byteLength}`,
    );
}

/** @throws TypeError unless both are sizes and `free` is at most `total` */
function checkMemoryInfo(call: string, result: unknown): MemoryInfo {
  const { free, total } = (result ?? {}) as { readonly free?: unknown; readonly total?: unknown };
  const isSize = (value: unknown): value is number =>
    Number.isSafeInteger(value) && (value as number) >= 0;
  if (!isSize(free) || !isSize(total) || free > total)
    throw new TypeError(
      `${call} must return { free, total }, both in bytes and free at most total, not { ${String(free)}, ${String(total)} }`,
    );
  return { free, total };
}

/** @throws TypeError for a value that is not a Disposable */
function checkDisposable(call: string, result: unknown): Disposable {
  if (typeof (result as Partial<Disposable> | undefined)?.[Symbol.dispose] !== 'function')
    throw new TypeError(`${call} must return a Disposable`);
  return result as Disposable;
}

/** What a handle must contain for the requested memory. */
export interface ExpectedHandle {
  readonly byteLength: number;
  readonly device: string;
  /** Where the memory starts in its allocation, according to the driver. */
  readonly offset: number;
}

/** @throws TypeError for a handle of other memory */
function checkIpcHandle(call: string, result: unknown, expected: ExpectedHandle): IpcHandle {
  const handle = checkInstance(result, IpcHandle, `what ${call} returns`);
  const wrong =
    (handle.byteLength !== expected.byteLength &&
      `byteLength ${expected.byteLength}, not ${handle.byteLength}`) ||
    (handle.offset !== expected.offset && `offset ${expected.offset}, not ${handle.offset}`) ||
    (handle.sourceInfo !== expected.device &&
      `sourceInfo ${expected.device}, not ${handle.sourceInfo}`);
  if (wrong) throw new TypeError(`${call} must return a handle with ${wrong}`);
  return handle;
}
