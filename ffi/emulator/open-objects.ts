/** What is open in an emulated driver. Tests compare it, to find what was not closed. */
import { channel } from 'node:diagnostics_channel';
import type { Contexts } from './context.ts';
import type { Events } from './event.ts';
import type { Graphs } from './graph.ts';
import type { ForeignMemory } from './ipc-memory.ts';
import type { Memory } from './memory.ts';
import type { Modules } from './modules.ts';
import { POOL_NAME } from './pool.ts';
import type { ImportedPools } from './pool-import.ts';
import type { Pools } from './pools.ts';
import type { StreamQueues } from './stream-queues.ts';
import { PHYSICAL_NAME, type VirtualMemory } from './virtual.ts';

/** What is open in one emulated driver. */
export interface OpenObjects {
  /**
   * How much was created and not destroyed, by kind. Primary contexts and default streams do not count, and
   * nothing does once work has failed: then nothing can be destroyed.
   */
  countObjects(): Readonly<Record<string, number>>;
  /** How many descriptors the driver itself has, by the name of their memfd. Callers may have others. */
  countFds(): Readonly<Record<string, number>>;
}

interface Tables {
  readonly contexts: Contexts;
  readonly queues: StreamQueues;
  readonly events: Events;
  readonly memory: Memory;
  readonly foreign: ForeignMemory;
  readonly virtual: VirtualMemory;
  readonly pools: Pools;
  readonly imported: ImportedPools;
  readonly modules: Modules;
  readonly graphs: Graphs;
}

/**
 * Publishes the {@link OpenObjects} of a new driver in a channel of node:diagnostics_channel. A loader
 * that compiles on the fly may create second instances of the modules: they share the channel.
 */
export function announce(tables: Tables): void {
  const created = channel('cuffi.emulated-driver');
  if (!created.hasSubscribers) return;
  const { contexts, pools, virtual } = tables;
  created.publish({
    countObjects: () => (contexts.processFailure === 0 ? countObjects(tables) : {}),
    countFds: () => ({ [POOL_NAME]: pools.fdCount, [PHYSICAL_NAME]: virtual.fdCount }),
  } satisfies OpenObjects);
}

function countObjects(tables: Tables): Record<string, number> {
  const { contexts, queues, events, memory, foreign, virtual, pools, imported, modules } = tables;
  const regions = { host: 0, managed: 0, virtual: 0, pool: 0 };
  for (const region of memory.regions) {
    const isVariable = 'isVariable' in region && region.isVariable;
    if (!isVariable) regions[region.kind] += 1;
  }
  return {
    'created context': contexts.createdCount,
    stream: queues.createdCount,
    'stream capture': queues.captures.size,
    event: events.count,
    allocation: memory.blocks.allocationCount,
    'pinned allocation': regions.host,
    'managed allocation': regions.managed,
    'host registration': memory.registrations.size,
    pool: pools.createdCount,
    'allocation of a pool': pools.allocationCount,
    'imported pool': imported.importCount,
    'imported allocation of a pool': imported.allocationCount,
    'opened allocation of another process': foreign.openCount,
    'physical memory': virtual.handleCount,
    'reserved address range': virtual.reservationCount,
    'virtual mapping': regions.virtual,
    module: modules.count,
    graph: tables.graphs.templates.size,
    'executable graph': tables.graphs.executables.size,
  };
}
