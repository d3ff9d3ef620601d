import { discardFds } from '../../../ffi/linux/close-fd.ts';
import { closeFd } from '../../../ffi/linux/libc.ts';
import type { Context } from '../../context.ts';
import { ClosedError, CuffiError, IpcError, PeerGoneError } from '../../errors.ts';
import { addUseOrder, isAddressKnown, orderedMemoryCount } from '../../memory/use-order.ts';
import { pollInBackground, pollUntil } from '../../poller.ts';
import type { Stream } from '../../stream.ts';
import type { ByteWriter } from '../bytes.ts';
import type { AnyFields } from '../descriptor.ts';
import { ExportTable, type Lease } from '../lease/export-table.ts';
import {
  ForwardedLease,
  type ForwardedObjects,
  ForwardRequester,
  forwardObjects,
  MAX_FORWARDS_IN_PROGRESS,
} from '../lease/forward.ts';
import { ImportTable } from '../lease/import-table.ts';
import type { PeerProcess } from '../lease/peer-process.ts';
import { PACKET_FDS } from '../protocol.ts';
import { closeSharingSession, releaseImportedPoolLater } from '../sharing/connection-pools.ts';
import { decodeAnyFields } from '../sharing/descriptor-codec.ts';
import type { EncodedExport, SharingSession } from '../sharing/kind.ts';
import { bufferOf, isImported, type Shareable } from '../sharing/kinds.ts';
import { prepareForPeer } from '../sharing/marshal.ts';
import { ConnectionTimeline } from '../timeline/connection-timeline.ts';
import { latest, type TimelinePoint } from '../timeline/point.ts';
import {
  type ControlBlock,
  emptyControlBlock,
  type ForwardRequest,
  isEmptyControlBlock,
} from '../wire/control-block.ts';
import { MAX_CACHED_DESCRIPTORS, MAX_PENDING_CONTROL } from '../wire/limits.ts';
import { type ObjectEntry, writeObjectTable } from '../wire/value-message.ts';
import { lastWords } from './child-output.ts';

/** The most revoked leases, or closed pools, of one message. */
const MAX_NUMBERS_PER_MESSAGE = 1024;
const NONE: readonly never[] = [];

/** Each has a link here. This process may see the end of some of them later than the peer does. */
const MAX_FORWARDED_LEASES = 2 * MAX_FORWARDS_IN_PROGRESS;

/** Sends a control message. @throws SystemError; IpcError if no descriptor is left for a copy */
type PostControl = (block: ControlBlock, fds: readonly number[]) => void;

/** Objects that were leased to the peer, for the message that carries them. */
export interface LeasedObjects {
  /** The file descriptors of the objects, and links. */
  readonly fds: readonly number[];
  /** Those of them that are closed once they are sent. The others remain their owners'. */
  readonly ownFds: readonly number[];
  /** Points behind the pending work on the objects. */
  readonly points: readonly TimelinePoint[];
  readonly leases: readonly Lease[];
  /** Pools that the peer gets with this message. */
  readonly newPools: readonly string[];
  /** What other processes own of the objects. */
  readonly forwarded: ForwardedObjects | undefined;
}

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
  readonly #peerName: string;
  readonly #graceMs: number;
  readonly #post: PostControl;
  readonly forwardRequester: ForwardRequester;
  readonly #revoked: number[] = [];
  readonly #closedPools: string[] = [];
  /** Whether there may be control entries to send. */
  #isControlPending = false;
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
  /** Called when there is something to send to the peer. */
  onControlPending: (() => void) | undefined;
  /** Called when the other process is gone. */
  onGone: (() => void) | undefined;

  constructor(process: PeerProcess, peerName: string, graceMs: number, post: PostControl) {
    this.process = process;
    this.#peerName = peerName;
    this.#graceMs = graceMs;
    this.#post = post;
    const news = (): void => this.#noteControlPending();
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
    const words = exit?.stderr && lastWords(exit.stderr);
    const reason = words ? `: ${words}` : '';
    return new PeerGoneError(`${this.#peerName} ${how}${consequence}${reason}`, {
      pid,
      abandonedWaits,
      ...exit,
    });
  }

  /** Returns the error of a value whose work its process, which has ended in whatever way, never did. */
  unfinishedError(): PeerGoneError {
    const { pid, exit } = this.process;
    return new PeerGoneError(
      `${this.#peerName} has ended before its work on what it had sent was done`,
      { pid, abandonedWaits: this.#abandonedWaits, ...exit },
    );
  }

  // ---- Objects that are sent ----

  /**
   * Leases exported objects to the peer, and writes their table behind the value. The peer may
   * already have the pools of some objects, so nothing else may be exported to it before the
   * message is sent.
   *
   * @param exported what each object was exported as, for any process
   * @throws IpcError, RangeError, ClosedError, SystemError; then nothing is leased
   */
  leaseObjects(
    writer: ByteWriter,
    objects: readonly Shareable[],
    exported: readonly EncodedExport[],
    stream: Stream | undefined,
  ): LeasedObjects {
    const sentBefore = this.sentPools.size;
    const forwarded = objects.some(isImported) ? forwardObjects(objects, this.process) : undefined;
    const ownFds: number[] = [...(forwarded?.links ?? NONE)];
    let leases: readonly Lease[] = NONE;
    try {
      leases = this.exports.add(objects, stream, exported);
      forwarded?.indices.forEach((index, at) => {
        (leases[index] as Lease).onEnd = forwarded.releases[at];
      });
      const fds: number[] = [];
      const entries: ObjectEntry[] = [];
      for (let at = 0; at < objects.length; at += 1) {
        const ready = prepareForPeer(this, objects[at] as Shareable, exported[at] as EncodedExport);
        const link = forwarded?.links[forwarded.indices.indexOf(at)];
        for (const fd of ready.fds) fds.push(fd);
        for (const fd of ready.ownFds ?? NONE) ownFds.push(fd);
        if (link !== undefined) fds.push(link);
        entries.push({
          bytes: ready.bytes,
          fdCount: ready.fds.length,
          hasLink: link !== undefined,
        });
      }
      checkFdCount(fds.length);
      const points = this.#readyPoints(objects, leases, stream);
      writeObjectTable(writer, { firstLease: (leases[0] as Lease).id, entries });
      return { fds, ownFds, points, leases, newPools: this.#poolsSentSince(sentBefore), forwarded };
    } catch (error) {
      ownFds.forEach(closeFd);
      if (leases.length > 0) this.exports.end(leases);
      else for (const release of forwarded?.releases ?? NONE) release();
      this.#forgetSentPools(this.#poolsSentSince(sentBefore));
      throw error;
    }
  }

  /** Ends leases whose message is never sent. */
  cancelLeases({ leases, newPools }: LeasedObjects): void {
    this.exports.end(leases);
    this.#forgetSentPools(newPools);
  }

  /** The pools that were exported to this peer since there were so many. */
  #poolsSentSince(count: number): readonly string[] {
    return this.sentPools.size > count ? [...this.sentPools.keys()].slice(count) : NONE;
  }

  /** Forgets pools that were exported for a message that is never sent. */
  #forgetSentPools(pools: readonly string[]): void {
    for (const pool of pools) {
      this.sentPools.get(pool)?.();
      this.sentPools.delete(pool);
    }
  }

  /** Returns points behind the pending work on objects. @throws CudaError, ClosedError */
  #readyPoints(
    objects: readonly Shareable[],
    leases: readonly Lease[],
    stream: Stream | undefined,
  ): TimelinePoint[] {
    if (stream) {
      if (orderedMemoryCount > 0) for (const object of objects) bufferOf(object)?.orderUse(stream);
      return this.timeline.pointsBehindStream(stream);
    }
    const points: TimelinePoint[] = [];
    const visited = new Set<Stream | Context>();
    for (const [at, { workLocation }] of leases.entries()) {
      if (!workLocation) continue;
      const { context, stream: own } = workLocation;
      if (own && orderedMemoryCount > 0) bufferOf(objects[at] as Shareable)?.orderUse(own);
      if (visited.has(own ?? context)) continue;
      visited.add(own ?? context);
      if (own) points.push(...this.timeline.pointsBehindStream(own));
      else points.push(...this.timeline.pointsBehindContext(context));
    }
    return points.length > 1 ? latest(points) : points;
  }

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
    this.#closedPools.push(pool);
    this.#noteControlPending();
  }

  // ---- Objects that arrive ----

  /**
   * Decodes the description of an object that has arrived.
   *
   * @throws IpcError for anything but a descriptor
   */
  decodeDescriptor(bytes: Uint8Array): AnyFields {
    const text = Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength).toString('latin1');
    const known = this.#descriptors.get(text);
    if (known) return known;
    const descriptor = decodeAnyFields(bytes);
    if (this.#descriptors.size >= MAX_CACHED_DESCRIPTORS) this.#descriptors.clear();
    this.#descriptors.set(text, descriptor);
    return descriptor;
  }

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

  /** Releases what was kept for further values. */
  endReceiving(): void {
    this.#isReceivingOver = true;
    this.#descriptors.clear();
    closeSharingSession(this);
  }

  // ---- Control blocks that are sent ----

  /** Takes the pending control entries, for a value or for a message of their own. */
  takeControl(points: readonly TimelinePoint[] = NONE): ControlBlock {
    if (!this.#isControlPending)
      return points.length === 0 ? emptyControlBlock : { ...emptyControlBlock, points };
    // Leases that were released or dropped meanwhile need no revocation.
    const revoked = this.#revoked
      .splice(0, MAX_NUMBERS_PER_MESSAGE)
      .filter((lease) => this.exports.isInUse(lease));
    const released = this.imports.takeReleases();
    const closedPools = this.#closedPools.splice(0, MAX_NUMBERS_PER_MESSAGE);
    this.#isControlPending = this.#revoked.length > 0 || this.#pendingControlCount > 0;
    return { ...emptyControlBlock, points, released, revoked, closedPools };
  }

  /** Puts the entries of a dropped message back in front. */
  restoreControl({ released, revoked, closedPools }: ControlBlock): void {
    this.imports.restoreReleases(released);
    this.#revoked.unshift(...revoked);
    this.#closedPools.unshift(...closedPools);
    this.#isControlPending = true;
  }

  /**
   * Sends everything that is pending.
   *
   * @returns false if no file descriptor is left to send it with: try again later
   * @throws SystemError if the socket has failed
   */
  sendPending(): boolean {
    try {
      this.sendTimelinePage();
      for (;;) {
        this.#sendForwardRequests();
        const block = this.takeControl();
        if (isEmptyControlBlock(block)) return true;
        try {
          this.#post(block, NONE);
        } catch (error) {
          this.restoreControl(block);
          throw error;
        }
      }
    } catch (error) {
      if (error instanceof IpcError) return false;
      throw error;
    }
  }

  /** Sends this process's timeline page if it was not sent yet. @throws as {@link sendPending} */
  sendTimelinePage(): void {
    if (this.timeline.isPageUnshared)
      this.timeline.sharePage((page) => {
        this.#post({ ...emptyControlBlock, hasTimelinePage: true }, [page]);
      });
  }

  /** Sends each request with its link. */
  #sendForwardRequests(): void {
    for (;;) {
      const forwardRequests = this.forwardRequester.take();
      if (forwardRequests.length === 0) return;
      const links = forwardRequests.map(({ link }) => link);
      try {
        this.#post({ ...emptyControlBlock, forwardRequests }, links);
      } catch (error) {
        this.forwardRequester.restore(forwardRequests);
        throw error;
      }
      links.forEach(closeFd);
    }
  }

  // ---- Control blocks that arrive ----

  /**
   * Applies a control block; closes `fds` in every case. Returns the points that the host must wait
   * for before it applies anything else of the peer.
   *
   * @throws IpcError for invalid entries
   */
  applyControl(block: ControlBlock, fds: readonly number[]): readonly TimelinePoint[] {
    const waits = isEmptyControlBlock(block) ? NONE : this.#apply(block, fds);
    if (this.#isControlPending && this.#pendingControlCount > MAX_PENDING_CONTROL)
      throw new IpcError(
        `${MAX_PENDING_CONTROL} things wait to be told, and nobody there reads them`,
      );
    return waits;
  }

  /**
   * Handles that the peer holds nothing of this process and opens nothing that is still on its way.
   */
  onPeerDone(): void {
    this.exports.endAll();
  }

  #noteControlPending(): void {
    this.#isControlPending = true;
    this.onControlPending?.();
  }

  /** How many control entries are pending. */
  get #pendingControlCount(): number {
    return this.imports.pendingReleaseCount + this.#closedPools.length;
  }

  #apply(
    { hasTimelinePage, released, revoked, forwardRequests, closedPools }: ControlBlock,
    fds: readonly number[],
  ): readonly TimelinePoint[] {
    if (hasTimelinePage) this.timeline.acceptPage(fds[0] as number);
    else if (this.isGone) discardFds(fds);
    else this.#addForwardedLeases(forwardRequests, fds);
    // When the process ended, all its leases were released.
    if (this.isGone) return NONE;
    let hostWaits: TimelinePoint[] = [];
    for (const { lease: id, isFinal, points } of released) {
      const lease = this.exports.get(id);
      const isReached = points.length === 0 || this.timeline.isReached(points);
      if (!isReached && !this.#orderUses(lease, points))
        hostWaits = latest([...hostWaits, ...points]);
      if (!isFinal) continue;
      // The holder's work may use the object until this process has seen the end of that work.
      const behind = latest([...points, ...hostWaits]);
      if (behind.length === 0 || this.timeline.isReached(behind)) this.exports.endLease(lease);
      else this.#keepUntilReached(lease, behind);
    }
    for (const id of revoked) this.imports.revoke(id, this.#peerName);
    for (const pool of closedPools) releaseImportedPoolLater(pool, this);
    return hostWaits;
  }

  /**
   * Orders later uses of what the peer has returned behind its work. A stream waits only if it uses the
   * memory: else it could wait for work that waits for this very stream. Returns false if the host must
   * wait instead.
   */
  #orderUses(lease: Lease, points: readonly TimelinePoint[]): boolean {
    const { workLocation: place, owner } = lease;
    const memory = owner.deref();
    // Nobody here will use it, or no stream does.
    if (!place || !memory || lease.isOrphaned) return true;
    // The stream that it was sent with stands for work that cuffi does not see.
    if (!lease.kind.areUsesSeen || isAddressKnown(memory) || !this.timeline.canWait(place.context))
      return this.timeline.wait(points, place.context, place.stream);
    const order = (stream: Stream | undefined): void => {
      if (this.isGone || this.timeline.isReached(points)) remove();
      else if (!this.timeline.wait(points, stream?.context ?? place.context, stream))
        throw new CuffiError(
          `${this.#peerName} still works on this memory, which it has returned, and no further stream of ` +
            'this process can wait for it: await leases.returned(buffer) first',
        );
    };
    const remove = addUseOrder(memory, order);
    this.#whenReachedLater(points, remove);
    return true;
  }

  /** Keeps an object that the peer has released until its work on that is done. */
  #keepUntilReached(lease: Lease, points: readonly TimelinePoint[]): void {
    this.exports.take(lease);
    this.#whenReachedLater(points, () => lease.end());
  }

  /** Calls `reached` when points are reached or the peer is gone. This does not keep the process alive. */
  #whenReachedLater(points: readonly TimelinePoint[], reached: () => void): void {
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

  /** Keeps objects that the peer forwards to third processes. @throws IpcError */
  #addForwardedLeases(asked: readonly ForwardRequest[], links: readonly number[]): void {
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
      throw new IpcError(`more than ${MAX_FORWARDED_LEASES} things of this process were passed on`);
    new ForwardedLease(this.exports.get(lease), { pid, startTime }, link, this.#graceMs, () => {
      this.#forwardedCount -= 1;
    });
    this.#forwardedCount += 1;
  }

  // ---- The end ----

  /** Ends all communication. The peer keeps its leases as long as it lives. */
  end(): void {
    if (this.#isEnded) return;
    this.#isEnded = true;
    this.onControlPending = undefined;
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
      `${this.#peerName} has closed its connection and ended before its work on the GPU was done: ` +
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

function checkFdCount(count: number): void {
  if (count > PACKET_FDS)
    throw new RangeError(
      `the value has ${count} file descriptors, those included by which it is passed on: it may have ${PACKET_FDS}`,
    );
}
