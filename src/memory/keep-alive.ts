import { Resource, tryAll } from '../lifetime.ts';
import type { DeviceBuffer } from './buffer.ts';

/**
 * Keeps memory from being given back, with what it lies in and the pool that it is of; answers with the way to end that.
 *
 * @param name who keeps it, for `close({ leases: 'refuse' })`
 * @param closed called when it or the pool is closed, for one who may need nothing then
 * @throws ClosedError
 */
export function retainMemory(
  { whole }: DeviceBuffer,
  name?: string,
  closed?: () => void,
): () => void {
  const { keeper, resource: pool } = whole;
  const drop = (keeper instanceof Resource ? keeper : whole).retain(name, closed);
  if (!(pool instanceof Resource) || pool.closed) return drop;
  const dropPool = pool.retain(name, closed);
  return () => tryAll([drop, dropPool]);
}
