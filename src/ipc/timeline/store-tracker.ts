import { CU_STREAM_LEGACY } from '../../../ffi/constants.ts';
import type { CUstream } from '../../../ffi/types.ts';
import { check } from '../../check.ts';
import type { Context } from '../../context.ts';
import { CudaError, isSticky } from '../../errors.ts';
import { assertNotCapturing } from '../../graph-capture.ts';
import { InternalEvent } from '../../internal-event.ts';
import { pollUntil } from '../../poller.ts';
import type { Stream } from '../../stream.ts';
import type { TimelinePoint } from './point.ts';
import { canUseStreams, writeCounter } from './stream-memory-operations.ts';
import type { AwaitedPage } from './stream-waits.ts';

/** Memory whose words a device or the host stores. */
export interface StoredPage extends AwaitedPage {
  /** Stores a count from the CPU. */
  store(point: TimelinePoint): void;
}

/** A store, and the work that it follows. */
interface QueuedStore {
  readonly point: TimelinePoint;
  readonly context: Context;
  readonly stream: Stream | undefined;
  /** The handle of the stream, which may be closed before its work is done. */
  readonly handle: CUstream;
}

/** Who hears of stores. */
export interface StoreListener {
  /** Called on the event loop when points are stored, or with the error of a context that lost them. */
  onStored(error?: unknown): void;
  /** Whether somebody sleeps until the next point is stored. */
  isAwaited(): boolean;
  /** Whether `onStored` may be late while later stores are queued, which makes many of them cheaper. */
  readonly isLazy: boolean;
}

/**
 * Stores points when the work of streams is done: by the device, or by the host if that work is done
 * already, if the device cannot, or if the stream has no room behind a wait. The process stays alive
 * until they are stored.
 */
export class StoreTracker {
  readonly #page: StoredPage;
  readonly #listener: StoreListener;
  /** The streams of which a store is tracked; if later ones are not, with the latest. */
  readonly #tracked = new Map<Stream | undefined, QueuedStore | undefined>();

  constructor(page: StoredPage, listener: StoreListener) {
    this.#page = page;
    this.#listener = listener;
  }

  /**
   * Stores a point when the work that is queued in a stream so far is done. By default it is the legacy
   * default stream of the context.
   *
   * @throws CudaError if the context is lost; then nothing is stored
   */
  store(point: TimelinePoint, context: Context, stream: Stream | undefined): void {
    assertNotCapturing('signaling another process');
    if (stream?.done) {
      // Cheaper and sooner than by the device, which would also take turns with other processes.
      this.#page.store(point);
      this.#listener.onStored();
      return;
    }
    const isByDevice = storeFromDevice(this.#page, point, context, stream);
    if (isByDevice && this.#page.isReached(point)) {
      this.#listener.onStored();
      return;
    }
    const handle = stream?.handle ?? LEGACY;
    const queued = { point, context, stream, handle };
    const { isLazy, isAwaited } = this.#listener;
    // Only the work of one stream is done in order.
    if (isByDevice && isLazy && this.#tracked.has(stream)) this.#tracked.set(stream, queued);
    else if (isByDevice && !isAwaited()) this.#poll(queued);
    else this.#track(queued, isByDevice);
  }

  /** Polls, which is cheaper than an event, and up to a millisecond late. */
  #poll(queued: QueuedStore): void {
    const page = this.#page;
    let begun = 0;
    this.#begin(queued);
    const isOver = (): boolean => {
      if (page.isReached(queued.point)) return true;
      begun ||= performance.now();
      return performance.now() - begun > POLL_MS;
    };
    void pollUntil(isOver).then(() => {
      if (page.isReached(queued.point)) this.#end(queued);
      else this.#trackAgain(queued);
    });
  }

  #track(queued: QueuedStore, isByDevice: boolean): void {
    const page = this.#page;
    const { point, context, stream } = queued;
    const work = stream?.closed ? workBehind(queued) : InternalEvent.behind(context, stream);
    const isStored = (): boolean => (isByDevice && page.isReached(point)) || work.isDone;
    this.#begin(queued);
    pollUntil(isStored, {}, undefined, work.armWakeUp).then(
      () => {
        // After a reset of the context the device stores nothing any more.
        if (!page.isReached(point)) page.store(point);
        work[Symbol.dispose]();
        this.#end(queued);
      },
      (error: unknown) => {
        work[Symbol.dispose]();
        this.#tracked.delete(stream);
        this.#listener.onStored(error);
      },
    );
  }

  /** A later store may be known already. */
  #begin({ stream }: QueuedStore): void {
    if (!this.#tracked.has(stream)) this.#tracked.set(stream, undefined);
  }

  #end({ stream }: QueuedStore): void {
    const latest = this.#tracked.get(stream);
    this.#tracked.delete(stream);
    this.#listener.onStored();
    if (latest && !this.#page.isReached(latest.point)) this.#trackAgain(latest);
  }

  /** Tracks a store by the device behind all that its stream has queued since. */
  #trackAgain(queued: QueuedStore): void {
    try {
      this.#track(queued, true);
    } catch (error) {
      if (!queued.context.isLost) {
        // Such as while a graph is captured.
        this.#poll(queued);
        return;
      }
      this.#tracked.delete(queued.stream);
      this.#listener.onStored(error);
    }
  }
}

const LEGACY = CU_STREAM_LEGACY as CUstream;

/** Work that is tracked: an {@link InternalEvent}, or what stands for one. */
type TrackedWork = Pick<InternalEvent, 'isDone' | typeof Symbol.dispose> &
  Partial<Pick<InternalEvent, 'armWakeUp'>>;

/** The work of a stream that is closed. */
function workBehind({ context, handle }: QueuedStore): TrackedWork {
  const { workTracker } = context;
  const fence = workTracker.fenceBehind(handle);
  return {
    get isDone() {
      if (!fence.isDone()) return false;
      // To a fence, work that was lost is done.
      const status = workTracker.poll();
      if (isSticky(status)) check(status, 'cuStreamQuery');
      return true;
    },
    [Symbol.dispose]: () => fence.dispose(),
  };
}

/** After so long, an event shows whether the context is lost. */
const POLL_MS = 100;

/** Returns false if the host must store it. */
function storeFromDevice(
  page: StoredPage,
  { index, count }: TimelinePoint,
  context: Context,
  stream: Stream | undefined,
): boolean {
  const handle = stream?.handle ?? LEGACY;
  if (!canUseStreams(context.device) || !context.workCounters.hasRoom(handle)) return false;
  try {
    const address = page.hostPage.addressIn(context, index);
    const write = (queue: CUstream): void => writeCounter(context, queue, address, count);
    if (stream) stream.enqueueUncounted(write);
    else context.enqueueUncounted(write);
    return true;
  } catch (error) {
    if (!(error instanceof CudaError) || error.sticky) throw error;
    return false;
  }
}
