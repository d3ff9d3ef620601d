import { discardFd } from '../../../ffi/linux/close-fd.ts';
import { closeFd, SystemError } from '../../../ffi/linux/libc.ts';
import {
  createSealedMemfd,
  isSealedMemfd,
  sealAgainstHolePunching,
} from '../../../ffi/linux/memfd.ts';
import type { CUdeviceptr } from '../../../ffi/types.ts';
import type { Context } from '../../context.ts';
import { IpcError } from '../../errors.ts';
import { PAGE_BYTE_LENGTH } from '../protocol.ts';
import { HostPage } from './host-page.ts';
import { hasReached, type TimelinePoint } from './point.ts';

/**
 * A page of counters that two processes map. The streams of one process write how far they are, and
 * the streams of the other wait for that. Both CPUs also read and write the page. It is host
 * memory, so the surviving process can end a wait.
 */
export class TimelinePage {
  /** The descriptor of a page that was created here, until it is sent. */
  #fd: number | undefined;
  readonly #page: HostPage;
  /** The counters as 32-bit halves. The low half of counter `n` is at index `2 * n`. */
  readonly #halves: Uint32Array;
  readonly #words: BigUint64Array;
  #isMemoryFixed = true;

  private constructor(fd: number, isCreatedHere: boolean) {
    this.#page = new HostPage(fd);
    this.#fd = isCreatedHere ? fd : undefined;
    this.#halves = new Uint32Array(this.#page.view());
    this.#words = new BigUint64Array(this.#halves.buffer);
  }

  /** Creates a page for another process. @throws SystemError */
  static create(): TimelinePage {
    const fd = createSealedMemfd('cuffi-points', PAGE_BYTE_LENGTH);
    try {
      return new TimelinePage(fd, true);
    } catch (error) {
      closeFd(fd);
      throw error;
    }
  }

  /**
   * Maps the page of another process. Closes the descriptor in every case.
   *
   * @throws IpcError for any other descriptor. Touching other memory could crash this process. A
   * stream that waits in memory that its sender can remove could wait for ever
   */
  static accept(fd: number): TimelinePage {
    try {
      if (!isSealedMemfd(fd, PAGE_BYTE_LENGTH))
        throw new IpcError('received a timeline page that is not sealed memory of its size');
      return TimelinePage.#acceptSealed(fd);
    } catch (error) {
      if (!(error instanceof SystemError)) throw error;
      throw new IpcError('received a timeline page that cannot be mapped and sealed', error);
    } finally {
      discardFd(fd);
    }
  }

  /** Maps the page first, because a sealed page can no longer be mapped. @throws SystemError */
  static #acceptSealed(fd: number): TimelinePage {
    const page = new TimelinePage(fd, false);
    try {
      page.#isMemoryFixed = sealAgainstHolePunching(fd);
      return page;
    } catch (error) {
      page.close();
      throw error;
    }
  }

  /**
   * Whether the sender can no longer change which memory backs the page. Otherwise only the hosts
   * may wait on it, not a device.
   */
  get isMemoryFixed(): boolean {
    return this.#isMemoryFixed;
  }

  /**
   * Calls `send` with the descriptor for the other process. Later calls do so again until `send`
   * succeeds once.
   */
  shareFd(send: (fd: number) => void): void {
    if (this.#fd === undefined) return;
    send(this.#fd);
    closeFd(this.#fd);
    this.#fd = undefined;
  }

  /** @internal */
  get hostPage(): HostPage {
    return this.#page;
  }

  isReached({ index, count }: TimelinePoint): boolean {
    if (this.#page.isUnmapped) return true;
    return hasReached(Atomics.load(this.#halves, 2 * index), count);
  }

  /** Stores a counter from the CPU, unless the counter is already that far. */
  advanceTo(point: TimelinePoint): void {
    if (!this.isReached(point)) Atomics.store(this.#words, point.index, BigInt(point.count));
  }

  /**
   * Ends the waits of streams for a counter up to a count, whatever its writer left there.
   *
   * @param bits how many bits of the counter the streams compare, cyclically. With 32, `count` has
   * at most 31
   */
  releaseWaits({ index, count }: TimelinePoint, bits: 32 | 64): void {
    if (this.#page.isUnmapped) return;
    const target = BigInt(count);
    const ahead = BigInt.asIntN(64, Atomics.load(this.#words, index) - target);
    const isPast = ahead >= 0n && ahead + target < 1n << BigInt(bits - 1);
    if (!isPast) Atomics.store(this.#words, index, target);
  }

  /**
   * Returns the address of a counter for the streams of a context.
   *
   * @throws CudaError if the driver does not let devices access the page
   */
  addressIn(context: Context, index: number): CUdeviceptr {
    return this.#page.addressIn(context, index);
  }

  /**
   * Unmaps the page once no work here can access it; until then it stays readable and writable. The
   * second call does nothing.
   *
   * @param onUnmapped called after that
   */
  close(onUnmapped: () => void = () => {}): void {
    if (this.#fd !== undefined) closeFd(this.#fd);
    this.#fd = undefined;
    this.#page.close(onUnmapped);
  }
}
