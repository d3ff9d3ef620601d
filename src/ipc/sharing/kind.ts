/**
 * What a kind of shared object is: the row that each file of a kind exports and kinds.ts lists, and
 * what its functions are given.
 */

import { discardFds } from '../../../ffi/linux/close-fd.ts';
import type { Context, PlaceOptions } from '../../context.ts';
import type { Device } from '../../device.ts';
import { IpcError } from '../../errors.ts';
import type { CudaEvent } from '../../event.ts';
import type { Resource } from '../../lifetime.ts';
import type { Access, DeviceBuffer } from '../../memory/buffer.ts';
import type { MemoryPool } from '../../memory/pool.ts';
import type { Stream } from '../../stream.ts';
import type { AnyExported, AnyFields, DescriptorFields } from '../descriptor.ts';
import type { SendingProcess } from '../timeline/timeline-state.ts';
import type { IpcSupport, OpenBlocker } from './blockers.ts';

/** A kind of object that processes can share: how its objects travel. */
export interface Kind<T extends object = object, F extends AnyFields = AnyFields> {
  /** Its name in protocol.json. */
  readonly name: F['kind'];
  /** What its objects are in one word, as `leases.stats()` shows it. Default: the name. */
  readonly label?: string;
  /** Whether an object of this process is of this kind. Asked once for each object. */
  includes(object: object): object is T;
  /** Whether fields with its name describe an object of this kind. Default: yes. */
  describes?(fields: F): boolean;
  /** @throws IpcError for fields that are valid one by one but inconsistent */
  check?(fields: F): void;

  // ---- An object of this process, for others ----

  /** @throws IpcError, ClosedError, RangeError for memory without bytes */
  export(object: T): AnyExported;
  /** Whether its export is the same each time, while it is open. Default: no. */
  isConstant?(object: T): boolean;
  /** Returns what one peer gets of an export. Default: all of it. */
  forPeer?(object: T, encoded: EncodedExport, session: SharingSession): EncodedExport;
  /** Lets the other threads of this process open what was exported. Default: they can't. */
  publish?(object: T, fields: F): void;
  /**
   * Keeps an object for another process. Returns the function that ends the keeping. Default: until
   * then, nothing that the object owns is released.
   *
   * @param name who keeps it, for error messages
   * @throws ClosedError
   */
  keep?(object: T, name: string): () => void;
  /** The buffer that an object is, or lies in. */
  bufferOf?(object: T): DeviceBuffer;
  /** The resource that owns its memory, which must not be freed meanwhile. Default: the object. */
  ownerOf?(object: T): Resource;
  /** How many bytes of memory it keeps allocated. Default: none. */
  byteLengthOf?(object: T): number;
  /** The context whose streams use an object. Default: no stream uses it. */
  contextOf?(object: T): Context;
  /** The device that it is on; undefined for host memory. Default: that of its context. */
  deviceOf?(object: T): Device | undefined;
  /** Its addresses; for an array, those of its items. Default: it has none. */
  rangeOf?(object: T): AddressRange;
  /**
   * Whether cuffi sees which streams use an object. Those then wait for the work of other processes
   * on it; otherwise the stream that it was sent with does. Default: no.
   */
  readonly areUsesSeen?: boolean;

  // ---- An object of another process ----

  /**
   * Opens what another process exported. The caller keeps the file descriptors that are not taken.
   *
   * @throws IpcError
   */
  import(fields: F, fds: ReceivedFds, options: Omit<OpenOptions, 'fds'>, sender?: Sender): object;
  /** Calls `open` with the file descriptors that the peer has sent for an object, now or before. */
  fromPeer?<O extends object>(
    fields: F,
    fds: OwnedFds,
    session: SharingSession,
    open: (fds: ReceivedFds) => O,
  ): O;
  /** Closes an imported object that nobody received. Default: `close()`. */
  discard?(object: T): void;

  /** What `cuffi doctor` and `cuffi ls` try between two processes. */
  readonly probes?: readonly Probe[];
}

/** A kind whose objects have descriptors: each belongs to a GPU, and to the process that made it. */
export interface DescribedKind<
  T extends object = object,
  F extends DescriptorFields = DescriptorFields,
> extends Kind<T, F> {
  /** What the device must support. */
  readonly capability: keyof IpcSupport;
  /** What its objects are, for error messages. */
  readonly noun: 'event' | 'memory';
  /** The function that opens its descriptors. */
  readonly opener: 'openIpcBuffer' | 'openIpcEvent' | 'openIpcPool';
  /** Whether the driver finds an object by the pid of its exporter. */
  readonly isByPid?: boolean;
  /** What its memory is called, if the driver always maps it for reading and writing. */
  readonly alwaysWritable?: string;
  /** Whether an object can be opened after its exporter has exited. */
  readonly outlivesExporter?: boolean;
  /** What a descriptor describes, and how it travels. */
  readonly description: string;
  /** Whether its file descriptors keep an object alive. Default: no. */
  isKeptByFds?(fields: F): boolean;
  /** The name that an object was exported by: see `rememberExport`. Undefined if it has none. */
  nameOf(fields: F): string | undefined;
  /** Opens an object of another process. @throws IpcError, CudaError */
  open(request: OpenRequest<F>): object;
  /**
   * Opens what this process exported by the name of a descriptor, as an alias with its own `close()`.
   * Undefined if that is of another kind, or gone.
   */
  alias(exported: object | undefined, fields: F, request: AliasRequest): object | undefined;
  /** What prevents opening it, besides what holds for all kinds. Calls no driver. */
  blocker?(
    fields: F,
    context: Context,
    fds: Pick<ReceivedFds, 'numbers' | 'isNameTrusted'>,
  ): OpenBlocker | undefined;
  /**
   * Whether exactly this memory is already mapped in the context. Then the driver is not called, and
   * nothing can prevent opening it. Default: no.
   */
  isMapped?(
    fields: F,
    context: Context,
    fds: Pick<ReceivedFds, 'numbers' | 'isNameTrusted'>,
    access: Access,
  ): boolean;
  /** Whether the file descriptors allow only reading. Default: no. */
  isReadOnly?(fds: readonly number[]): boolean;
}

/** An exported object as a connection sends it. */
export interface EncodedExport extends AnyExported {
  /** The encoded fields: what is put on the wire. */
  readonly bytes: Uint8Array;
  /** Those of the file descriptors that are closed once they are sent. Default: none. */
  readonly ownFds?: readonly number[];
}

/** A range of addresses and its access. */
export interface AddressRange {
  readonly begin: number;
  readonly end: number;
  readonly access: Access;
}

/** Memory that was allocated to try a kind of memory. Dispose frees it. */
export interface SampleMemory extends Disposable {
  readonly buffer: DeviceBuffer;
}

/** An object that one process shares with another, to try whether that works. */
export interface Probe {
  readonly name: string;
  /** For the report: what is tried, and how it travels. */
  readonly title: string;
  readonly how: string;
  /** What the device must support. Default: nothing, as no device is needed. */
  readonly capability?: keyof IpcSupport;
  /** Whether the driver keeps the object in /dev/shm. */
  readonly needsSharedMemory?: boolean;
  /** Makes an object that is shared. Dispose releases it. */
  make(context: Context): ProbeObject | Promise<ProbeObject>;
  /** Uses an object that has arrived, and returns what is wrong with it. */
  check(object: object, timeoutMs: number): string | Promise<string>;
}

/** An object to share for a {@link Probe}. */
export interface ProbeObject extends Disposable {
  readonly object: Resource;
  /** The memory that the other process writes to. Undefined if it cannot. */
  readonly writable?: DeviceBuffer;
}

// ---- Opening ----

/**
 * Options of the functions that open a descriptor. By default they open it in the primary context
 * of its GPU.
 */
export interface OpenOptions extends PlaceOptions {
  /**
   * The file descriptors that came with it. cuffi owns them from now on. It closes them when they
   * are no longer needed, or if the object cannot be opened.
   */
  readonly fds?: readonly number[];
  /**
   * The access to the memory: at most what the exporter allows. `'read'` maps virtual memory
   * without write access. For other kinds, it only keeps cuffi's own copies and fills from writing.
   */
  readonly access?: Access;
  /**
   * What happens to a descriptor of this very thread of this process. Default `'refuse'`. `'alias'`
   * opens it as a view of the object that it names, with its own `close()`; closing that object
   * closes the view.
   */
  readonly sameProcess?: 'refuse' | 'alias';
  /** Whether memory of other users' processes may be opened. Default false. */
  readonly allowOtherUsers?: boolean;
}

/** What opening an object of another process needs. */
export interface OpenRequest<F extends DescriptorFields = DescriptorFields> {
  readonly descriptor: F;
  readonly context: Context;
  readonly access: Access;
  readonly fds: ReceivedFds;
  readonly lease: ImportLease | undefined;
  /**
   * Called before anything is opened that is not mapped here yet.
   *
   * @throws IpcError for what prevents that
   */
  assertOpenable(): void;
}

/** What opening an object of this very process needs. */
export interface AliasRequest {
  readonly access: Access;
  readonly lease: ImportLease | undefined;
  /** @throws IpcError for an object that was not exported to the sender */
  verify(object: DeviceBuffer | CudaEvent | MemoryPool): void;
}

/** File descriptors that came with a descriptor. */
export interface ReceivedFds {
  readonly numbers: readonly number[];
  /**
   * Whether the stated identity of a pool is trusted: if the program itself opens it, or if the
   * kernel says that the pool's maker sent it. Any other process may state any identity.
   */
  readonly isNameTrusted: boolean;
  /** Returns all of them. The caller then owns them. */
  take(): readonly number[];
}

/** File descriptors that came with a descriptor. Those that are not taken are closed. */
export class OwnedFds implements ReceivedFds, Disposable {
  readonly numbers: readonly number[];
  readonly isNameTrusted: boolean;
  #isOwner = true;

  constructor(fds: readonly number[], isNameTrusted: boolean) {
    this.numbers = fds;
    this.isNameTrusted = isNameTrusted;
  }

  take(): readonly number[] {
    this.#isOwner = false;
    return this.numbers;
  }

  [Symbol.dispose](): void {
    if (!this.#isOwner) return;
    this.#isOwner = false;
    if (this.numbers.length > 0) discardFds(this.numbers);
  }
}

/** Takes the file descriptors of an object. @throws IpcError if there are more or fewer */
export function takeFds(what: string, expected: number, fds: ReceivedFds): readonly number[] {
  if (fds.numbers.length === expected) return fds.take();
  throw new IpcError(
    `${what} needs ${expected} file descriptor${expected === 1 ? '' : 's'}, but ${fds.numbers.length} came with it`,
    undefined,
    'no-file-descriptor',
  );
}

// ---- Connections ----

/**
 * The lease on one object that another process exported and that is open here. It notifies that
 * process.
 */
export interface ImportLease {
  /**
   * The object was closed. Only work that is already queued may use it.
   *
   * @param streams the streams in which it may, with undefined for the context's legacy default stream;
   * undefined if any may
   */
  closed(context: Context, streams: readonly (Stream | undefined)[] | undefined): void;
  /** Nothing here can reach the object by this lease any longer. */
  released(): void;
}

/** The other end of the connection that a descriptor came over. */
export interface Sender {
  readonly lease: ImportLease | undefined;
  readonly session: SharingSession;
}

/** What one end of a connection remembers about the other, e.g. which pools it already has. */
export interface SharingSession {
  /**
   * Pools already sent to this peer, each with a function that unsubscribes from its close event.
   */
  readonly sentPools: Map<string, () => void>;
  readonly receivedPools: Map<string, unknown>;
  /**
   * The process at the other end, as the kernel states it. Its pid is 0 if it is not visible here.
   */
  readonly process?: SendingProcess;
  /** Tells the other end that a pool was closed. */
  onPoolClosed(pool: string): void;
  /**
   * Whether this process has exported the object to the other: an object, or all of a range with that
   * access.
   */
  hasLeaseOn(object: DeviceBuffer | CudaEvent | MemoryPool): boolean;
  /**
   * Whether the other has a lease on an object that was exported by that name, and that was collected
   * here since. Default: no.
   */
  hasLeaseOnCollected?(name: string): boolean;
}

/** Whether the other end is a thread of this process. */
export const isOwnProcess = (session: SharingSession): boolean =>
  session.process?.pid === process.pid;
