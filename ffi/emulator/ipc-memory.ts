/** Legacy IPC memory: creating, opening and closing handles. */
import { closeSync } from 'node:fs';
import { CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS } from '../constants.ts';
import type { Driver } from '../functions.ts';
import { CUresult, type CUresult as Status } from '../results.ts';
import { GRANULARITY } from './address-space.ts';
import { ALLOCATION_UNIT, BLOCK_HEADER_BYTE_LENGTH } from './block-header.ts';
import { BLOCK_NAME, MappedBlock } from './blocks.ts';
import type { Context, Contexts } from './context.ts';
import type { HostMemory } from './host-memory.ts';
import { decodeIpcHandle, encodeIpcHandle, type IpcHandleFields } from './ipc-handle.ts';
import type { ForeignAllocation, Memory } from './memory.ts';
import { isAlive, openForeignMemfd, type ProcessIdentity } from './processes.ts';
import type { StreamQueues } from './stream-queues.ts';

const {
  CUDA_SUCCESS,
  CUDA_ERROR_INVALID_VALUE,
  CUDA_ERROR_OUT_OF_MEMORY,
  CUDA_ERROR_INVALID_CONTEXT,
  CUDA_ERROR_INVALID_HANDLE,
} = CUresult;

/** A block of another process, mapped once per context that has memory of it open. */
interface ForeignBlock {
  readonly key: string;
  readonly generation: string;
  readonly context: Context;
  readonly mapped: MappedBlock;
  /** The slot of this mapping in the block header. */
  readonly slot: number;
  openCount: number;
}

interface OpenedAllocation extends ForeignAllocation {
  readonly key: string;
  readonly block: ForeignBlock;
  openCount: number;
}

/**
 * The status if a handle cannot be opened in this process, otherwise undefined. As on hardware,
 * a process cannot open its own handles, nor those of a process that has ended.
 */
export function rejectionStatus(
  self: ProcessIdentity,
  fields: IpcHandleFields,
): Status | undefined {
  if (fields.pid === self.pid && fields.startTime === self.startTime)
    return CUDA_ERROR_INVALID_CONTEXT;
  return isAlive(fields) ? undefined : CUDA_ERROR_INVALID_HANDLE;
}

/** The memory of other processes that this process has open. */
export class ForeignMemory {
  readonly #memory: Memory;
  readonly #self: ProcessIdentity;
  readonly #reusesHandles: boolean;
  readonly #blocks = new Map<string, ForeignBlock>();
  readonly #opened = new Map<string, OpenedAllocation>();

  constructor(memory: Memory, contexts: Contexts, self: ProcessIdentity, sameHandles: boolean) {
    this.#reusesHandles = sameHandles;
    this.#memory = memory;
    this.#self = self;
    contexts.onEnd((context) => {
      for (const opened of [...this.#opened.values()])
        if (opened.context === context) this.#forget(opened);
    });
  }

  /** Opens memory. Returns its address, or the status of the failure. */
  open(context: Context, fields: IpcHandleFields): { address: number } | { status: Status } {
    const refused = rejectionStatus(this.#self, fields);
    if (refused !== undefined) return { status: refused };
    if (!isConsistent(fields)) return { status: CUDA_ERROR_INVALID_VALUE };
    const blockKey = `${context.handle}/${fields.generation}`;
    const key = `${blockKey}/${fields.blockByteLength}/${fields.offset}/${fields.id}`;
    const known = this.#opened.get(key);
    if (known && known.byteLength === fields.byteLength) {
      known.openCount += 1;
      return { address: known.address };
    }
    if (this.#isOpenInOtherContext(context, fields.generation))
      return { status: CUDA_ERROR_INVALID_HANDLE };
    const block = this.#blocks.get(blockKey) ?? this.#map(blockKey, context, fields);
    if (typeof block === 'number') return { status: block };
    const { header, byteLength: blockByteLength } = block.mapped;
    const isThere =
      blockByteLength === fields.blockByteLength &&
      (this.#reusesHandles
        ? header.idAt(fields.offset) !== 0
        : header.idAt(fields.offset) === fields.id);
    // A handle that contradicts an open one was altered.
    if (known || !isThere) {
      this.#unmapUnused(block);
      return { status: CUDA_ERROR_INVALID_VALUE };
    }
    const { mapped } = block;
    const address = mapped.address + fields.offset;
    const { byteLength } = fields;
    const bufferId = this.#memory.nextBufferId();
    const opened = { address, byteLength, context, bufferId, mapped, key, block, openCount: 1 };
    block.openCount += 1;
    this.#opened.set(key, opened);
    this.#memory.imports.add(opened);
    return { address };
  }

  /** How often memory was opened and not closed. */
  get openCount(): number {
    return [...this.#opened.values()].reduce((sum, { openCount }) => sum + openCount, 0);
  }

  /** The open memory that starts at an address. */
  find(address: number): OpenedAllocation | undefined {
    const found = this.#memory.imports.at(address);
    return found?.address === address ? (found as OpenedAllocation) : undefined;
  }

  /** Undoes one open. */
  close(opened: OpenedAllocation): void {
    opened.openCount -= 1;
    if (opened.openCount === 0) this.#forget(opened);
  }

  /** Only one context per device may have memory of a process open. */
  #isOpenInOtherContext(context: Context, generation: string): boolean {
    return [...this.#blocks.values()].some(
      (block) =>
        block.generation === generation &&
        block.context !== context &&
        block.context.device === context.device,
    );
  }

  #map(key: string, context: Context, fields: IpcHandleFields): ForeignBlock | Status {
    const total = fields.blockByteLength + BLOCK_HEADER_BYTE_LENGTH;
    const fd = openForeignMemfd(fields, BLOCK_NAME, total);
    if (fd === undefined) return CUDA_ERROR_INVALID_VALUE;
    const mapped = MappedBlock.map(this.#memory.space, fd, fields.blockByteLength);
    closeSync(fd);
    if (!mapped) return CUDA_ERROR_OUT_OF_MEMORY;
    const { header } = mapped;
    const isRight = header.isValid && header.generation === fields.generation;
    const slot = isRight ? header.addImporter(this.#self.pid, this.#self.startTime) : undefined;
    if (slot === undefined) {
      mapped.unmap();
      return isRight ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_ERROR_INVALID_VALUE;
    }
    const block = { key, generation: fields.generation, context, mapped, slot, openCount: 0 };
    this.#blocks.set(key, block);
    return block;
  }

  #forget(opened: OpenedAllocation): void {
    this.#opened.delete(opened.key);
    this.#memory.imports.remove(opened);
    opened.block.openCount -= 1;
    this.#unmapUnused(opened.block);
  }

  #unmapUnused(block: ForeignBlock): void {
    if (block.openCount > 0) return;
    this.#blocks.delete(block.key);
    block.mapped.header.removeImporter(block.slot);
    block.mapped.unmap();
  }
}

/** Whether the fields of a handle are consistent. The block header tells whether they are true. */
const isConsistent = ({ offset, byteLength, blockByteLength }: IpcHandleFields): boolean =>
  offset % ALLOCATION_UNIT === 0 &&
  byteLength > 0 &&
  blockByteLength % GRANULARITY === 0 &&
  offset + byteLength <= blockByteLength &&
  // Only blocks of small allocations contain several.
  (offset === 0 || blockByteLength === GRANULARITY);

export type IpcMemoryFunctions = Pick<
  Driver,
  'cuIpcGetMemHandle' | 'cuIpcOpenMemHandle_v2' | 'cuIpcCloseMemHandle'
>;

export const ipcMemoryFunctions = (
  memory: Memory,
  foreign: ForeignMemory,
  contexts: Contexts,
  queues: StreamQueues,
  host: HostMemory,
  self: ProcessIdentity,
  sameHandles: boolean,
): IpcMemoryFunctions => ({
  cuIpcGetMemHandle(out, address) {
    const allocation = memory.blocks.allocationAt(address);
    if (!allocation) return CUDA_ERROR_INVALID_VALUE;
    const { block, byteLength, bufferId } = allocation;
    const bytes = encodeIpcHandle({
      kind: 'memory',
      pid: self.pid,
      startTime: self.startTime,
      fd: block.fd,
      generation: block.mapped.header.generation,
      offset: allocation.address - block.address,
      byteLength,
      blockByteLength: block.byteLength,
      id: sameHandles ? 1 : bufferId,
    });
    return host.write(out, bytes) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  },
  cuIpcOpenMemHandle_v2(out, handle, flags) {
    const fields = decodeIpcHandle('memory', handle);
    if (flags !== CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS || !fields) return CUDA_ERROR_INVALID_VALUE;
    const opened = foreign.open(contexts.current, fields);
    if ('status' in opened) return opened.status;
    host.setUint64(out, opened.address);
    return CUDA_SUCCESS;
  },
  cuIpcCloseMemHandle(address) {
    const opened = foreign.find(address);
    if (opened?.context !== contexts.current) return CUDA_ERROR_INVALID_VALUE;
    queues.drain(opened.context);
    foreign.close(opened);
    return CUDA_SUCCESS;
  },
});
