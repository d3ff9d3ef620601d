import { checkDeadline, type DeadlineOptions, timeoutError } from '../../deadline.ts';
import { pollUntil } from '../../poller.ts';
import { formatValue } from '../../validate.ts';
import { processName } from '../peer/credentials.ts';
import { isShareable, ownerOf, type Shareable } from '../shareable.ts';
import { type LeasesStats, leaseRegistry } from './lease.ts';

/**
 * What this process has sent through connections, and keeps for those who have it.
 *
 * What was sent stays alive until each receiver has closed it, or the receiver's process has ended:
 * `close()` closes the object here at once, and gives the memory back after that.
 *
 * @example
 * buffer.close();
 * await leases.drain({ timeoutMs: 5000 }); // now the memory is free
 */
export const leases = {
  /** Who has what, since when; and how much memory is closed here but kept for others. */
  stats: (): LeasesStats => leaseRegistry.stats(),

  /**
   * Waits until nothing that is closed here is kept for others any more; the event loop turns
   * meanwhile.
   *
   * @throws DOMException `TimeoutError`, which says who has what; the signal's reason
   */
  async drain(options?: DeadlineOptions): Promise<void> {
    const { timeoutMs, signal } = checkDeadline(options, 'drain');
    const until =
      timeoutMs === undefined ? Number.POSITIVE_INFINITY : performance.now() + timeoutMs;
    const isDrained = (): boolean => {
      if (leaseRegistry.orphaned.length === 0) return true;
      if (performance.now() >= until) throw timeoutError(describeOrphaned(), timeoutMs as number);
      return false;
    };
    await pollUntil(isDrained, signal && { signal });
  },

  /**
   * Asks all who have memory, an event or a pool of this process to use it no more: their next use
   * throws, and their mapping goes when their work is done. The memory stays until then.
   *
   * @throws TypeError for what cannot be sent
   */
  revoke(object: Shareable): void {
    if (!isShareable(object))
      throw new TypeError(`revoke takes what a connection can send, not ${formatValue(object)}`);
    for (const lease of leaseRegistry.leasesOf(ownerOf(object))) lease.revoke();
  },
} as const;

/** Who has what is closed here, in words. */
function describeOrphaned(): string {
  const { orphaned, leases: all } = leaseRegistry.stats();
  const kept = all.filter((lease) => lease.orphaned);
  const kinds = [...new Set(kept.map(({ kind }) => kind))].join(', ');
  const names = [...new Set(kept.map(processName))];
  return `draining ${orphaned.byteLength} bytes (${kinds}) that ${names.join(', ')} ${names.length === 1 ? 'has' : 'have'}`;
}
