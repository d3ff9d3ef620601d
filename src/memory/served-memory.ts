/** How this room sees the memory manager, which its room manager/ implements. */
import type { HostMemory } from '../arguments.ts';
import type { Context } from '../context.ts';
import type { ContextMemory } from '../context-memory.ts';
import type { HostAllocation, HostKind } from './host-allocation.ts';
import type { MemoryResource } from './memory-resource.ts';
import type { LockFlags } from './page-lock.ts';

/** What serves the memory of a context where nobody names a resource. */
export interface ServedMemory extends ContextMemory, MemoryResource {
  allocateHost(byteLength: number, kind: HostKind): HostAllocation;
  /** Page-locks `memory`; answers how to unlock it. */
  lockHost(memory: HostMemory, flags: LockFlags): () => void;
}

/** The memory manager of a context, where one was set. */
export const servedMemory = (context: Context): ServedMemory | undefined =>
  // Nothing but the room manager/ puts one there.
  context.memory as ServedMemory | undefined;
