import { discardFd } from '../../../ffi/linux/close-fd.ts';
import type { Context } from '../../context.ts';
import { IpcError } from '../../errors.ts';
import type { Stream } from '../../stream.ts';
import { PointPage } from './page.ts';
import type { Point } from './point.ts';
import { Signals } from './signaler.ts';
import { Waits } from './waiter.ts';

/** What orders the work of two processes: a page of counters for each direction. */
export class Ordering {
  #signals: Signals | undefined;
  #theirs: { readonly page: PointPage; readonly waits: Waits } | undefined;
  #isClosed = false;

  /** Whether the other process may wait for work here that is not done. */
  get isAwaited(): boolean {
    return this.#signals?.isPending === true;
  }

  /** Points behind the work of one stream here. @throws CudaError, ClosedError */
  behindStream(stream: Stream): Point[] {
    return this.#isClosed ? [] : this.#own.behindStream(stream);
  }

  /** Points behind all known work of a context here. @throws CudaError */
  behindContext(context: Context): Point[] {
    return this.#isClosed ? [] : this.#own.behindContext(context);
  }

  /** Passes this process's page to `send` if the other one needs it now, until that does not throw. */
  sharePage(send: (fd: number) => void): void {
    this.#signals?.page.shareFd(send);
  }

  /** Takes the other process's page; the descriptor is closed. @throws IpcError */
  acceptPage(fd: number): void {
    if (this.#theirs || this.#isClosed) {
      discardFd(fd);
      throw new IpcError('a second page of counters came');
    }
    const page = PointPage.accept(fd);
    this.#theirs = { page, waits: new Waits(page) };
  }

  /** @throws IpcError for points of a page that never came */
  isReached(points: readonly Point[]): boolean {
    return points.length === 0 || this.#waits.isReached(points);
  }

  /**
   * Has later work of a stream wait for points of the other process; answers false where the host
   * must.
   *
   * @throws IpcError for points of a page that never came; CudaError where the context is lost
   */
  wait(points: readonly Point[], context: Context, stream: Stream | undefined): boolean {
    return points.length === 0 || this.#waits.queue(points, context, stream);
  }

  /** The other process is gone: no stream stays blocked. Answers how many points never came. */
  otherIsGone(): number {
    return this.#theirs?.waits.giveUp() ?? 0;
  }

  /** No more points; `done` is called when no stream here can wait for the other process any more. */
  close(done: () => void): void {
    if (this.#isClosed) return;
    this.#isClosed = true;
    this.#signals?.close();
    const { page, waits } = this.#theirs ?? {};
    if (!page) done();
    else
      page.close(() => {
        waits?.end();
        done();
      });
  }

  get #own(): Signals {
    this.#signals ??= new Signals(PointPage.create());
    return this.#signals;
  }

  get #waits(): Waits {
    if (!this.#theirs) throw new IpcError('points came before the page that they are of');
    return this.#theirs.waits;
  }
}
