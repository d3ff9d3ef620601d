import { discardFds } from '../../../ffi/linux/close-fd.ts';
import { ClosedError, IpcError, PeerGoneError } from '../../errors.ts';
import { pollInBackground, pollUntil } from '../../poller.ts';
import type { AnyFields } from '../descriptor.ts';
import { ExportTable } from '../lease/export-table.ts';
import { ForwardedLease, ForwardRequester, MAX_FORWARDS_IN_PROGRESS } from '../lease/forward.ts';
import { ImportTable } from '../lease/import-table.ts';
import type { PeerProcess } from '../lease/peer-process.ts';
import { closeSharingSession } from '../sharing/connection-pools.ts';
import { decodeFields } from '../sharing/descriptor-codec.ts';
import type { SharingSession } from '../sharing/kind.ts';
import type { Shareable } from '../sharing/kinds.ts';
import { ConnectionTimeline } from '../timeline/connection-timeline.ts';
import type { TimelinePoint } from '../timeline/words.ts';
import type { ForwardRequest } from '../wire/control-block.ts';
import { MAX_CACHED_DESCRIPTORS } from '../wire/limits.ts';
import { lastWords } from './child-output.ts';

/** Each has a link here. This process may see the end of some of them later than the peer does. */
const MAX_FORWARDED_LEASES = 2 * MAX_FORWARDS_IN_PROGRESS;

/**
 * What two peers hold of each other: leases in both directions, and their timelines. Control blocks
 * tell of it. It outlives the connection until everything is released or the other process is gone.
 */
export class Session implements SharingSession {
  readonly sentPools = new Map<string, () => void>();
  readonly receivedPools = new Map<string, unknown>();
  readonly exports: ExportTable;
  readonly imports: ImportTable;
  readonly timeline = new ConnectionTimeline();
  readonly process: PeerProcess;
  /** The peer in words, such as `process 123`. */
  readonly peerName: string;
  readonly #graceMs: number;
  readonly forwardRequester: ForwardRequester;
  /** The leases whose end the peer must be told, and the pools that were closed here. */
  readonly revoked: number[] = [];
  readonly closedPools: string[] = [];
  /** Decoded descriptors by their bytes, as the same buffers are sent again and again. */
  readonly #descriptors = new Map<string, AnyFields>();
  #forwardedCount = 0;
  #stopWatching: (() => void) | undefined;
  /** Runs while the end of a process that cannot be observed is assumed to be still to come. */
  #graceTimer: NodeJS.Timeout | undefined;
  /** What is called when points of the peer are reached. */
  readonly #awaited = new Set<{
    readonly points: readonly TimelinePoint[];
    readonly reached: () => void;
  }>();
  /** Tells the background poll for those, while it runs, that there are more. */
  #pollSooner: (() => void) | undefined;
  #abandonedWaits = 0;
  #isReceivingOver = false;
  #isEnded = false;
  /** Whether the other process is gone, so that nothing more comes from it. */
  isGone = false;
  /** Whether the peer has closed the connection in an orderly way. */
  isClosedByPeer = false;
  /** Called when there is something to tell the peer. */
  onNews: (() => void) | undefined;
  /** Called when the other process is gone. */
  onGone: (() => void) | undefined;

  constructor(process: PeerProcess, peerName: string, graceMs: number) {
    this.process = process;
    this.peerName = peerName;
    this.#graceMs = graceMs;
    const news = (): void => this.onNews?.();
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
        this.revoked.push(lease);
        news();
      },
    });
    this.#stopWatching = process.onGone(() => this.#onPeerGone());
  }

  /** Whether either process holds something of the other. */
  get isInUse(): boolean {
    return this.exports.size > 0 || this.imports.size > 0;
  }

  /**
   * Returns the error of a process that ended without closing the connection. A child that exits
   * with code 0 has finished its work; for other processes that is unknown.
   */
  goneError(): ClosedError | PeerGoneError {
    const { pid, exit } = this.process;
    const abandonedWaits = this.#abandonedWaits;
    if (exit?.exitCode === 0 && abandonedWaits === 0)
      return new ClosedError(`this Peer is closed: ${this.peerName} has exited with code 0`);
    const how = exit?.signal
      ? `was ended by ${exit.signal}`
      : exit?.exitCode === undefined
        ? 'has ended'
        : `has exited with code ${exit.exitCode}`;
    const consequence =
      abandonedWaits > 0
        ? `; ${abandonedWaits} waits for its work were abandoned, so memory that it should have written is incomplete`
        : ' without closing the connection';
    const words = exit?.stderr && lastWords(exit.stderr);
    const reason = words ? `: ${words}` : '';
    return new PeerGoneError(`${this.peerName} ${how}${consequence}${reason}`, {
      pid,
      abandonedWaits,
      ...exit,
    });
  }

  /** Returns the error of a value whose work its process, which has ended in whatever way, never did. */
  unfinishedError(): PeerGoneError {
    const { pid, exit } = this.process;
    return new PeerGoneError(
      `${this.peerName} has ended before its work on the objects that it had sent was done`,
      { pid, abandonedWaits: this.#abandonedWaits, ...exit },
    );
  }

  // ---- What sharing asks ----

  /** As {@link SharingSession}. */
  hasLeaseOn(object: Shareable): boolean {
    return this.exports.hasLeaseOn(object);
  }

  /** As {@link SharingSession}. */
  hasLeaseOnCollected(name: string): boolean {
    return this.exports.hasLeaseOnCollected(name);
  }

  /** As {@link SharingSession}. */
  onPoolClosed(pool: string): void {
    this.closedPools.push(pool);
    this.onNews?.();
  }

  // ---- Objects that arrive, and those that are passed on ----

  /**
   * Decodes the description of an object that has arrived.
   *
   * @throws IpcError for anything but a descriptor
   */
  decodeDescriptor(bytes: Uint8Array): AnyFields {
    const text = Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength).toString('latin1');
    const known = this.#descriptors.get(text);
    if (known) return known;
    const descriptor = decodeFields(bytes);
    if (this.#descriptors.size >= MAX_CACHED_DESCRIPTORS) this.#descriptors.clear();
    this.#descriptors.set(text, descriptor);
    return descriptor;
  }

  /** Keeps objects that the peer forwards to third processes. Owns `links`. @throws IpcError */
  addForwardedLeases(asked: readonly ForwardRequest[], links: readonly number[]): void {
    for (const [at, request] of asked.entries()) {
      try {
        this.#addForwardedLease(request, links[at] as number);
      } catch (error) {
        discardFds(links.slice(at));
        throw error;
      }
    }
  }

  /** @param link remains the caller's if this throws */
  #addForwardedLease({ lease, pid, startTime }: ForwardRequest, link: number): void {
    if (this.#forwardedCount >= MAX_FORWARDED_LEASES)
      throw new IpcError(
        `${this.peerName} has forwarded more than ${MAX_FORWARDED_LEASES} objects of this process`,
      );
    new ForwardedLease(this.exports.get(lease), { pid, startTime }, link, this.#graceMs, () => {
      this.#forwardedCount -= 1;
    });
    this.#forwardedCount += 1;
  }

  // ---- Waiting for the work of the peer ----

  /** Resolves when the points are reached or the other process is gone. */
  async whenReached(points: readonly TimelinePoint[]): Promise<void> {
    const isDone = (): boolean => this.isGone || this.timeline.isReached(points);
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

  /** Calls `reached` when points are reached or the peer is gone. This does not keep the process alive. */
  whenReachedLater(points: readonly TimelinePoint[], reached: () => void): void {
    this.#awaited.add({ points, reached });
    if (this.#pollSooner) {
      this.#pollSooner();
      return;
    }
    this.#pollSooner = pollInBackground(() => {
      for (const awaited of this.#awaited) {
        if (!this.isGone && !this.timeline.isReached(awaited.points)) continue;
        this.#awaited.delete(awaited);
        awaited.reached();
      }
      if (this.#awaited.size > 0) return false;
      this.#pollSooner = undefined;
      if (this.#isEnded) this.#closeTimeline();
      return true;
    });
  }

  // ---- The end ----

  /** Releases what was kept for further values. */
  endReceiving(): void {
    this.#isReceivingOver = true;
    this.#descriptors.clear();
    closeSharingSession(this);
  }

  /** Ends all communication. The peer keeps its leases as long as it lives. */
  end(): void {
    if (this.#isEnded) return;
    this.#isEnded = true;
    this.onNews = undefined;
    this.forwardRequester.end();
    this.imports.end();
    if (!this.process.isExitObservable && !this.isGone)
      this.#graceTimer = setTimeout(() => this.#onPeerGone(), this.#graceMs).unref();
    // The page tells how far the peer's work is on what it has returned.
    if (this.#awaited.size === 0) this.#closeTimeline();
  }

  #closeTimeline(): void {
    this.timeline.close(() => this.#stopWatchingIfUnused());
  }

  #onPeerGone(): void {
    if (this.isGone) return;
    this.isGone = true;
    clearTimeout(this.#graceTimer);
    this.#abandonedWaits = this.timeline.abandonWaits();
    if (this.#abandonedWaits > 0 && this.isClosedByPeer) this.#warnAbandonedWaits();
    this.forwardRequester.end();
    this.exports.endAll();
    for (const { reached } of this.#awaited) reached();
    this.#awaited.clear();
    this.#stopWatchingIfUnused();
    this.onGone?.();
    this.onGone = undefined;
  }

  /** Warns, because the orderly end was already reported without an error. */
  #warnAbandonedWaits(): void {
    globalThis.process.emitWarning(
      `${this.peerName} has closed its connection and ended before its work on the GPU was done: ` +
        `${this.#abandonedWaits} waits for it were abandoned, so memory that it should have written is incomplete`,
      { code: 'CUFFI_UNREACHED' },
    );
  }

  /** Stops watching the other process if nothing depends on its end. */
  #stopWatchingIfUnused(): void {
    if (!this.#isEnded || this.exports.size > 0 || this.#awaited.size > 0) return;
    this.#stopWatching?.();
    clearTimeout(this.#graceTimer);
  }
}
