import { discardFd } from '../../../ffi/linux/close-fd.ts';
import type { Context } from '../../context.ts';
import { IpcError } from '../../errors.ts';
import type { Stream } from '../../stream.ts';
import { TimelinePage } from './page.ts';
import type { TimelinePoint } from './point.ts';
import { Signaler } from './signaler.ts';
import { Waiter } from './waiter.ts';

/** What orders the work of two processes: a page of counters for each direction. */
export class Timeline {
  #signaler: Signaler | undefined;
  #peer: { readonly page: TimelinePage; readonly waits: Waiter } | undefined;
  #isClosed = false;

  /** Whether the other process may wait for work here that is not done. */
  get isAwaitedByPeer(): boolean {
    return this.#signaler?.isPending === true;
  }

  /** Points behind the work of one stream here. @throws CudaError, ClosedError */
  pointsBehindStream(stream: Stream): TimelinePoint[] {
    return this.#isClosed ? [] : this.#ownSignaler.pointsBehindStream(stream);
  }

  /** Points behind all known work of a context here. @throws CudaError */
  pointsBehindContext(context: Context): TimelinePoint[] {
    return this.#isClosed ? [] : this.#ownSignaler.pointsBehindContext(context);
  }

  /** Passes this process's page to `send` if the other one needs it now, until that does not throw. */
  sharePage(send: (fd: number) => void): void {
    this.#signaler?.page.shareFd(send);
  }

  /** Takes the other process's page; the descriptor is closed. @throws IpcError */
  acceptPage(fd: number): void {
    if (this.#peer || this.#isClosed) {
      discardFd(fd);
      throw new IpcError('a second page of counters came');
    }
    const page = TimelinePage.accept(fd);
    this.#peer = { page, waits: new Waiter(page) };
  }

  /** @throws IpcError for points of a page that never came */
  isReached(points: readonly TimelinePoint[]): boolean {
    return points.length === 0 || this.#waiter.isReached(points);
  }

  /**
   * Has later work of a stream wait for points of the other process; answers false where the host
   * must.
   *
   * @throws IpcError for points of a page that never came; CudaError where the context is lost
   */
  wait(points: readonly TimelinePoint[], context: Context, stream: Stream | undefined): boolean {
    return points.length === 0 || this.#waiter.enqueueWaits(points, context, stream);
  }

  /** The other process is gone: no stream stays blocked. Answers how many points never came. */
  abandonWaits(): number {
    return this.#peer?.waits.abandon() ?? 0;
  }

  /** No more points; `done` is called when no stream here can wait for the other process any more. */
  close(onUnused: () => void): void {
    if (this.#isClosed) return;
    this.#isClosed = true;
    this.#signaler?.close();
    const { page, waits } = this.#peer ?? {};
    if (!page) onUnused();
    else
      page.close(() => {
        waits?.unregister();
        onUnused();
      });
  }

  get #ownSignaler(): Signaler {
    this.#signaler ??= new Signaler(TimelinePage.create());
    return this.#signaler;
  }

  get #waiter(): Waiter {
    if (!this.#peer) throw new IpcError('points came before the page that they are of');
    return this.#peer.waits;
  }
}
