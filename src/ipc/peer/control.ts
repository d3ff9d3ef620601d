/** Control messages: what each end tells the other about leases, pools, timelines and its own state. */

import { discardFds } from '../../../ffi/linux/close-fd.ts';
import { closeFd } from '../../../ffi/linux/libc.ts';
import { CuffiError, IpcError } from '../../errors.ts';
import { addUseOrder, isAddressKnown } from '../../memory/use-order.ts';
import type { Stream } from '../../stream.ts';
import { ByteWriter } from '../bytes.ts';
import type { Lease } from '../lease/export-table.ts';
import { FrameKind, HEADER_BYTE_LENGTH, MAX_CONTROL_BYTE_LENGTH } from '../protocol.ts';
import { releaseImportedPoolLater } from '../sharing/connection-pools.ts';
import { latest, type TimelinePoint } from '../timeline/words.ts';
import {
  type ControlBlock,
  emptyControlBlock,
  isEmptyControlBlock,
  writeControlBlock,
} from '../wire/control-block.ts';
import type { FramedSocket } from '../wire/framed-socket.ts';
import { MAX_PENDING_CONTROL } from '../wire/limits.ts';
import type { Session } from './session.ts';

/** The most revoked leases, or closed pools, of one message. */
const MAX_NUMBERS_PER_MESSAGE = 1024;
/** The interval of retries when no descriptor was left to send a control message. */
const RETRY_MS = 5;
const NONE: readonly never[] = [];

/** The connection of a {@link Control}. */
export interface ControlHost {
  /** Handles that nothing can be sent, or that the peer broke the protocol. */
  onFailure(error: unknown): void;
  /** Handles that leases have ended, or that a message was sent. */
  onLessInUse(): void;
}

/**
 * Sends control entries, with the next value or in a message of their own in the next turn of the event
 * loop, and applies those of the peer.
 */
export class Control {
  readonly #session: Session;
  readonly #socket: FramedSocket;
  readonly #host: ControlHost;
  /** Whether there may be entries to send. */
  #isPending = false;
  /** Set while sending is scheduled. */
  #immediate: NodeJS.Immediate | undefined;
  #retry: NodeJS.Timeout | undefined;

  constructor(session: Session, socket: FramedSocket, host: ControlHost) {
    this.#session = session;
    this.#socket = socket;
    this.#host = host;
    session.onNews = () => {
      this.#isPending = true;
      this.#immediate ??= setImmediate(() => this.send());
    };
  }

  // ---- Entries that are sent ----

  /**
   * Writes the pending entries behind a value, with the points of its objects. Returns what puts them back
   * if the message is dropped; undefined if there were none. @throws as {@link post}
   */
  attach(writer: ByteWriter, points?: readonly TimelinePoint[]): (() => void) | undefined {
    this.#sendTimelinePage();
    const entries = this.#take(points);
    if (entries === emptyControlBlock) return undefined;
    const restore = (): void => this.#restore(entries);
    try {
      writer.limit(MAX_CONTROL_BYTE_LENGTH);
      writeControlBlock(writer, entries);
      return restore;
    } catch (error) {
      restore();
      throw error;
    }
  }

  /** Takes the pending entries, for a value or for a message of their own. */
  #take(points: readonly TimelinePoint[] = NONE): ControlBlock {
    if (!this.#isPending)
      return points.length === 0 ? emptyControlBlock : { ...emptyControlBlock, points };
    const { exports, imports, revoked: allRevoked, closedPools: allClosed } = this.#session;
    // Leases that were released or dropped meanwhile need no revocation.
    const revoked = allRevoked
      .splice(0, MAX_NUMBERS_PER_MESSAGE)
      .filter((lease) => exports.isInUse(lease));
    const released = imports.takeReleases();
    const closedPools = allClosed.splice(0, MAX_NUMBERS_PER_MESSAGE);
    this.#isPending = allRevoked.length > 0 || this.#pendingCount > 0;
    return { ...emptyControlBlock, points, released, revoked, closedPools };
  }

  /** Puts the entries of a dropped message back in front. */
  #restore({ released, revoked, closedPools }: ControlBlock): void {
    this.#session.imports.restoreReleases(released);
    this.#session.revoked.unshift(...revoked);
    this.#session.closedPools.unshift(...closedPools);
    this.#isPending = true;
  }

  /** Sends what is scheduled for the next turn of the event loop. */
  sendScheduled(): void {
    if (this.#immediate) this.send();
  }

  /** Sends what is pending, unless a queued message will take it along. */
  send(): void {
    clearImmediate(this.#immediate);
    this.#immediate = undefined;
    // Messages in the queue take the entries along, or this is called when they were sent.
    if (!this.#socket.isOpen || !this.#socket.sendQueue.isEmpty) return;
    try {
      this.sendAll();
    } catch (error) {
      this.#host.onFailure(error);
      return;
    }
    this.#host.onLessInUse();
  }

  /**
   * Sends everything that is pending, behind the queued messages. What finds no file descriptor is sent
   * later.
   *
   * @throws SystemError if the socket has failed
   */
  sendAll(): void {
    try {
      this.#sendTimelinePage();
      for (;;) {
        this.#sendForwardRequests();
        const block = this.#take();
        if (isEmptyControlBlock(block)) return;
        try {
          this.post(block);
        } catch (error) {
          this.#restore(block);
          throw error;
        }
      }
    } catch (error) {
      if (!(error instanceof IpcError)) throw error;
      this.#retry ??= setTimeout(() => {
        this.#retry = undefined;
        this.send();
      }, RETRY_MS).unref();
    }
  }

  /** Sends this process's timeline page if it was not sent yet. @throws as {@link post} */
  #sendTimelinePage(): void {
    const { timeline } = this.#session;
    if (timeline.isPageUnshared)
      timeline.sharePage((page) => this.post({ hasTimelinePage: true }, [page]));
  }

  /** Tells the peer what this end has begun. */
  tellBegun(begun: number): void {
    try {
      this.post({ begun });
    } catch (error) {
      this.#host.onFailure(error);
    }
  }

  /** Sends each request with its link. */
  #sendForwardRequests(): void {
    const { forwardRequester } = this.#session;
    for (;;) {
      const forwardRequests = forwardRequester.take();
      if (forwardRequests.length === 0) return;
      const links = forwardRequests.map(({ link }) => link);
      try {
        this.post({ forwardRequests }, links);
      } catch (error) {
        forwardRequester.restore(forwardRequests);
        throw error;
      }
      links.forEach(closeFd);
    }
  }

  /** Sends a control message. @throws SystemError; IpcError if no descriptor is left for a copy */
  post(block: Partial<ControlBlock>, fds: readonly number[] = NONE): void {
    ByteWriter.use(HEADER_BYTE_LENGTH, (writer) => {
      writeControlBlock(writer, { ...emptyControlBlock, ...block });
      const type = { kind: FrameKind.control, request: 0 };
      this.#socket.post(type, writer.written, fds)?.catch(() => {});
    });
  }

  /** How many entries are pending that the peer has caused. */
  get #pendingCount(): number {
    return this.#session.imports.pendingReleaseCount + this.#session.closedPools.length;
  }

  // ---- Entries that arrive ----

  /**
   * Applies a control block; closes `fds` in every case. Returns the points that the host must wait
   * for before it applies anything else of the peer.
   *
   * @throws IpcError for invalid entries
   */
  apply(block: ControlBlock, fds: readonly number[] = NONE): readonly TimelinePoint[] {
    const waits = isEmptyControlBlock(block) ? NONE : this.#apply(block, fds);
    if (this.#isPending && this.#pendingCount > MAX_PENDING_CONTROL)
      throw new IpcError(`the other end has not read ${MAX_PENDING_CONTROL} control entries`);
    return waits;
  }

  #apply(
    { hasTimelinePage, released, revoked, forwardRequests, closedPools }: ControlBlock,
    fds: readonly number[],
  ): readonly TimelinePoint[] {
    const session = this.#session;
    const { exports, imports, timeline } = session;
    if (hasTimelinePage) timeline.acceptPage(fds[0] as number);
    else if (session.isGone) discardFds(fds);
    else session.addForwardedLeases(forwardRequests, fds);
    // When the process ended, all its leases were released.
    if (session.isGone) return NONE;
    let hostWaits: TimelinePoint[] = [];
    for (const { lease: id, isFinal, points } of released) {
      const lease = exports.get(id);
      const isReached = points.length === 0 || timeline.isReached(points);
      if (!isReached && !this.#orderUses(lease, points))
        hostWaits = latest([...hostWaits, ...points]);
      if (!isFinal) continue;
      // The holder's work may use the object until this process has seen the end of that work.
      const behind = latest([...points, ...hostWaits]);
      if (behind.length === 0 || timeline.isReached(behind)) exports.endLease(lease);
      else {
        exports.take(lease);
        session.whenReachedLater(behind, () => lease.end());
      }
    }
    for (const id of revoked) imports.revoke(id, session.peerName);
    for (const pool of closedPools) releaseImportedPoolLater(pool, session);
    return hostWaits;
  }

  /**
   * Orders later uses of what the peer has returned behind its work. A stream waits only if it uses the
   * memory: else it could wait for work that waits for this very stream. Returns false if the host must
   * wait instead.
   */
  #orderUses(lease: Lease, points: readonly TimelinePoint[]): boolean {
    const session = this.#session;
    const { timeline } = session;
    const { workLocation: place, owner } = lease;
    const memory = owner.deref();
    // Nobody here will use it, or no stream does.
    if (!place || !memory || lease.isOrphaned) return true;
    // The stream that it was sent with stands for work that cuffi does not see.
    if (!lease.kind.areUsesSeen || isAddressKnown(memory) || !timeline.canWait(place.context))
      return timeline.wait(points, place.context, place.stream);
    const order = (stream: Stream | undefined): void => {
      if (session.isGone || timeline.isReached(points)) remove();
      else if (!timeline.wait(points, stream?.context ?? place.context, stream))
        throw new CuffiError(
          `${session.peerName} has returned this memory but still works on it, and this process has reached ` +
            'its limit of waiting streams: await leases.returned(buffer) first',
        );
    };
    const remove = addUseOrder(memory, order);
    session.whenReachedLater(points, remove);
    return true;
  }
}
