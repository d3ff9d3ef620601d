import type { Context } from '../context.ts';
import type { Access } from '../memory/buffer-options.ts';
import type { IpcDescriptor } from './descriptor.ts';
import { isPoolMemoryMapped } from './imported-pool.ts';
import { isLegacyMapped } from './legacy-import.ts';
import type { ReceivedFds } from './owned-fds.ts';
import { findPool } from './pool-import.ts';
import { isVirtualMapped } from './virtual-import.ts';

/**
 * Whether the memory of a descriptor, and of what came with it, is mapped in the context already:
 * then the driver is not asked for it, and nothing can be in the way.
 */
export function isMapped(
  descriptor: IpcDescriptor,
  context: Context,
  fds: Pick<ReceivedFds, 'numbers' | 'isByName'>,
  access: Access,
): boolean {
  switch (descriptor.kind) {
    case 'legacy':
      return isLegacyMapped(context, descriptor);
    case 'pool': {
      const pool = findPool(context, descriptor, fds);
      return pool !== undefined && isPoolMemoryMapped(pool, descriptor);
    }
    case 'virtual':
      return isVirtualMapped(context, descriptor, fds.numbers, access);
    case 'event':
      return false;
  }
}
