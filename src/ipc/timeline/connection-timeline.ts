import { discardFd } from '../../../ffi/linux/close-fd.ts';
import type { Context } from '../../context.ts';
import { IpcError } from '../../errors.ts';
import type { Stream } from '../../stream.ts';
import { TimelinePage } from './page.ts';
import type { TimelinePoint } from './point.ts';
import { Signaler } from './signaler.ts';
import { Waiter } from './waiter.ts';

/**
 * Orders the GPU work of two processes. Each process writes the counters of its own page and waits
 * for the counters of the other page.
 */
export class ConnectionTimeline {
  #signaler: Signaler | undefined;
  #peer: { readonly page: TimelinePage; readonly waits: Waiter } | undefined;
  #isClosed = false;
  /** Whether the other process needs this process's page and has not got it. */
  isPageUnshared = false;

  /** Whether the other process may still wait for work of this process. */
  get isAwaitedByPeer(): boolean {
    return this.#signaler?.isPending === true;
  }

  /** Returns points behind the work of one stream. @throws CudaError, ClosedError */
  pointsBehindStream(stream: Stream): TimelinePoint[] {
    return this.#isClosed ? [] : this.#ownSignaler.pointsBehindStream(stream);
  }

  /** Returns points behind all known work of a context. @throws CudaError */
  pointsBehindContext(context: Context): TimelinePoint[] {
    return this.#isClosed ? [] : this.#ownSignaler.pointsBehindContext(context);
  }

  /**
   * Calls `send` with this process's page if the other process needs it now. Later calls do so
   * again until `send` succeeds once.
   */
  sharePage(send: (fd: number) => void): void {
    this.#signaler?.page.shareFd(send);
    this.isPageUnshared = false;
  }

  /** Maps the other process's page and closes the descriptor. @throws IpcError */
  acceptPage(fd: number): void {
    if (this.#peer || this.#isClosed) {
      discardFd(fd);
      throw new IpcError('received a second timeline page');
    }
    const page = TimelinePage.accept(fd);
    this.#peer = { page, waits: new Waiter(page) };
  }

  /** @throws IpcError for points whose page was never received */
  isReached(points: readonly TimelinePoint[]): boolean {
    return points.length === 0 || this.#waiter.isReached(points);
  }

  /** Whether streams of a context can wait for points: see {@link wait}. @throws as that */
  canWait(points: readonly TimelinePoint[], context: Context): boolean {
    return this.#waiter.canWait(points, context);
  }

  /**
   * Makes later work of a stream wait for points of the other process. Returns false if the host
   * must wait instead.
   *
   * @throws IpcError for points whose page was never received; CudaError if the context is lost
   */
  wait(points: readonly TimelinePoint[], context: Context, stream: Stream | undefined): boolean {
    return points.length === 0 || this.#waiter.enqueueWaits(points, context, stream);
  }

  /**
   * Unblocks every stream after the other process is gone. Returns how many points were never
   * reached.
   */
  abandonWaits(): number {
    return this.#peer?.waits.abandon() ?? 0;
  }

  /** Stops creating points. Calls `onUnused` once no stream here can wait for the other process. */
  close(onUnused: () => void): void {
    if (this.#isClosed) return;
    this.#isClosed = true;
    this.#signaler?.close();
    if (this.#peer) this.#peer.page.close(onUnused);
    else onUnused();
  }

  get #ownSignaler(): Signaler {
    if (!this.#signaler) {
      this.#signaler = new Signaler(TimelinePage.create());
      this.isPageUnshared = true;
    }
    return this.#signaler;
  }

  get #waiter(): Waiter {
    if (!this.#peer) throw new IpcError('received points before their timeline page');
    return this.#peer.waits;
  }
}
