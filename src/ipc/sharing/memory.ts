/** What all kinds of memory have in common, and arrays in it. */

import type { CUdeviceptr } from '../../../ffi/types.ts';
import { DeviceArray } from '../../array/device-array.ts';
import { hasRepeatedItems, layoutExtents } from '../../array/layout.ts';
import type { Context } from '../../context.ts';
import { IpcError } from '../../errors.ts';
import { releaseOrWarn, runAll } from '../../lifetime.ts';
import {
  type Access,
  type BufferInit,
  DeviceBuffer,
  keepMemoryAlive,
  type StreamOrderedRelease,
} from '../../memory/buffer.ts';
import { ManagerAdapter } from '../../memory/manager/manager-adapter.ts';
import { addContextFd, closeContextFd } from '../../memory/physical-memory.ts';
import { allocationBase } from '../../memory/pointer-attributes.ts';
import { addOrderedMemory, MemoryUses, removeOrderedMemory } from '../../memory/use-order.ts';
import { VirtualMemory } from '../../memory/virtual.ts';
import type { Stream, StreamOption } from '../../stream.ts';
import { checkInstance, formatBytes } from '../../validate.ts';
import {
  checkRange,
  type DescriptorFields,
  describeLayout,
  type ExportedFields,
  invalidDescriptor,
  isMemoryFields,
  layoutOf,
  type MemoryFields,
} from '../descriptor.ts';
import { isExporterGone } from '../identity.ts';
import { factsOf, type ImportSource, knownFacts } from './facts.ts';
import type {
  AddressRange,
  AliasRequest,
  DescribedKind,
  ImportLease,
  OpenRequest,
  Probe,
  ProbeObject,
  SampleMemory,
} from './kind.ts';
import type { ImportedMapping, MappingUse } from './mapping.ts';
import { publish, useFromOtherThread } from './worker-exports.ts';

/** Memory that can be shared with another process. Virtual memory arrives as a buffer. */
export type ShareableMemory = DeviceArray | DeviceBuffer | VirtualMemory;

export const isShareableMemory = (object: unknown): object is ShareableMemory =>
  object instanceof DeviceBuffer ||
  object instanceof DeviceArray ||
  object instanceof VirtualMemory;

/** The buffer that memory is, or lies in. @throws ClosedError for virtual memory */
export const bufferIn = (object: ShareableMemory): DeviceBuffer =>
  object instanceof DeviceBuffer ? object : object.buffer;

/** A kind of memory. */
export interface MemoryKind<F extends MemoryFields = MemoryFields>
  extends DescribedKind<ShareableMemory, F> {
  /** Allocates such memory, to try it. */
  allocate(byteLength: number, context: Context): SampleMemory;
}

/** Whether this process made a buffer of virtual memory. */
export const isVirtual = (buffer: DeviceBuffer): boolean =>
  buffer.origin === 'allocated' && buffer.keepalive instanceof VirtualMemory;

/** What the rows of all kinds of memory have in common. */
export const memoryTraits = {
  label: 'memory',
  noun: 'memory',
  opener: 'openIpcBuffer',
  areUsesSeen: true,
  // Virtual memory may grow. Borrowed memory may have been freed and allocated again.
  isConstant: (object) =>
    !(object instanceof VirtualMemory) && bufferIn(object).origin !== 'borrowed',
  bufferOf: bufferIn,
  ownerOf,
  byteLengthOf(object) {
    const owner = ownerOf(object);
    return owner instanceof VirtualMemory ? owner.mappedByteLength : owner.byteLength;
  },
  contextOf: (object): Context => bufferIn(object).context,
  rangeOf,
  keep: (object, name) => keepMemoryAlive(bufferIn(object), name),
  publish: (object, fields) => publish(bufferIn(object), rangeOf(object).begin, fields),
  // Borrowed memory has no number.
  nameOf: ({ generation }) => (generation === 0 ? undefined : `memory ${generation}`),
  alias: (exported, fields, request) => aliasOf(rangeIn(exported, fields), fields, request),
} satisfies Partial<DescribedKind<ShareableMemory, MemoryFields>>;

/** @throws IpcError for a range beyond its allocation, and for items beyond the range */
export function checkMemory(fields: MemoryFields, inconsistency?: string): void {
  if (inconsistency) throw invalidDescriptor([fields.kind], inconsistency);
  checkRange(fields);
  if (fields.layout) layoutOf(fields);
}

function ownerOf(object: ShareableMemory): DeviceBuffer | VirtualMemory {
  if (object instanceof VirtualMemory) return object;
  const { keepalive, root } = bufferIn(object);
  return keepalive instanceof VirtualMemory ? keepalive : root;
}

function rangeOf(object: ShareableMemory): AddressRange {
  const { readableAddress: address, byteLength, access } = bufferIn(object);
  if (!(object instanceof DeviceArray))
    return { begin: address, end: address + byteLength, access };
  const { low, high } = layoutExtents(object.layout);
  return {
    begin: address + low,
    end: address + high,
    access: object.readOnly ? 'read' : access,
  };
}

/** The stream that uses an object by default. */
export const defaultStreamOf = (object: object): Stream | undefined =>
  object instanceof DeviceArray && object.stream?.closed === false ? object.stream : undefined;

// ---- Exporting ----

/**
 * Exports memory of one kind, or as it came from another process.
 *
 * @param exportOwn exports a buffer of this process that has bytes
 * @param alwaysWritable as in the row of the kind
 */
export function exportMemory(
  object: ShareableMemory,
  exportOwn: (buffer: DeviceBuffer) => ExportedFields,
  alwaysWritable?: string,
): ExportedFields {
  if (!(object instanceof DeviceArray))
    return exportBuffer(bufferIn(object), exportOwn, alwaysWritable);
  const { descriptor, fds } = exportBuffer(
    bytesOfItems(object, !alwaysWritable),
    exportOwn,
    alwaysWritable,
  );
  return { descriptor: withLayout(descriptor as MemoryFields, object), fds };
}

function exportBuffer(
  buffer: DeviceBuffer,
  exportOwn: (buffer: DeviceBuffer) => ExportedFields,
  alwaysWritable: string | undefined,
): ExportedFields {
  const { readableAddress: address, byteLength, access, root } = buffer;
  if (byteLength === 0) throw new RangeError(`an empty buffer (at ${address}) cannot be shared`);
  if (access === 'read' && alwaysWritable) refuseReadOnly(alwaysWritable);
  const source = sourceOf(buffer);
  if (!source) return exportOwn(buffer);
  // The descriptor it was opened with, narrowed to this view. Bytes have no layout, and the ready
  // event was for this process.
  const { layout: _, readyEvent: __, ...fields } = source.descriptor;
  const byteOffset = source.descriptor.byteOffset + (address - root.readableAddress);
  return { descriptor: { ...fields, byteOffset, byteLength, access }, fds: source.fds() };
}

/**
 * @param what memory that the driver always maps for reading and writing. For virtual memory, its
 * importer chooses the access. So read-only memory is shared as virtual memory or not at all, and an
 * importer does not rely on the descriptor alone
 * @throws IpcError always
 */
function refuseReadOnly(what: string): never {
  throw new IpcError(
    `${what} cannot be shared read-only: the driver gives every process that opens it write ` +
      'access. Share virtual memory (VirtualMemory.reserve(byteLength, { shareable: true })), ' +
      'a copy, or the memory for reading and writing',
    undefined,
    'not-supported',
  );
}

/** What an imported buffer was opened with; undefined for memory of this process. */
export const sourceOf = (buffer: DeviceBuffer): ImportSource<MemoryFields> | undefined =>
  buffer.origin === 'imported'
    ? (knownFacts(buffer.root)?.source as ImportSource<MemoryFields> | undefined)
    : undefined;

/**
 * Returns exactly the bytes that the items of an array occupy, from the first to the last.
 *
 * @param isProtectable whether the driver can map the memory without write access
 * @throws RangeError for an array without items, ClosedError
 */
export function bytesOfItems(array: DeviceArray, isProtectable: boolean): DeviceBuffer {
  array.assertOpen();
  const { buffer, layout, readOnly } = array;
  const { low, high } = layoutExtents(layout);
  if (low === high) throw new RangeError('an array without items has no memory that can be shared');
  const bytes = buffer.subarray(low, high);
  // A process that opens an array with repeated items sees by its layout that it is read-only.
  return readOnly && (isProtectable || !hasRepeatedItems(layout)) ? bytes.readOnly() : bytes;
}

/** Adds the layout of an array to the descriptor of the bytes of its items. */
export const withLayout = <M extends MemoryFields>(descriptor: M, array: DeviceArray): M => ({
  ...descriptor,
  layout: describeLayout(array.dtype, array.layout),
});

// ---- Memory of other processes ----

/**
 * How imported memory is closed: its exporter is notified, and the mapping is released. A class, as
 * each hand-over makes one: an object literal with spread parts took 3 µs.
 */
class ImportRelease implements StreamOrderedRelease {
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

/** @internal What an imported buffer is made of, besides its request. */
interface ImportedBufferInit
  extends Pick<BufferInit, 'resource' | 'owner' | 'mappingBoundaries' | 'deviceAccess'> {
  /** The use of the mapping that contains the descriptor's range. The buffer releases it. */
  readonly use: MappingUse<ImportedMapping>;
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
  request: Pick<OpenRequest<MemoryFields>, 'descriptor' | 'context' | 'access' | 'lease'>,
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
  factsOf(buffer).source = { descriptor, fds };
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
  const facts = knownFacts(buffer);
  if (!buffer.isMapped || buffer.root !== buffer || !facts?.source)
    throw new TypeError(
      'only a buffer of another process that openIpcBuffer returned can be moved: a view and memory of ' +
        'this process own no mapping',
    );
  const moved = buffer.moveToNewBuffer();
  const { source, owner } = facts;
  Object.assign(factsOf(moved), { source, owner });
  owner?.moved?.(moved);
  return moved;
}

/**
 * Opens memory of another thread of this process, of any kind: it has the same address here.
 *
 * @param needsFds whether other processes need its file descriptors to open it
 */
export function openThreadMemory(
  request: Omit<OpenRequest<MemoryFields>, 'assertOpenable'>,
  needsFds: boolean,
): DeviceBuffer {
  const { context, descriptor, fds } = request;
  const { mapping, release } = useFromOtherThread(context, descriptor);
  const keptFds: number[] = [];
  const buffer = importedBuffer(request, {
    use: {
      mapping,
      release: (onReleased) =>
        runAll([
          () => release(onReleased),
          ...keptFds.map((fd) => () => closeContextFd(context, fd)),
        ]),
    },
    fds() {
      if (!needsFds || keptFds.length > 0) return keptFds;
      throw new IpcError(
        'memory of another thread was opened here without its file descriptors, which other processes ' +
          'need: share it in the thread that made it',
      );
    },
  });
  for (const fd of fds.take()) keptFds.push(addContextFd(context, fd));
  return buffer;
}

// ---- Arrays, and memory that comes back ----

/**
 * Returns the array that the descriptor of an opened buffer describes. Closing the array closes the
 * mapping.
 *
 * @throws IpcError if the items exceed the opened memory, which is then closed
 */
export function asArray<O>(
  opened: O,
  descriptor: DescriptorFields,
  stream?: StreamOption['stream'],
): O | DeviceArray {
  if (!(opened instanceof DeviceBuffer) || !isMemoryFields(descriptor)) return opened;
  try {
    const parsed = layoutOf(descriptor);
    if (!parsed) return opened;
    const { high } = layoutExtents(parsed.layout);
    if (high > opened.byteLength)
      throw new IpcError(
        `the items of an array of process ${descriptor.pid} take ${formatBytes(high)}, but the memory ` +
          `that it shared has ${opened.byteLength}`,
        undefined,
        'invalid-descriptor',
      );
    const readOnly = opened.access === 'read' || hasRepeatedItems(parsed.layout);
    return new DeviceArray({ buffer: opened, ...parsed, stream, isOwner: true, readOnly });
  } catch (error) {
    releaseOrWarn(() => opened.close());
    throw error;
  }
}

/** Returns an alias of a range of this process's own memory. */
export function aliasOf(
  range: DeviceBuffer | undefined,
  descriptor: MemoryFields,
  { access, lease, verify }: AliasRequest,
): DeviceBuffer | undefined {
  if (!range) return undefined;
  const isReadOnly = access === 'read' || descriptor.access === 'read';
  const view = isReadOnly ? range.readOnly() : range;
  verify(view);
  if (!lease) return view;
  // Its `close()` notifies the process that sent this memory back.
  const leased = new ImportRelease(view.context, (returned) => returned?.(), lease, false);
  return view.view(0, view.byteLength, view.access, { release: () => leased.release() });
}

/** Returns the range of a descriptor in a buffer; undefined for what is not a buffer. */
export function rangeIn(
  exported: object | undefined,
  descriptor: MemoryFields,
): DeviceBuffer | undefined {
  if (!(exported instanceof DeviceBuffer)) return undefined;
  const { byteOffset, byteLength } = descriptor;
  const before = offsetInAllocation(exported);
  if (byteOffset < before) return undefined;
  checkRange(descriptor, before + exported.byteLength);
  const begin = byteOffset - before;
  return exported.subarray(begin, begin + byteLength);
}

/**
 * A memory manager may return parts of its allocations. Descriptors count from the start of the
 * allocation.
 */
const offsetInAllocation = ({
  resource,
  readableAddress: address,
  context,
}: DeviceBuffer): number =>
  resource instanceof ManagerAdapter ? address - context.run(() => allocationBase(address)) : 0;

// ---- Memory with a pattern, which two processes share to try a kind of memory ----

const PROBE_BYTE_LENGTH = 64 << 10;

const pattern = (factor: number): Uint32Array =>
  new Uint32Array(PROBE_BYTE_LENGTH / 4).map((_, index) => Math.imul(index + 1, factor));
const OFFERED = 0x9e37_79b1;
const WRITTEN_BACK = 0x85eb_ca6b;

const isPattern = (values: Uint32Array, factor: number): boolean =>
  values.every((value, index) => value === Math.imul(index + 1, factor) >>> 0);

const read = (buffer: DeviceBuffer): Promise<Uint32Array> =>
  buffer.copyToHost(new Uint32Array(PROBE_BYTE_LENGTH / 4));

/** A probe of a kind of memory, which the other process gets with that access. */
export const memoryProbe = (
  about: Pick<Probe, 'name' | 'title' | 'how' | 'capability'>,
  allocate: (byteLength: number, context: Context) => SampleMemory,
  access?: Access,
): Probe => ({
  ...about,
  make: (context) => filled(allocate(PROBE_BYTE_LENGTH, context), access),
  check: (object) => checkProbe(object, access),
});

/** Fills memory with what the other process must find. The result owns it. */
async function filled(memory: SampleMemory, access: Access = 'read-write'): Promise<ProbeObject> {
  const { buffer } = memory;
  const dispose = (): void => memory[Symbol.dispose]();
  try {
    await buffer.copyFrom(pattern(OFFERED));
    return access === 'read'
      ? { object: buffer.readOnly(), [Symbol.dispose]: dispose }
      : { object: buffer, writable: buffer, [Symbol.dispose]: dispose };
  } catch (error) {
    dispose();
    throw error;
  }
}

/** Checks memory that has arrived, and writes back. Returns what is wrong with it. */
async function checkProbe(object: object, access: Access = 'read-write'): Promise<string> {
  if (!(object instanceof DeviceBuffer)) return 'it arrived as another object';
  if (object.byteLength !== PROBE_BYTE_LENGTH) return 'it arrived with another size';
  if (object.access !== access) return `it arrived as ${object.access} memory`;
  if (!isPattern(await read(object), OFFERED)) return 'its contents differ here';
  if (access === 'read-write') await object.copyFrom(pattern(WRITTEN_BACK));
  return '';
}

/** Whether the other process has written back. */
export const hasAnswer = async (buffer: DeviceBuffer): Promise<boolean> =>
  isPattern(await read(buffer), WRITTEN_BACK);
