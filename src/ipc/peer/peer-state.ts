import { discardFds } from '../../../ffi/linux/close-fd.ts';
import type { Context } from '../../context.ts';
import { ClosedError, IpcError, PeerGoneError } from '../../errors.ts';
import { pollInBackground, pollUntil } from '../../poller.ts';
import type { Stream } from '../../stream.ts';
import { ExportTable } from '../lease/export-table.ts';
import { ForwardedLease, ForwardRequester, MAX_FORWARDS_IN_PROGRESS } from '../lease/forward.ts';
import { ImportTable } from '../lease/import-table.ts';
import type { Lease } from '../lease/lease.ts';
import type { PeerProcess } from '../lease/peer-process.ts';
import { contextOf, defaultStreamOf, type Shareable } from '../sharing/kinds.ts';
import {
  closeSharingSession,
  releaseImportedPoolLater,
  type SharingSession,
} from '../sharing/marshal.ts';
import { latest, type TimelinePoint } from '../timeline/point.ts';
import { Timeline } from '../timeline/timeline.ts';
import {
  type ControlBlock,
  emptyControlBlock,
  type ForwardRequest,
} from '../wire/control-block.ts';

/** The most revoked leases, or closed pools, of one message. */
const MAX_NUMBERS_PER_MESSAGE = 1024;
const NONE: readonly never[] = [];

/** The list is mostly empty, and this runs for every value. */
const takeFrom = <T>(list: T[]): readonly T[] =>
  list.length === 0 ? NONE : list.splice(0, MAX_NUMBERS_PER_MESSAGE);

/** Each has a link here. This process may see the end of some of them later than the peer does. */
const MAX_FORWARDED_LEASES = 2 * MAX_FORWARDS_IN_PROGRESS;

/**
 * What two peers hold of each other: leases in both directions, and their timelines. It outlives
 * the connection until everything is released or the other process is gone.
 */
export class PeerState implements SharingSession {
  readonly sentPools = new Map<string, () => void>();
  readonly receivedPools = new Map<string, unknown>();
  readonly exports: ExportTable;
  readonly imports: ImportTable;
  readonly forwardRequester: ForwardRequester;
  readonly timeline = new Timeline();
  readonly process: PeerProcess;
  readonly #peerName: string;
  readonly #graceMs: number;
  readonly #revoked: number[] = [];
  readonly #closedPools: string[] = [];
  #forwardedCount = 0;
  #stopWatching: (() => void) | undefined;
  #abandonedWaits = 0;
  #isGone = false;
  #isReceivingOver = false;
  #isEnded = false;
  /** Whether the peer has closed the connection in an orderly way. */
  isClosedByPeer = false;
  /** Called when there is something to send to the peer. */
  onControlPending: (() => void) | undefined;
  /** Called when the other process is gone. */
  onGone: (() => void) | undefined;

  constructor(process: PeerProcess, peerName: string, graceMs: number) {
    this.process = process;
    this.#peerName = peerName;
    this.#graceMs = graceMs;
    const news = (): void => this.onControlPending?.();
    this.forwardRequester = new ForwardRequester(news);
    this.imports = new ImportTable(
      this.timeline,
      {
        process,
        requestForward: (...asked) => this.forwardRequester.request(...asked),
        hasUnsentForward: (lease) => this.forwardRequester.hasUnsent(lease),
      },
      news,
    );
    this.exports = new ExportTable({
      pid: process.pid,
      name: peerName,
      revoke: (lease) => {
        this.#revoked.push(lease);
        news();
      },
    });
    this.#stopWatching = process.onGone(() => this.#onPeerGone());
  }

  /** Whether either process holds something of the other. */
  get isInUse(): boolean {
    return this.exports.size > 0 || this.imports.size > 0;
  }

  /** How many control entries are pending. */
  get pendingControlCount(): number {
    return this.imports.pendingReleaseCount + this.#closedPools.length;
  }

  /** Whether the other process is gone, so that nothing more comes from it. */
  get isGone(): boolean {
    return this.#isGone;
  }

  /**
   * Returns the error of a process that ended without closing the connection. A child that exits
   * with code 0 has finished its work; for other processes that is unknown.
   */
  goneError(): ClosedError | PeerGoneError {
    const { pid, exit } = this.process;
    const abandonedWaits = this.#abandonedWaits;
    if (exit?.exitCode === 0 && abandonedWaits === 0)
      return new ClosedError(`this Peer is closed: ${this.#peerName} has exited with code 0`);
    const how = exit?.signal
      ? `was ended by ${exit.signal}`
      : exit?.exitCode === undefined
        ? 'has ended'
        : `has exited with code ${exit.exitCode}`;
    const consequence =
      abandonedWaits > 0
        ? `; ${abandonedWaits} waits for its work were abandoned, so memory that it should have written is incomplete`
        : ' without closing the connection';
    return new PeerGoneError(`${this.#peerName} ${how}${consequence}`, {
      pid,
      abandonedWaits,
      ...exit,
    });
  }

  /** Returns points behind the pending work on objects. @throws CudaError, ClosedError */
  readyPoints(objects: readonly Shareable[], stream: Stream | undefined): TimelinePoint[] {
    if (objects.length === 0) return [];
    if (stream) return this.timeline.pointsBehindStream(stream);
    const points: TimelinePoint[] = [];
    const visited = new Set<Stream | Context>();
    for (const object of objects) {
      const ownStream = defaultStreamOf(object);
      const context = contextOf(object);
      const location = ownStream ?? context;
      if (!location || visited.has(location)) continue;
      visited.add(location);
      if (ownStream) points.push(...this.timeline.pointsBehindStream(ownStream));
      else if (context) points.push(...this.timeline.pointsBehindContext(context));
    }
    return latest(points);
  }

  /** As {@link SharingSession}. */
  hasLeaseOn(object: Shareable): boolean {
    return this.exports.hasLeaseOn(object);
  }

  /** As {@link SharingSession}. */
  onPoolClosed(pool: string): void {
    this.#closedPools.push(pool);
    this.onControlPending?.();
  }

  /** Takes the pending control entries, for a value or for a message of their own. */
  takeControl(points: readonly TimelinePoint[] = NONE): ControlBlock {
    // Leases that were released or dropped meanwhile need no revocation.
    const revoked = takeFrom(this.#revoked).filter((lease) => this.exports.isInUse(lease));
    const released = this.imports.takeReleases();
    return {
      ...emptyControlBlock,
      points,
      released,
      revoked,
      closedPools: takeFrom(this.#closedPools),
    };
  }

  /** Puts the entries of a dropped message back in front. */
  restoreControl({ released, revoked, closedPools }: ControlBlock): void {
    this.imports.restoreReleases(released);
    this.#revoked.unshift(...revoked);
    this.#closedPools.unshift(...closedPools);
  }

  /**
   * Handles that the peer holds nothing of this process and opens nothing that is still on its way.
   */
  onPeerDone(): void {
    this.exports.endAll();
  }

  /**
   * Applies a control block; closes `fds` in every case. Returns the points that the host must wait
   * for before it applies anything else of the peer.
   *
   * @throws IpcError for invalid entries
   */
  applyControl(
    { hasTimelinePage, released, revoked, forwardRequests, closedPools }: ControlBlock,
    fds: readonly number[],
  ): readonly TimelinePoint[] {
    if (hasTimelinePage) this.timeline.acceptPage(fds[0] as number);
    else if (this.#isGone) discardFds(fds);
    else this.#addForwardedLeases(forwardRequests, fds);
    // When the process ended, all its leases were released.
    if (this.#isGone) return [];
    let hostWaits: TimelinePoint[] = [];
    const heldLeases: Lease[] = [];
    for (const { lease: id, isFinal, points } of released) {
      const lease = this.exports.get(id);
      const place = points.length > 0 ? lease.workLocation : undefined;
      if (place && !this.timeline.isReached(points))
        if (!this.timeline.wait(points, place.context, place.stream))
          hostWaits = latest([...hostWaits, ...points]);
      // The holder's work may use the object until the host has seen the end of that work.
      if (isFinal && hostWaits.length > 0) heldLeases.push(lease);
      else if (isFinal) this.exports.endLease(lease);
    }
    if (heldLeases.length > 0)
      void this.whenReached(hostWaits).then(() => {
        // If the connection broke, the timeline page may be unmapped, so nothing tells how far the
        // work is. The holder then keeps the leases while it lives.
        if (this.#isEnded) return;
        this.exports.end(heldLeases);
        // These may have been the last leases that kept a closed connection open.
        this.onControlPending?.();
      });
    for (const id of revoked) this.imports.revoke(id, this.#peerName);
    for (const pool of closedPools) releaseImportedPoolLater(pool, this);
    return hostWaits;
  }

  /** Keeps objects that the peer forwards to third processes. @throws IpcError */
  #addForwardedLeases(asked: readonly ForwardRequest[], links: readonly number[]): void {
    for (const [at, adopted] of asked.entries()) {
      try {
        this.#addForwardedLease(adopted, links[at] as number);
      } catch (error) {
        discardFds(links.slice(at));
        throw error;
      }
    }
  }

  /** @param link remains the caller's if this throws */
  #addForwardedLease({ lease, pid, startTime }: ForwardRequest, link: number): void {
    if (this.#forwardedCount >= MAX_FORWARDED_LEASES)
      throw new IpcError(`more than ${MAX_FORWARDED_LEASES} things of this process were passed on`);
    new ForwardedLease(this.exports.get(lease), { pid, startTime }, link, this.#graceMs, () => {
      this.#forwardedCount -= 1;
    });
    this.#forwardedCount += 1;
  }

  /** Resolves when the points are reached or the other process is gone. */
  async whenReached(points: readonly TimelinePoint[]): Promise<void> {
    const isDone = (): boolean => this.#isGone || this.timeline.isReached(points);
    await pollUntil(() => isDone() || this.#isReceivingOver);
    if (isDone()) return;
    // No caller waits for a value any longer, so this wait must not keep the process alive.
    await new Promise<void>((resolve) => {
      pollInBackground(() => {
        if (isDone()) resolve();
        return isDone();
      });
    });
  }

  /** Releases the pools that were kept for further values. */
  endReceiving(): void {
    this.#isReceivingOver = true;
    closeSharingSession(this);
  }

  /** Ends all communication. The peer keeps its leases as long as it lives. */
  end(): void {
    if (this.#isEnded) return;
    this.#isEnded = true;
    this.onControlPending = undefined;
    this.forwardRequester.end();
    this.imports.end();
    if (!this.process.isExitObservable && !this.#isGone)
      setTimeout(() => this.#onPeerGone(), this.#graceMs).unref();
    this.timeline.close(() => this.#stopWatchingIfUnused());
  }

  #onPeerGone(): void {
    if (this.#isGone) return;
    this.#isGone = true;
    this.#abandonedWaits = this.timeline.abandonWaits();
    if (this.#abandonedWaits > 0 && this.isClosedByPeer) this.#warnAbandonedWaits();
    this.forwardRequester.end();
    this.exports.endAll();
    this.#stopWatchingIfUnused();
    this.onGone?.();
    this.onGone = undefined;
  }

  /** Warns, because the orderly end was already reported without an error. */
  #warnAbandonedWaits(): void {
    globalThis.process.emitWarning(
      `${this.#peerName} has closed its connection and ended before its work on the GPU was done: ` +
        `${this.#abandonedWaits} waits for it were abandoned, so memory that it should have written is incomplete`,
      { code: 'CUFFI_UNREACHED' },
    );
  }

  /** Stops watching the other process if nothing depends on its end. */
  #stopWatchingIfUnused(): void {
    if (this.#isEnded && this.exports.size === 0) this.#stopWatching?.();
  }
}
