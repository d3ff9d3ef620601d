import { Resource, runAll } from '../lifetime.ts';
import type { DeviceBuffer } from './buffer.ts';

/**
 * Prevents memory, and the virtual memory or pool that it belongs to, from being freed. Returns a
 * function that ends this.
 *
 * @param name who keeps it, for the error of `close({ leases: 'refuse' })`
 * @param onClose called when the memory or the pool is closed
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
