import { closeFd } from '../../../ffi/libc.ts';
import { type FdWatch, watchFd } from '../../../ffi/poll.ts';
import type { Lease } from './lease.ts';
import { PeerProcess } from './peer-process.ts';

/**
 * Memory of this process that one who has it has passed on to another process: kept until that one
 * has closed it, or has ended, whatever becomes of the one between. That one has the other end of a
 * pipe, and closes it with what it got.
 */
export class Adoption {
  readonly #lease: Lease;
  readonly #pipe: number;
  readonly #process: PeerProcess;
  readonly #watch: FdWatch;
  readonly #graceMs: number;
  readonly #watchNoMore: () => void;
  readonly #over: () => void;
  #isOver = false;

  /**
   * @param lease of the one between
   * @param pipe the end to read, which is this object's from now on
   * @param over called when it is given back
   */
  constructor(
    lease: Lease,
    { pid, startTime }: { readonly pid: number; readonly startTime: number },
    pipe: number,
    graceMs: number,
    over: () => void,
  ) {
    this.#pipe = pipe;
    this.#graceMs = graceMs;
    this.#over = over;
    this.#process = PeerProcess.known(pid, startTime);
    this.#watch = watchFd(pipe, { readable: true }, () => this.#closed());
    this.#watch.unref();
    // It is asked by way of the one between.
    this.#lease = lease.passedOn({ pid, name: `process ${pid}`, revoke: () => {} });
    this.#watchNoMore = this.#process.onGone(() => this.#end());
    if (this.#isOver) this.#watchNoMore();
  }

  /** All ends for writing are closed: by their owner, or because that ends. */
  #closed(): void {
    this.#watch.close();
    if (!this.#process.isSeen) setTimeout(() => this.#end(), this.#graceMs).unref();
    else if (!this.#process.isEnding) this.#end();
  }

  #end(): void {
    if (this.#isOver) return;
    this.#isOver = true;
    this.#watch.close();
    closeFd(this.#pipe);
    // Not there yet where the process was gone from the beginning.
    this.#watchNoMore?.();
    this.#lease.end();
    this.#over();
  }
}
