/** Allocations of other processes that are mapped here: each once, however often it is opened. */

import { OUT0, readHandle } from '../../../ffi/arena.ts';
import type { FunctionName } from '../../../ffi/functions.ts';
import type { CUdeviceptr } from '../../../ffi/types.ts';
import { cudaError } from '../../check.ts';
import type { Context } from '../../context.ts';
import { IpcError } from '../../errors.ts';
import { ReferenceCount } from '../../lifetime.ts';
import { enqueueReleaseQuietly } from '../../memory/host-allocation.ts';

/** An allocation of another process, mapped in a context. */
export interface ImportedMapping {
  readonly context: Context;
  /** The context's epoch when it was mapped. A reset unmaps it. */
  readonly epoch: number;
  readonly base: CUdeviceptr;
  readonly byteLength: number;
}

interface CountedMapping<M extends ImportedMapping> {
  readonly mapping: M;
  /** Tells apart the allocations that had the same name one after the other. */
  readonly version: number;
  /** The buffers of this process that use it. */
  readonly users: ReferenceCount;
  /** How often its last user released it. It may have been opened again each time. */
  releaseCount: number;
}

/** One use of a mapping. */
export interface MappingUse<M extends ImportedMapping> {
  readonly mapping: M;
  /**
   * Releases the use. The last release unmaps the memory, once no work here can touch it.
   *
   * @param onReleased called when the work here that may use it is done, and it is unmapped or only
   * others use it
   */
  release(onReleased?: () => void): void;
}

interface MappingTableOptions<M extends ImportedMapping> {
  /** Whether `unmap` may wait for the GPU. */
  readonly mayBlock: boolean;
  /** Called with a mapping that a reset of its context has unmapped. */
  readonly onContextReset?: (mapping: M) => void;
}

/**
 * Mappings by the name of what is mapped. A name that is used again while its unmapping waits for
 * the GPU keeps its mapping. The driver would otherwise unmap it for the new user too.
 */
export class MappingTable<M extends ImportedMapping> {
  readonly #mappings = new Map<string, CountedMapping<M>>();
  readonly #unmap: (mapping: M) => void;
  readonly #options: MappingTableOptions<M>;

  constructor(unmap: (mapping: M) => void, options: MappingTableOptions<M>) {
    this.#unmap = unmap;
    this.#options = options;
  }

  /**
   * Finds the name of a mapping among those whose senders stated the same name. A stated name is no
   * proof of what was sent.
   *
   * @param matches whether a mapping is of the received memory
   * @returns the name of the matching mapping, or else an unused name
   */
  findName(stated: string, matches: (mapping: M) => boolean): string {
    for (let at = 0; ; at += 1) {
      const name = `${stated} ${at}`;
      const entry = this.#find(name);
      if (!entry || matches(entry.mapping)) return name;
    }
  }

  has(name: string, version: number): boolean {
    return this.#find(name)?.version === version;
  }

  /**
   * Adds a user to the mapping with that name, or creates it.
   *
   * @throws IpcError if another allocation is mapped by that name, and what `map` throws
   */
  use(name: string, version: number, context: Context, map: () => M): MappingUse<M> {
    const existing = this.#find(name);
    if (existing && existing.version !== version)
      throw new IpcError(
        existing.users.isUsed
          ? 'an earlier allocation with the same handle is still open here: close its buffers first'
          : 'an earlier allocation with the same handle is still waiting here to be unmapped: await context.flush() first',
      );
    const entry = existing ?? {
      mapping: map(),
      version,
      users: new ReferenceCount(),
      releaseCount: 0,
    };
    entry.users.add();
    this.#mappings.set(name, entry);
    return {
      mapping: entry.mapping,
      release: (returned) => this.#release(name, entry, context, returned),
    };
  }

  #find(name: string): CountedMapping<M> | undefined {
    const entry = this.#mappings.get(name);
    if (!entry || entry.mapping.context.epoch === entry.mapping.epoch) return entry;
    this.#mappings.delete(name);
    this.#options.onContextReset?.(entry.mapping);
    return undefined;
  }

  #release(name: string, entry: CountedMapping<M>, user: Context, onReleased?: () => void): void {
    const { mapping } = entry;
    const { releases, workTracker } = mapping.context;
    // Work of another context may still use it: it is unmapped behind that work.
    workTracker.addOtherContext(user.workTracker);
    if (!entry.users.remove()) {
      // The others keep it mapped, but its exporter is notified only when this user's work is done.
      if (onReleased) releases.enqueue(onReleased, { mayBlock: false });
      return;
    }
    entry.releaseCount += 1;
    const releaseNumber = entry.releaseCount;
    releases.enqueue(
      () => {
        try {
          // If it was opened again while this waited, the release of its last user unmaps it. A
          // reset of the context also removes it.
          if (
            entry.users.isUsed ||
            entry.releaseCount !== releaseNumber ||
            this.#find(name) !== entry
          )
            return;
          this.#mappings.delete(name);
          this.#unmap(mapping);
        } finally {
          onReleased?.();
        }
      },
      { mayBlock: this.#options.mayBlock },
    );
  }
}

/** One table per context, for memory that each context maps for itself. */
export const tableByContext = <M extends ImportedMapping>(
  make: () => MappingTable<M>,
): ((context: Context) => MappingTable<M>) => {
  const tables = new WeakMap<Context, MappingTable<M>>();
  return (context) => {
    const table = tables.get(context) ?? make();
    tables.set(context, table);
    return table;
  };
};

// ---- Mapping anew ----

interface MapRequest {
  /** The owner of the memory, for error messages. */
  readonly exporter: string;
  /** The driver function that `map` calls. */
  readonly call: FunctionName;
  /** Writes the address to OUT0. */
  map(): number;
  /** Returns how many bytes are mapped at that address. @throws CudaError, RangeError */
  measure(base: CUdeviceptr): number;
  unmap(base: CUdeviceptr): unknown;
}

/**
 * Maps memory by a handle that another process may have invented. Anything the driver returns is
 * checked. @throws IpcError, with nothing left mapped
 */
export const mapImported = (context: Context, request: MapRequest): ImportedMapping => ({
  context,
  epoch: context.epoch,
  ...context.run(() => mapAndMeasure(context, request)),
});

function mapAndMeasure(
  context: Context,
  { exporter, call, map, measure, unmap }: MapRequest,
): Pick<ImportedMapping, 'base' | 'byteLength'> {
  // Unmapping may wait for the streams of the context.
  const undo = (base: CUdeviceptr): void =>
    enqueueReleaseQuietly(context, () => void context.run(() => unmap(base)));
  const openError = (cause: unknown): IpcError =>
    new IpcError(`memory of ${exporter} could not be opened`, cause as Error);
  const status = map();
  if (status !== 0) throw openError(cudaError(status, call));
  let base: CUdeviceptr;
  try {
    base = readHandle<CUdeviceptr>(OUT0, undo);
  } catch (error) {
    throw openError(error);
  }
  try {
    return { base, byteLength: measure(base) };
  } catch (error) {
    undo(base);
    throw openError(error);
  }
}
