import { Resource, runAll } from '../lifetime.ts';
import type { DeviceBuffer } from './buffer.ts';

/**
 * Keeps memory from being given back, with what it lies in and the pool that it is of; answers with the way to end that.
 *
 * @param name who keeps it, for `close({ leases: 'refuse' })`
 * @param onClose called when it or the pool is closed, for one who may need nothing then
 * @throws ClosedError
 */
export function keepMemoryAlive(
  { root }: DeviceBuffer,
  name?: string,
  onClose?: () => void,
): () => void {
  const { keepalive, resource: pool } = root;
  const release = (keepalive instanceof Resource ? keepalive : root).addKeepalive(name, onClose);
  if (!(pool instanceof Resource) || pool.closed) return release;
  const releasePool = pool.addKeepalive(name, onClose);
  return () => runAll([release, releasePool]);
}
