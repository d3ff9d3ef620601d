import type { Context } from '../context.ts';
import type { Access } from '../memory/buffer-options.ts';
import type { IpcDescriptor } from './descriptor.ts';
import { isPoolMemoryMapped } from './imported-pool.ts';
import { isLegacyMapped } from './legacy-import.ts';
import { findPool } from './pool-import.ts';
import { isVirtualMapped } from './virtual-import.ts';

/**
 * Whether the memory that a descriptor names is mapped in the context already: then the driver is
 * not asked for it, and nothing can be in the way.
 */
export function isMapped(descriptor: IpcDescriptor, context: Context, access: Access): boolean {
  switch (descriptor.kind) {
    case 'legacy':
      return isLegacyMapped(context, descriptor);
    case 'pool':
      return findPool(context, descriptor) !== undefined && isPoolMemoryMapped(descriptor);
    case 'virtual':
      return isVirtualMapped(context, descriptor, access);
    case 'event':
      return false;
  }
}
