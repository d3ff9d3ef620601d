import { CU_STREAM_LEGACY } from '../../../ffi/constants.ts';
import type { CUstream } from '../../../ffi/types.ts';
import type { Context } from '../../context.ts';
import { CudaError } from '../../errors.ts';
import { assertNotCapturing } from '../../graph-capture.ts';
import { InternalEvent } from '../../internal-event.ts';
import { pollUntil } from '../../poller.ts';
import type { Stream } from '../../stream.ts';
import { hasRoomForWork } from '../../waiting-streams.ts';
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
}

/**
 * Stores points when the work of streams is done: by the device, or by the host if the device cannot,
 * or if the stream has no room behind a wait. The process stays alive until they are stored.
 */
export class StoreTracker {
  readonly #page: StoredPage;
  readonly #onStored: (error?: unknown) => void;
  readonly #isLazy: boolean;
  #isTracking = false;
  #latest: QueuedStore | undefined;

  /**
   * @param onStored called on the event loop when points are stored, or with the error of a context
   * whose work is lost
   * @param isLazy whether `onStored` may be late while later stores are queued, which makes many of
   * them cheaper
   */
  constructor(page: StoredPage, onStored: (error?: unknown) => void, isLazy: boolean) {
    this.#page = page;
    this.#onStored = onStored;
    this.#isLazy = isLazy;
  }

  /**
   * Stores a point when the work that is queued in a stream so far is done. By default it is the legacy
   * default stream of the context.
   *
   * @throws CudaError if the context is lost; then nothing is stored
   */
  store(point: TimelinePoint, context: Context, stream: Stream | undefined): void {
    assertNotCapturing('signaling another process');
    const isByDevice = storeFromDevice(this.#page, point, context, stream);
    if (isByDevice && this.#page.isReached(point)) {
      this.#onStored();
      return;
    }
    const queued = { point, context, stream };
    if (isByDevice && this.#isLazy && this.#isTracking) this.#latest = queued;
    else this.#track(queued, isByDevice);
  }

  #track({ point, context, stream }: QueuedStore, isByDevice: boolean): void {
    const page = this.#page;
    const event = InternalEvent.behind(context, stream?.closed === true ? undefined : stream);
    const isStored = (): boolean => (isByDevice && page.isReached(point)) || event.isDone;
    this.#isTracking = true;
    const end = (error?: unknown): void => {
      this.#isTracking = false;
      event[Symbol.dispose]();
      this.#onStored(error);
      if (error === undefined) this.#trackLatest();
    };
    pollUntil(isStored, {}, undefined, event.armWakeUp).then(() => {
      // After a reset of the context the device stores nothing any more.
      if (!page.isReached(point)) page.store(point);
      end();
    }, end);
  }

  #trackLatest(): void {
    const latest = this.#latest;
    this.#latest = undefined;
    if (!latest || this.#page.isReached(latest.point)) return;
    try {
      this.#track(latest, true);
    } catch (error) {
      this.#onStored(error);
    }
  }
}

/** Returns false if the host must store it. */
function storeFromDevice(
  page: StoredPage,
  { index, count }: TimelinePoint,
  context: Context,
  stream: Stream | undefined,
): boolean {
  const handle = stream?.handle ?? (CU_STREAM_LEGACY as CUstream);
  if (!canUseStreams(context.device) || !hasRoomForWork(context, handle)) return false;
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
