import { OUT0, OUT1, readSize } from '../../ffi/arena.ts';
import { CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS } from '../../ffi/constants.ts';
import { cu } from '../../ffi/driver.ts';
import { check } from '../check.ts';
import type { Context } from '../context.ts';
import type { IpcBufferDescriptor } from './descriptor.ts';
import { mapPayload } from './map-payload.ts';
import { type Mapping, MappingTable, type MappingUse, tableByContext } from './mapping.ts';

/** The plain memory of other processes, by handle: each context has it at another address. */
const mapped = tableByContext(() => new MappingTable<Mapping>(unmap, { waits: true }));

export const isLegacyMapped = (
  context: Context,
  { handle, bufferId }: IpcBufferDescriptor,
): boolean => mapped(context).has(handle, bufferId);

/**
 * Maps the allocation that a descriptor names, or counts one more user of it.
 *
 * @throws IpcError where the driver refuses it, or where it is mapped as what it was before
 */
export const mapLegacy = (context: Context, descriptor: IpcBufferDescriptor): MappingUse<Mapping> =>
  mapped(context).use(descriptor.handle, descriptor.bufferId, context, () =>
    map(context, descriptor.handle, `process ${descriptor.pid}`),
  );

/** Handles that came without a descriptor. The driver counts how often an allocation is open. */
const mappedRaw = tableByContext(() => new MappingTable<Mapping>(unmap, { waits: true }));

/** As {@link mapLegacy}, by the driver's 64 bytes alone, in base64. */
export const mapRaw = (context: Context, handle: string): MappingUse<Mapping> =>
  mappedRaw(context).use(handle, 0, context, () => map(context, handle, 'another process'));

function map(context: Context, handle: string, exporter: string): Mapping {
  const bytes = { reserved: new Uint8Array(Buffer.from(handle, 'base64')) };
  return mapPayload(context, {
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
