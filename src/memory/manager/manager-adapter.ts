import { withAddress } from '../../../ffi/native.ts';
import type { CUdeviceptr } from '../../../ffi/types.ts';
import type { Context, MemoryInfo } from '../../context.ts';
import type { Stream } from '../../stream.ts';
import { type ClassOf, checkInteger, checkOptions, className } from '../../validate.ts';
import { type AllocateOptions, DeviceBuffer, type ManagerResource } from '../buffer.ts';
import type { HostAllocation, HostMemoryKind } from '../host-allocation.ts';
import { viewDriverMemory } from '../host-views.ts';
import type { LockFlags, PageLock } from '../page-lock.ts';
import { type BaseMemoryManager, viewsOfPointer } from './host-only-manager.ts';
import { AutoFreePointer, MappedPointer, MemoryPointer, PinnedPointer } from './memory-pointer.ts';
import * as validate from './validate-manager.ts';

/** A memory manager's class. Its constructor receives the context whose memory it owns. */
export type MemoryManagerClass = new (context: Context) => BaseMemoryManager;

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
      return validate.checkIpcHandle(this.#callOf('getIpcHandle'), result, {
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
    return validate.checkMemoryInfo(this.#callOf('getMemoryInfo'), result);
  }

  deferCleanup(): Disposable {
    // The manager does not own streams, events and explicitly named resources.
    const cuffiScope = this.context.releases.defer();
    try {
      const result = this.#callManager((manager) => manager.deferCleanup());
      const managerScope = validate.checkDisposable(this.#callOf('deferCleanup'), result);
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
      this.#manager ??= validate.checkManager(new Manager(this.context));
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
    return validate.checkPointer(this.#callOf(method), result, { type, context, byteLength });
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
