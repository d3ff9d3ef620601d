import type { CUstream } from '../../../ffi/types.ts';
import type { Context } from '../../context.ts';
import { CudaError } from '../../errors.ts';
import type { Stream } from '../../stream.ts';
import type { TimelinePage } from './page.ts';
import type { TimelinePoint } from './point.ts';
import { canUseStreams, comparedBits, waitForCounter } from './stream-memory-operations.ts';
import { StreamWaits } from './stream-waits.ts';

/** Makes streams of this process wait for the counters of another process. */
export class Waiter {
  readonly #page: TimelinePage;
  /** The latest awaited point of each counter. */
  readonly #awaited = new Map<number, TimelinePoint>();
  /** The fewest bits of a counter that any waiting stream compares. */
  #bits: 32 | 64 = 64;
  #isDeviceRefused = false;

  constructor(page: TimelinePage) {
    this.#page = page;
  }

  isReached(points: readonly TimelinePoint[]): boolean {
    return points.every((point) => this.#page.isReached(point));
  }

  /** Whether streams of a context can wait for points, but for the limits of each stream. */
  canWait(points: readonly TimelinePoint[], context: Context): boolean {
    if (this.#isDeviceRefused || !this.#page.isMemoryFixed || !canUseStreams(context.device))
      return false;
    return comparedBits(context) === 64 || points.every(({ count }) => count < 2 ** 31);
  }

  /**
   * Makes later work of a stream wait for points; the default is the context's legacy default
   * stream. The other process must be alive. Returns false if the device cannot wait or too many
   * waits are queued: then the host must wait.
   */
  enqueueWaits(points: readonly TimelinePoint[], context: Context, stream?: Stream): boolean {
    if (this.#isDeviceRefused || !this.#page.isMemoryFixed) return false;
    const unreached = points.filter((point) => !this.#page.isReached(point));
    if (unreached.length === 0) return true;
    try {
      const waits = StreamWaits.of(context, stream);
      if (comparedBits(waits.context) === 32) {
        // If the counts were further apart, no single counter value could end all waits.
        if (unreached.some(({ count }) => count >= 2 ** 31)) return false;
        this.#bits = 32;
      }
      const needed = waits.notAwaited(this.#page, unreached);
      if (needed.length === 0) return true;
      if (!waits.hasRoom(needed.length)) return false;
      for (const point of needed) {
        this.#enqueueWait(point, context, stream);
        waits.add(this.#page, point);
      }
      waits.mark();
      return true;
    } catch (error) {
      if (!(error instanceof CudaError) || error.sticky) throw error;
      this.#isDeviceRefused = true;
      return false;
    }
  }

  /**
   * Ends all waits after the other process is gone, so that no stream stays blocked. Returns how
   * many points were not reached.
   */
  abandon(): number {
    const awaited = [...this.#awaited.values()];
    const unreached = awaited.filter((point) => !this.#page.isReached(point));
    for (const point of awaited) this.#page.releaseWaits(point, this.#bits);
    this.#awaited.clear();
    return unreached.length;
  }

  #enqueueWait(point: TimelinePoint, context: Context, stream: Stream | undefined): void {
    const { index, count } = point;
    const waitContext = stream?.context ?? context;
    const address = this.#page.addressIn(waitContext, index);
    // Recorded before queueing: a wait that is not recorded could block for ever.
    const known = this.#awaited.get(index);
    if (known === undefined || known.count < count) this.#awaited.set(index, point);
    const wait = (queue: CUstream): void => waitForCounter(waitContext, queue, address, count);
    if (stream) stream.enqueueUncounted(wait);
    else context.enqueueUncounted(wait);
  }
}
