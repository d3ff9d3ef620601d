/** Objects of other processes that are open here: what opening one needs, and what it keeps. */

import { discardFds } from '../../../ffi/linux/close-fd.ts';
import type { CUdeviceptr } from '../../../ffi/types.ts';
import type { Context } from '../../context.ts';
import type { CudaEvent } from '../../event.ts';
import {
  type Access,
  type BufferInit,
  DeviceBuffer,
  type StreamOrderedRelease,
} from '../../memory/buffer.ts';
import type { MemoryPool } from '../../memory/pool.ts';
import { addOrderedMemory, MemoryUses, removeOrderedMemory } from '../../memory/use-order.ts';
import type { Stream } from '../../stream.ts';
import { checkInstance } from '../../validate.ts';
import {
  checkRange,
  checkReadOnlyKind,
  type DescriptorFields,
  type ExportedFields,
  type IpcKind,
  type MemoryFields,
  type MemoryKind,
} from '../descriptor.ts';
import { isExporterGone } from '../identity.ts';
import type { SendingProcess } from '../timeline/timeline-state.ts';
import type { Mapping, MappingUse } from './mapping.ts';

/** What opening an object of another process needs. */
export interface OpenRequest<K extends IpcKind = IpcKind> {
  readonly descriptor: DescriptorFields<K>;
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
  /** The process there, as the kernel states it. */
  readonly process?: SendingProcess | undefined;
  /** Whether it is a thread of this process. */
  readonly isOwnProcess: boolean;
  /**
   * Whether this process has exported the object to it: an object, or all of a range with that
   * access.
   */
  hasLeaseOn(object: DeviceBuffer | CudaEvent | MemoryPool): boolean;
  /**
   * Whether it has a lease on an object that was exported by that name, and that was collected here
   * since.
   */
  hasLeaseOnCollected(name: string): boolean;
}

/**
 * How imported memory is closed: its exporter is notified, and the mapping is released. A class, as
 * each hand-over makes one: an object literal with spread parts took 3 µs.
 */
export class ImportRelease implements StreamOrderedRelease {
  /** Undefined if nobody asks, or if not all uses of the memory are seen: those of a part of other memory. */
  readonly uses: MemoryUses | undefined;
  readonly #context: Context;
  readonly #release: (onReleased?: () => void) => void;
  readonly #lease: ImportLease | undefined;
  readonly #isStreamOrdered: boolean;
  #lastStream: Stream | undefined;

  /**
   * @param isRoot whether all uses of the memory are seen
   * @param isStreamOrdered whether a stream that `close()` names says after which work the memory may
   * be released
   */
  constructor(
    context: Context,
    release: (onReleased?: () => void) => void,
    lease: ImportLease | undefined,
    isRoot: boolean,
    isStreamOrdered = true,
  ) {
    this.#context = context;
    this.#release = release;
    this.#lease = lease;
    this.#isStreamOrdered = isStreamOrdered;
    if (!lease || !isRoot) return;
    this.uses = new MemoryUses();
    addOrderedMemory();
  }

  setStream(stream: Stream): void {
    if (!this.#isStreamOrdered) return;
    this.#context.workTracker.addOtherContext(stream.context.workTracker);
    this.#lastStream = stream;
  }

  release(): void {
    if (this.uses) removeOrderedMemory();
    const release = this.#release;
    const lease = this.#lease;
    if (!lease) {
      release();
      return;
    }
    try {
      lease.closed(this.#context, this.#lastStream ? [this.#lastStream] : this.uses?.streams);
    } finally {
      release(() => lease.released());
    }
  }
}

// ---- Imported buffers ----

/** @internal What an imported buffer is made of, besides its request. */
interface ImportedBufferInit
  extends Pick<BufferInit, 'resource' | 'owner' | 'mappingBoundaries' | 'deviceAccess'> {
  /** The use of the mapping that contains the descriptor's range. The buffer releases it. */
  readonly use: MappingUse<Mapping>;
  /** The file descriptors that exporting it again needs. */
  readonly fds: () => readonly number[];
  /** Whether a stream that `close()` names says after which work the memory may be released. */
  readonly isStreamOrdered?: boolean;
}

/**
 * @internal Returns the buffer for the range of a descriptor in a mapping.
 *
 * @throws IpcError for a range beyond the mapping, which may be smaller than the descriptor says or
 * belong to an earlier descriptor; its use is then released
 */
export function importedBuffer(
  request: Pick<OpenRequest<MemoryKind>, 'descriptor' | 'context' | 'access' | 'lease'>,
  { use, fds, isStreamOrdered = true, ...init }: ImportedBufferInit,
): DeviceBuffer {
  const { descriptor, context, access, lease } = request;
  const { base, byteLength } = use.mapping;
  try {
    checkRange(descriptor, byteLength);
  } catch (error) {
    use.release();
    throw error;
  }
  const buffer = new DeviceBuffer({
    context,
    address: (base + descriptor.byteOffset) as CUdeviceptr,
    byteLength: descriptor.byteLength,
    origin: 'imported',
    release: new ImportRelease(context, use.release, lease, true, isStreamOrdered),
    isOwnerGone: () => isExporterGone(descriptor),
    access,
    ...init,
  });
  setImportSource(buffer, { descriptor, fds });
  return buffer;
}

/**
 * Moves the ownership of imported memory to a new buffer. The returned buffer closes the mapping,
 * even if `buffer` goes out of scope. `buffer` and its views count as closed.
 *
 * @throws TypeError for a view, and for a buffer of this process's own memory; CuffiError while a
 * handle made of it is open; ClosedError
 * @example
 * function open(message: unknown): DeviceBuffer {
 *   using buffer = openIpcBuffer(message);
 *   check(buffer); // what throws closes it
 *   return moveIpcBuffer(buffer);
 * }
 */
export function moveIpcBuffer(buffer: DeviceBuffer): DeviceBuffer {
  checkInstance(buffer, DeviceBuffer, 'buffer').assertOpen();
  const source = importSourceOf(buffer);
  if (!buffer.isMapped || buffer.root !== buffer || !source)
    throw new TypeError(
      'only a buffer of another process that openIpcBuffer returned can be moved: a view and memory of ' +
        'this process own no mapping',
    );
  const moved = buffer.moveToNewBuffer();
  setImportSource(moved, source);
  return moved;
}

// ---- What an object was opened with, to export it again ----

/**
 * The descriptor and file descriptors that an object was opened with. The object keeps the file
 * descriptors open.
 */
export interface ImportSource<D extends DescriptorFields = DescriptorFields> {
  readonly descriptor: D;
  fds(): readonly number[];
}

// Stored on the object: a WeakMap with an entry for each message would slow down garbage
// collection.
const IMPORT_SOURCE = Symbol('origin');

interface WithImportSource {
  [IMPORT_SOURCE]?: ImportSource;
}

export function setImportSource(object: object, source: ImportSource): void {
  (object as WithImportSource)[IMPORT_SOURCE] = source;
}

export const importSourceOf = (object: object): ImportSource | undefined =>
  (object as WithImportSource)[IMPORT_SOURCE];

/** Exports an imported buffer again: the descriptor it was opened with, narrowed to this view. */
export function reexportBuffer(
  buffer: DeviceBuffer,
  { descriptor, fds }: ImportSource<MemoryFields>,
): ExportedFields {
  const { readableAddress: address, byteLength, access, root } = buffer;
  if (access === 'read') checkReadOnlyKind(descriptor.kind);
  // Bytes have no layout, and the ready event was for this process.
  const { layout: _, readyEvent: __, ...fields } = descriptor;
  const byteOffset = descriptor.byteOffset + (address - root.readableAddress);
  return { descriptor: { ...fields, byteOffset, byteLength, access }, fds: fds() };
}
