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
    await pollWithin(
      timeoutMs,
      signal,
      () => leaseRegistry.orphaned.length === 0,
      describeOrphaned,
    );
  },

  /**
   * Waits until every process that got an object of this process has closed it, or has exited, and
   * its work on the object is done. The object itself may stay open: its memory can then be written
   * again. Resolves at once if nobody has it. Does not block the event loop.
   *
   * @param object what was sent; a part of a buffer stands for the whole buffer
   * @throws TypeError for an object that cannot be sent; DOMException `TimeoutError`, which says who
   * holds it; the signal's reason
   * @example
   * await peer.send(frame);
   * await leases.returned(frame, { timeoutMs: 1000 }); // now the frame can be filled again
   */
  async returned(object: Shareable, options?: WaitOptions): Promise<void> {
    if (!isShareable(object))
      throw new TypeError(`returned takes an object that can be sent, not ${formatValue(object)}`);
    // A holder releases the last lease of an object when its work on the object is done.
    const owner = ownerOf(object);
    const { timeoutMs, signal } = checkDeadline(options, 'returned');
    await pollWithin(
      timeoutMs,
      signal,
      () => leaseRegistry.leasesOf(owner).length === 0,
      () => describeHolders(owner),
    );
  },

  /**
   * Asks all holders of memory, an event or a pool of this process to stop using it. Their next use
   * throws, and their mapping is removed when their work is done. The memory stays until then.
   *
   * @throws TypeError for an object that cannot be sent
   */
  revoke(object: Shareable): void {
    if (!isShareable(object))
      throw new TypeError(`revoke takes an object that can be sent, not ${formatValue(object)}`);
    for (const lease of leaseRegistry.leasesOf(ownerOf(object))) lease.revoke();
  },
} as const;

/** Polls until `isDone` returns true. The error of a time-out begins with `describe()`. */
function pollWithin(
  timeoutMs: number | undefined,
  signal: AbortSignal | undefined,
  isDone: () => boolean,
  describe: () => string,
): Promise<void> {
  const until = timeoutMs === undefined ? Number.POSITIVE_INFINITY : performance.now() + timeoutMs;
  const poll = (): boolean => {
    if (isDone()) return true;
    if (performance.now() >= until) throw timeoutError(describe(), timeoutMs as number);
    return false;
  };
  return pollUntil(poll, { signal });
}

/** Describes who holds an object. */
function describeHolders(owner: object): string {
  const holders = leaseRegistry.leasesOf(owner).map(({ holder }) => holder.name);
  const names = [...new Set(holders)];
  return `waiting for ${names.join(', ')} to return an object`;
}

/** Describes who holds closed objects. */
function describeOrphaned(): string {
  const { orphaned, leases: all } = leaseRegistry.stats();
  const orphans = all.filter((lease) => lease.orphaned);
  const kinds = [...new Set(orphans.map(({ kind }) => kind))].join(', ');
  const names = [...new Set(orphans.map(processName))];
  return `draining ${formatBytes(orphaned.byteLength)} (${kinds}) that ${names.join(', ')} ${names.length === 1 ? 'has' : 'have'}`;
}
