import { checkDeadline, timeoutError, type WaitOptions } from '../../deadline.ts';
import { pollUntil } from '../../poller.ts';
import { formatBytes, formatValue } from '../../validate.ts';
import { processName } from '../identity.ts';
import { isShareable, ownerOf, type Shareable } from '../sharing/kinds.ts';
import { type LeasesStats, leaseRegistry } from './export-table.ts';

/**
 * The objects that this process has sent through connections, kept alive for their receivers.
 *
 * A sent object stays alive until each receiver has closed it, or the receiver's process has
 * exited: `close()` closes the object here at once, and its memory is freed after that.
 *
 * @example
 * buffer.close();
 * await leases.drain({ timeoutMs: 5000 }); // now the memory is free
 */
export const leases = {
  /** Returns who holds what, since when, and how much memory is closed here but kept for others. */
  stats: (): LeasesStats => leaseRegistry.stats(),

  /**
   * Waits until no closed object is kept alive for other processes. Does not block the event loop.
   *
   * @throws DOMException `TimeoutError`, which says who holds what; the signal's reason
   */
  async drain(options?: WaitOptions): Promise<void> {
    const { timeoutMs, signal } = checkDeadline(options, 'drain');
    const until =
      timeoutMs === undefined ? Number.POSITIVE_INFINITY : performance.now() + timeoutMs;
    const isDrained = (): boolean => {
      if (leaseRegistry.orphaned.length === 0) return true;
      if (performance.now() >= until) throw timeoutError(describeOrphaned(), timeoutMs as number);
      return false;
    };
    await pollUntil(isDrained, { signal });
  },

  /**
   * Asks all holders of memory, an event or a pool of this process to stop using it. Their next use
   * throws, and their mapping is removed when their work is done. The memory stays until then.
   *
   * @throws TypeError for an object that cannot be sent
   */
  revoke(object: Shareable): void {
    if (!isShareable(object))
      throw new TypeError(`revoke takes what a connection can send, not ${formatValue(object)}`);
    for (const lease of leaseRegistry.leasesOf(ownerOf(object))) lease.revoke();
  },
} as const;

/** Describes who holds closed objects. */
function describeOrphaned(): string {
  const { orphaned, leases: all } = leaseRegistry.stats();
  const orphans = all.filter((lease) => lease.orphaned);
  const kinds = [...new Set(orphans.map(({ kind }) => kind))].join(', ');
  const names = [...new Set(orphans.map(processName))];
  return `draining ${formatBytes(orphaned.byteLength)} (${kinds}) that ${names.join(', ')} ${names.length === 1 ? 'has' : 'have'}`;
}
