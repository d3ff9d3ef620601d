import { isSameFile } from '../../../ffi/linux/libc.ts';
import { isMarkedReadOnly } from '../../../ffi/memory-fd.ts';
import type { CUdeviceptr } from '../../../ffi/types.ts';
import type { Context } from '../../context.ts';
import { IpcError } from '../../errors.ts';
import { releaseOrWarn } from '../../lifetime.ts';
import type { Access, DeviceBuffer } from '../../memory/buffer.ts';
import {
  addContextFd,
  allowAccess,
  freeReservation,
  importChunk,
  type PhysicalChunk,
  reserveAddresses,
  VirtualAccess,
} from '../../memory/physical-memory.ts';
import { VirtualMemory } from '../../memory/virtual.ts';
import { checkRange, type DescriptorFields, type ExportedFields } from '../descriptor.ts';
import { PACKET_FDS } from '../protocol.ts';
import { checkOpened, fdBlocker } from './blockers.ts';
import { describeExporter, exportIdOf } from './facts.ts';
import type { OpenRequest, SampleMemory } from './kind.ts';
import { type ImportedMapping, MappingTable, tableByContext } from './mapping.ts';
import {
  aliasOf,
  asArray,
  bufferIn,
  checkMemory,
  exportMemory,
  importedBuffer,
  isShareableMemory,
  isVirtual,
  type MemoryKind,
  memoryProbe,
  memoryTraits,
  rangeIn,
  type ShareableMemory,
  sourceOf,
} from './memory.ts';
import { openDescriptor } from './open.ts';

/** Virtual memory. */
export const virtual: MemoryKind<DescriptorFields<'virtual'>> = {
  ...memoryTraits,
  name: 'virtual',
  capability: 'virtualMemory',
  // Its file descriptors keep the memory alive themselves.
  outlivesExporter: true,
  isKeptByFds: () => true,
  includes(object): object is ShareableMemory {
    if (object instanceof VirtualMemory) return true;
    if (!isShareableMemory(object)) return false;
    const buffer = bufferIn(object);
    return isVirtual(buffer) || sourceOf(buffer)?.descriptor.kind === 'virtual';
  },
  description: 'virtual memory, by its file descriptors',
  check(fields) {
    const sum = fields.pieces.reduce((total, piece) => total + piece, 0);
    checkMemory(
      fields,
      sum === fields.baseByteLength ? undefined : 'the pieces must add up to baseByteLength',
    );
  },
  export: (memory) => exportMemory(memory, exportOwn),
  import: (fields, ...given) => asArray(openDescriptor(virtual, fields, ...given), fields),
  open: openVirtual,
  alias: (exported, fields, request) =>
    aliasOf(
      exported instanceof VirtualMemory ? piecesIn(exported, fields) : rangeIn(exported, fields),
      fields,
      request,
    ),
  blocker: ({ pieces }, _context, { numbers }) =>
    fdBlocker('virtual memory', pieces.length, numbers),
  allocate,
  isMapped: (fields, context, { numbers }, access) =>
    mappings(context).has(mappingKey(context, fields, numbers, access), 0),
  isReadOnly: (fds) => fds.some(isMarkedReadOnly),
  probes: [
    memoryProbe(
      {
        name: 'virtual',
        title: 'virtual memory',
        how: 'by file descriptor',
        capability: 'virtualMemory',
      },
      allocate,
    ),
    memoryProbe(
      {
        name: 'read-only',
        title: 'read-only',
        how: 'virtual memory that the receiver cannot write to',
        capability: 'virtualMemory',
      },
      allocate,
      'read',
    ),
  ],
};

function allocate(byteLength: number, context: Context): SampleMemory {
  const memory = VirtualMemory.reserve(byteLength, { context, shareable: true });
  try {
    return { buffer: memory.grow(byteLength), [Symbol.dispose]: () => memory.close() };
  } catch (error) {
    memory.close();
    throw error;
  }
}

/** Returns the range of a descriptor in virtual memory; undefined for memory that was not exported. */
function piecesIn(
  memory: VirtualMemory,
  descriptor: DescriptorFields<'virtual'>,
): DeviceBuffer | undefined {
  const { byteOffset, byteLength } = descriptor;
  // The sender may state any access in the descriptor, but cannot guess the memory's name.
  const access = memory.accessOf(descriptor.memory);
  if (!access) return undefined;
  const first = memory.offsetOf(descriptor.firstPiece);
  checkRange(descriptor, memory.buffer.byteLength - first);
  const begin = first + byteOffset;
  const range = memory.buffer.subarray(begin, begin + byteLength);
  return access === 'read' ? range.readOnly() : range;
}

const exportOwn = (buffer: DeviceBuffer): ExportedFields =>
  exportVirtual(buffer, buffer.keepalive as VirtualMemory);

/**
 * Exports the pieces of virtual memory that contain a buffer, each by a file descriptor. @throws
 * IpcError
 */
export function exportVirtual(
  buffer: DeviceBuffer,
  memory: VirtualMemory,
): ExportedFields<'virtual'> {
  if (!memory.shareable)
    throw new IpcError('this virtual memory is not shareable: reserve it with { shareable: true }');
  const { byteLength, access, context } = buffer;
  const begin = buffer.readableAddress - memory.address;
  const { id, firstChunk, byteOffset, chunks } = memory.share(
    begin,
    begin + byteLength,
    PACKET_FDS,
    access,
  );
  const sizes = chunks.map((piece) => piece.byteLength);
  const descriptor = {
    kind: 'virtual',
    ...describeExporter(context.device),
    memory: id,
    firstPiece: firstChunk,
    pieces: sizes,
    baseByteLength: sizes.reduce((sum, size) => sum + size, 0),
    byteOffset,
    byteLength,
    access,
    bufferId: 0,
    generation: exportIdOf(memory),
  } as const;
  return { descriptor, fds: chunks.map(({ fd }) => fd) };
}

/** Pieces of another process's virtual memory, mapped one after the other. */
export interface VirtualMapping extends ImportedMapping {
  /** The pieces with their file descriptors, which exporting them again needs. */
  readonly chunks: PhysicalChunk[];
  readonly deviceAccess: VirtualAccess;
}

const mappings = tableByContext(
  () =>
    new MappingTable<VirtualMapping>(
      // cuMemUnmap does not wait for work that uses the memory.
      ({ context, base, byteLength, chunks }) => freeReservation(context, base, byteLength, chunks),
      { mayBlock: false },
    ),
);

/**
 * Opens virtual memory: maps the pieces that came with its descriptor, or adds a user to their
 * mapping. Takes their file descriptors if it maps them.
 *
 * @throws IpcError if the driver refuses them
 */
function openVirtual(request: OpenRequest<DescriptorFields<'virtual'>>): DeviceBuffer {
  const { descriptor, context, access, fds } = request;
  const key = mappingKey(context, descriptor, fds.numbers, access);
  const use = mappings(context).use(key, 0, context, () => {
    request.assertOpenable();
    return map(request);
  });
  const { chunks, deviceAccess } = use.mapping;
  return importedBuffer(request, {
    use,
    deviceAccess,
    mappingBoundaries: () => chunks.map(({ address }) => address),
    fds: () => chunks.map(({ fd }) => fd as number),
    isStreamOrdered: false,
  });
}

/**
 * The key of the mapping of the received pieces. It compares the files, not the names that the
 * sender gives them.
 */
const mappingKey = (
  context: Context,
  { memory, firstPiece, pieces }: DescriptorFields<'virtual'>,
  fds: readonly number[],
  access: Access,
): string =>
  mappings(context).findName(
    `${memory} ${firstPiece} ${pieces.length} ${access}`,
    ({ chunks }) =>
      chunks.length === fds.length &&
      chunks.every(({ fd }, at) => fd !== undefined && isSameFile(fd, fds[at] as number)),
  );

function map({
  descriptor,
  context,
  access,
  fds,
}: OpenRequest<DescriptorFields<'virtual'>>): VirtualMapping {
  const { pieces, baseByteLength, pid } = descriptor;
  const base = reserveAddresses(baseByteLength);
  const chunks: PhysicalChunk[] = [];
  try {
    let end = base as number;
    for (const [at, byteLength] of pieces.entries()) {
      const chunk = { address: end as CUdeviceptr, byteLength };
      const status = importChunk(chunk, fds.numbers[at] as number);
      checkOpened(
        status,
        'cuMemImportFromShareableHandle',
        () => `virtual memory of process ${pid}`,
      );
      chunks.push({ ...chunk, handle: undefined, fd: undefined });
      end += byteLength;
    }
    for (const chunk of chunks) allowAccess(chunk, context.device, access);
    for (const [at, fd] of fds.take().entries())
      (chunks[at] as PhysicalChunk).fd = addContextFd(context, fd);
  } catch (error) {
    // Nobody has the address yet, so nothing uses it.
    releaseOrWarn(() => freeReservation(context, base, baseByteLength, chunks));
    throw error;
  }
  const deviceAccess = new VirtualAccess(context.device, access, chunks);
  return { context, epoch: context.epoch, base, byteLength: baseByteLength, chunks, deviceAccess };
}
