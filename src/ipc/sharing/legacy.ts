import { OUT0, OUT1, readSize } from '../../../ffi/arena.ts';
import {
  CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS,
  CU_MEMORYTYPE_HOST,
  CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE,
  CU_POINTER_ATTRIBUTE_IS_MANAGED,
  CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
  CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE,
} from '../../../ffi/constants.ts';
import { cu } from '../../../ffi/driver.ts';
import type { CUdeviceptr } from '../../../ffi/types.ts';
import { check } from '../../check.ts';
import type { Context } from '../../context.ts';
import { IpcError } from '../../errors.ts';
import { DeviceBuffer, DeviceMemory } from '../../memory/buffer.ts';
import { HostVisibleBuffer } from '../../memory/host-visible.ts';
import { ManagerAdapter } from '../../memory/manager/manager-adapter.ts';
import {
  allocationOf,
  getLegacyHandle,
  pointerAttribute,
} from '../../memory/pointer-attributes.ts';
import { MemoryPool } from '../../memory/pool.ts';
import { VirtualMemory } from '../../memory/virtual.ts';
import type { DescriptorFields, ExportedFields } from '../descriptor.ts';
import { describeExporter, exportIdOf } from './facts.ts';
import { ImportedPool } from './imported-pool.ts';
import type { OpenRequest, SampleMemory } from './kind.ts';
import {
  type ImportedMapping,
  MappingTable,
  type MappingUse,
  mapImported,
  tableByContext,
} from './mapping.ts';
import {
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
  type ShareableMemory,
  sourceOf,
} from './memory.ts';
import { openDescriptor } from './open.ts';

const ALWAYS_WRITABLE = 'plain device memory';

/** Plain device memory: all that is not of a pool or virtual. */
export const legacy: MemoryKind<DescriptorFields<'legacy'>> = {
  ...memoryTraits,
  name: 'legacy',
  capability: 'memory',
  isByPid: true,
  alwaysWritable: ALWAYS_WRITABLE,
  includes(object): object is ShareableMemory {
    if (!isShareableMemory(object) || object instanceof VirtualMemory) return false;
    const buffer = bufferIn(object);
    if (buffer.origin === 'imported') {
      // Memory that came as a handle alone has no source.
      const source = sourceOf(buffer);
      return !source || source.descriptor.kind === 'legacy';
    }
    return !(buffer.resource instanceof MemoryPool || isVirtual(buffer));
  },
  description: 'plain device memory, by its handle',
  check: checkMemory,
  export: (memory) => exportMemory(memory, exportOwn, ALWAYS_WRITABLE),
  import: (fields, ...given) => asArray(openDescriptor(legacy, fields, ...given), fields),
  open: openLegacy,
  allocate,
  isMapped: ({ handle, bufferId }, context) => mappings(context).has(handle, bufferId),
  probes: [
    memoryProbe(
      { name: 'legacy', title: 'plain memory', how: 'by its 64-byte handle', capability: 'memory' },
      allocate,
    ),
  ],
};

function allocate(byteLength: number, context: Context): SampleMemory {
  // A block of its own: the other process sees nothing else.
  const memory = DeviceMemory.create({ context, private: true });
  const buffer = DeviceBuffer.allocate(byteLength, { memory });
  return { buffer, [Symbol.dispose]: () => buffer.close() };
}

const exportOwn = (buffer: DeviceBuffer): ExportedFields => ({
  descriptor: exportPlain(buffer),
  fds: [],
});

/** Exports a buffer by its legacy handle. @throws IpcError for memory without one, RangeError for an empty one */
export function exportLegacy(buffer: DeviceBuffer): DescriptorFields<'legacy'> {
  const { resource, root } = buffer;
  if (resource instanceof MemoryPool || resource instanceof ImportedPool)
    throw new IpcError(
      'memory of a pool has no legacy IPC handle: share it with exportIpc, or send it with peer.send, ' +
        'or allocate it as plain device memory (DeviceBuffer.allocate without { memory }, or DeviceMemory)',
    );
  const source = sourceOf(buffer);
  if (source && source.descriptor.kind !== 'legacy')
    throw new IpcError('imported virtual memory has no legacy IPC handle: share it with exportIpc');
  if (root.keepalive instanceof VirtualMemory)
    throw new IpcError('virtual memory has no legacy IPC handle: share it with exportIpc');
  return legacy.export(buffer).descriptor as DescriptorFields<'legacy'>;
}

/** Exports memory by the driver's 64 bytes, which name its whole allocation. @throws IpcError */
function exportPlain(buffer: DeviceBuffer): DescriptorFields<'legacy'> {
  const { readableAddress: address, byteLength, context, origin, access, root, resource } = buffer;
  if (root instanceof HostVisibleBuffer)
    throw new IpcError(
      'host-accessible memory has no IPC handle: copy it to device memory, and share that',
    );
  const manager = resource instanceof ManagerAdapter ? resource : undefined;
  const { handle, allocation } = context.run(() => {
    if (origin === 'borrowed') checkIpcCapable(address);
    return {
      handle: manager ? undefined : getLegacyHandle(address, byteLength),
      allocation: allocationOf(address),
    };
  });
  const { base } = allocation;
  const bytes = handle ?? (manager as ManagerAdapter).getLegacyHandle(buffer, base);
  return {
    kind: 'legacy',
    ...describeExporter(context.device),
    handle: Buffer.from(bytes).toString('base64'),
    baseByteLength: allocation.byteLength,
    byteOffset: address - base,
    byteLength,
    access,
    bufferId: allocation.id,
    generation: origin === 'allocated' ? exportIdOf(root) : 0,
  };
}

// ---- Mappings, and what the driver says of memory of other libraries ----

/** Mapped plain memory of other processes, by handle. Each context maps it at another address. */
const mappings = tableByContext(() => new MappingTable<ImportedMapping>(unmap, { mayBlock: true }));

/**
 * Opens plain memory: maps its allocation, or adds a user to its mapping.
 *
 * @throws IpcError if the driver refuses it, or if an earlier allocation is mapped by this handle
 */
function openLegacy(request: OpenRequest<DescriptorFields<'legacy'>>): DeviceBuffer {
  const { descriptor, context } = request;
  const { handle, bufferId, pid } = descriptor;
  const use = mappings(context).use(handle, bufferId, context, () => {
    request.assertOpenable();
    return map(context, handle, `process ${pid}`);
  });
  return importedBuffer(request, { use, fds: () => [] });
}

/**
 * Mappings by a handle that came without a descriptor. The driver counts how often an allocation is
 * open.
 */
const rawMappings = tableByContext(
  () => new MappingTable<ImportedMapping>(unmap, { mayBlock: true }),
);

/** Maps plain memory by the driver's 64 bytes alone, in base64. */
export const mapRaw = (context: Context, handle: string): MappingUse<ImportedMapping> =>
  rawMappings(context).use(handle, 0, context, () => map(context, handle, 'another process'));

function map(context: Context, handle: string, exporter: string): ImportedMapping {
  const bytes = { reserved: new Uint8Array(Buffer.from(handle, 'base64')) };
  return mapImported(context, {
    exporter,
    call: 'cuIpcOpenMemHandle_v2',
    map: () => cu.cuIpcOpenMemHandle_v2(OUT0, bytes, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS),
    measure(base) {
      check(
        cu.cuMemGetAddressRange_v2(OUT0, OUT1, base),
        'cuMemGetAddressRange_v2',
        () => `measuring memory of ${exporter}`,
      );
      return readSize(OUT1);
    },
    unmap: cu.cuIpcCloseMemHandle,
  });
}

const unmap = ({ context, base }: ImportedMapping): void =>
  context.run(() => check(cu.cuIpcCloseMemHandle(base), 'cuIpcCloseMemHandle'));

/**
 * @throws IpcError for memory of another library without a legacy handle; it names the kind of
 * memory
 */
function checkIpcCapable(address: CUdeviceptr): void {
  if (pointerAttribute(CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, address) !== 0) return;
  const isHost =
    pointerAttribute(CU_POINTER_ATTRIBUTE_IS_MANAGED, address) === 1 ||
    pointerAttribute(CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address) === CU_MEMORYTYPE_HOST;
  const isOfPool = (pointerAttribute(CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, address) ?? 0) !== 0;
  const what = isHost
    ? 'host-accessible memory'
    : isOfPool
      ? 'memory of a pool that another library made'
      : 'memory that is virtual, or of another process,';
  throw new IpcError(`${what} has no legacy IPC handle: copy it to device memory, and share that`);
}
