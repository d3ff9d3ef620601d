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
import type { DeviceBuffer } from '../../memory/buffer.ts';
import { HostVisibleBuffer } from '../../memory/host-visible.ts';
import { ManagerAdapter } from '../../memory/manager/manager-adapter.ts';
import {
  allocationOf,
  getLegacyHandle,
  pointerAttribute,
} from '../../memory/pointer-attributes.ts';
import { obfuscatedId } from '../../memory/random-id.ts';
import { VirtualMemory } from '../../memory/virtual.ts';
import { checkReadOnlyKind, type DescriptorFields } from '../descriptor.ts';
import { describeExporter } from '../identity.ts';
import { exportIdOf } from './exported.ts';
import { importedBuffer, type OpenRequest } from './imported-object.ts';
import {
  type Mapping,
  MappingTable,
  type MappingUse,
  mapImported,
  tableByContext,
} from './mapping.ts';

/** Exports memory by the driver's 64 bytes, which name its whole allocation. @throws IpcError */
export function exportLegacy(buffer: DeviceBuffer): DescriptorFields<'legacy'> {
  const { readableAddress: address, byteLength, context, origin, access, root, resource } = buffer;
  if (root instanceof HostVisibleBuffer)
    throw new IpcError(
      'host-accessible memory has no IPC handle: copy it to device memory, and share that',
    );
  if (byteLength === 0) throw new RangeError('an empty buffer cannot be shared');
  if (root.keepalive instanceof VirtualMemory)
    throw new IpcError('virtual memory has no legacy IPC handle: share it with exportIpc');
  if (access === 'read') checkReadOnlyKind('legacy');
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
    bufferId: obfuscatedId(allocation.id),
    generation: origin === 'allocated' ? exportIdOf(root) : 0,
  };
}

// ---- Mappings, and what the driver says of memory of other libraries ----

/** Mapped plain memory of other processes, by handle. Each context maps it at another address. */
const mappings = tableByContext(() => new MappingTable<Mapping>(unmap, { mayBlock: true }));

export const isLegacyMapped = (
  context: Context,
  { handle, bufferId }: DescriptorFields<'legacy'>,
): boolean => mappings(context).has(handle, bufferId);

/**
 * Opens plain memory: maps its allocation, or adds a user to its mapping.
 *
 * @throws IpcError if the driver refuses it, or if an earlier allocation is mapped by this handle
 */
export function openLegacy(request: OpenRequest<'legacy'>): DeviceBuffer {
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
const rawMappings = tableByContext(() => new MappingTable<Mapping>(unmap, { mayBlock: true }));

/** Maps plain memory by the driver's 64 bytes alone, in base64. */
export const mapRaw = (context: Context, handle: string): MappingUse<Mapping> =>
  rawMappings(context).use(handle, 0, context, () => map(context, handle, 'another process'));

function map(context: Context, handle: string, exporter: string): Mapping {
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

const unmap = ({ context, base }: Mapping): void =>
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
