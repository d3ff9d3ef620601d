/** Memory that is not of a kernel's own context. */
import { checkInstance } from '../arguments.ts';
import { Context } from '../context.ts';
import { DeviceBuffer } from '../memory/buffer.ts';
import { noteVisits } from '../memory/buffer-copies.ts';
import { HostVisibleBuffer } from '../memory/host-visible.ts';
import { MemoryPool } from '../memory/pool.ts';

/**
 * Has memory, a buffer or an array, of another context outlive what is queued in this one.
 *
 * @param of the context that the memory says it is of
 * @throws TypeError where it is another device's, and no access to it was given
 */
export function requireReachable(
  context: Context,
  memory: object,
  of: unknown,
  name: string,
): void {
  const owner = checkInstance(of, Context, `the context of ${name}`);
  if (owner.device !== context.device && !isShared(context, owner, memory))
    throw new TypeError(
      `${name} is in memory of ${owner.device}, and the kernel runs on ${context.device}: copy it ` +
        'there, or give access to it: context.enablePeerAccess(other), or setAccess of its pool',
    );
  noteVisits(context, [owner]);
}

function isShared(context: Context, owner: Context, memory: object): boolean {
  if (context.peers.has(owner)) return true;
  const { buffer: inner } = memory as { readonly buffer?: unknown };
  const buffer = inner instanceof DeviceBuffer ? inner : memory;
  if (buffer instanceof HostVisibleBuffer) return true;
  const resource = buffer instanceof DeviceBuffer ? buffer.resource : undefined;
  return resource instanceof MemoryPool && resource.access(context.device) !== 'none';
}
