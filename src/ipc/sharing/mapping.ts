/** Allocations of other processes that are mapped here: each once, however often it is opened. */

import { OUT0, readHandle } from '../../../ffi/arena.ts';
import type { FunctionName } from '../../../ffi/functions.ts';
import type { CUdeviceptr } from '../../../ffi/types.ts';
import { cudaError } from '../../check.ts';
import type { Context } from '../../context.ts';
import { IpcError } from '../../errors.ts';
import { checkRange, type IpcMemoryDescriptor } from '../descriptor.ts';

/** An allocation of another process, mapped in a context. */
export interface Mapping {
  readonly context: Context;
  /** The context's count of resets when it was mapped: a reset unmaps. */
  readonly epoch: number;
  readonly base: CUdeviceptr;
  readonly byteLength: number;
}

interface CountedMapping<M extends Mapping> {
  readonly mapping: M;
  /** Which allocation it is, of those that had the same name one after the other. */
  readonly version: number;
  /** How many buffers of this process use it. */
  users: number;
  /** How often the last of them gave it up: it may have been opened again each time. */
  releaseCount: number;
}

/** One use of a mapping. */
export interface MappingUse<M extends Mapping> {
  readonly mapping: M;
  /**
   * Gives the use up; the last one unmaps, as soon as no work here can touch the memory.
   *
   * @param onReleased called when the work here that may use it is done, and it is unmapped or mapped
   * for others alone
   */
  release(onReleased?: () => void): void;
}

interface MappingTableOptions<M extends Mapping> {
  /** Whether the driver may wait for the GPU in `unmap`. */
  readonly mayBlock: boolean;
  /** Told of a mapping that a reset of its context took. */
  readonly onContextReset?: (mapping: M) => void;
}

/**
 * Mappings by the name of what is mapped. A name that is used again while its unmapping waits for
 * the GPU keeps its mapping: the driver would unmap it for the new user too.
 */
export class MappingTable<M extends Mapping> {
  readonly #mappings = new Map<string, CountedMapping<M>>();
  readonly #unmap: (mapping: M) => void;
  readonly #options: MappingTableOptions<M>;

  constructor(unmap: (mapping: M) => void, options: MappingTableOptions<M>) {
    this.#unmap = unmap;
    this.#options = options;
  }

  /**
   * The name of a mapping among those that others say the same name of: what a sender states tells
   * nothing of what it has sent.
   *
   * @param matches whether a mapping is of what came
   * @returns a name that nothing is mapped by where none is
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
   * One more use of what is mapped by that name, or the first.
   *
   * @throws IpcError where another allocation is mapped by that name, and what `map` throws
   */
  use(name: string, version: number, context: Context, map: () => M): MappingUse<M> {
    const existing = this.#find(name);
    if (existing && existing.version !== version)
      throw new IpcError(
        existing.users > 0
          ? 'an earlier allocation with the same handle is still open here: close its buffers first'
          : 'an earlier allocation with the same handle waits here to be unmapped: await context.flush() first',
      );
    const entry = existing ?? { mapping: map(), version, users: 0, releaseCount: 0 };
    entry.users += 1;
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
    // Work of another context may use it still: it is unmapped behind that.
    workTracker.addOtherContext(user.workTracker);
    entry.users -= 1;
    if (entry.users > 0) {
      // The others keep it mapped, but the work of this one is to be done before its lender is told.
      if (onReleased) releases.enqueue(onReleased, { mayBlock: false });
      return;
    }
    entry.releaseCount += 1;
    const releaseNumber = entry.releaseCount;
    releases.enqueue(
      () => {
        try {
          // Opened again while it waited, and maybe given up again: then work of later users may run
          // still, which the release of the last of them waits for. Or gone with the context.
          if (entry.users > 0 || entry.releaseCount !== releaseNumber || this.#find(name) !== entry)
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

/** A table for each context, for what is mapped anew in each. */
export const tableByContext = <M extends Mapping>(
  make: () => MappingTable<M>,
): ((context: Context) => MappingTable<M>) => {
  const tables = new WeakMap<Context, MappingTable<M>>();
  return (context) => {
    const table = tables.get(context) ?? make();
    tables.set(context, table);
    return table;
  };
};

/** What is mapped may be less than the descriptor says, or be what an earlier one named. */
export function checkMappedRange(
  descriptor: IpcMemoryDescriptor,
  { mapping, release }: MappingUse<Mapping>,
): void {
  try {
    checkRange(descriptor, mapping.byteLength);
  } catch (error) {
    release();
    throw error;
  }
}

/** Mapping by a handle that another process made up, or not: no answer of the driver is believed. */

interface MapRequest {
  /** Whose memory it is, in words. */
  readonly exporter: string;
  /** The driver's function that `map` calls. */
  readonly call: FunctionName;
  /** Writes the address to OUT0. */
  map(): number;
  /** How many bytes are mapped there. @throws CudaError, RangeError */
  measure(base: CUdeviceptr): number;
  unmap(base: CUdeviceptr): unknown;
}

/** Maps memory in a context. @throws IpcError, with nothing left mapped */
export const mapImported = (context: Context, request: MapRequest): Mapping => ({
  context,
  epoch: context.epoch,
  ...context.run(() => mapAndMeasure(request)),
});

function mapAndMeasure({
  exporter,
  call,
  map,
  measure,
  unmap,
}: MapRequest): Pick<Mapping, 'base' | 'byteLength'> {
  const openError = (cause: unknown): IpcError =>
    new IpcError(`memory of ${exporter} could not be opened`, cause as Error);
  const status = map();
  if (status !== 0) throw openError(cudaError(status, call));
  let base: CUdeviceptr;
  try {
    base = readHandle<CUdeviceptr>(OUT0, unmap);
  } catch (error) {
    throw openError(error);
  }
  try {
    return { base, byteLength: measure(base) };
  } catch (error) {
    unmap(base);
    throw openError(error);
  }
}
