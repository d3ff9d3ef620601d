/** Stores of counters behind the work of a stream, and the wait for them. */
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

/**
 * Stores a point when the work that is queued in a stream so far is done: by the device, or by the
 * host if the device cannot, or if the stream has no room behind a wait. The process stays alive until
 * then.
 *
 * @param onStored called on the event loop once it is stored, or with the error of the context
 * @throws CudaError if the context is lost; then nothing is stored
 */
export function storeBehind(
  page: StoredPage,
  point: TimelinePoint,
  context: Context,
  stream: Stream | undefined,
  onStored: (error?: unknown) => void,
): void {
  assertNotCapturing('signaling another process');
  const isByDevice = storeFromDevice(page, point, context, stream);
  if (page.isReached(point)) {
    onStored();
    return;
  }
  const event = InternalEvent.behind(context, stream);
  const isStored = (): boolean => (isByDevice && page.isReached(point)) || event.isDone;
  pollUntil(isStored, {}, undefined, event.armWakeUp).then(
    () => {
      // After a reset of the context the device stores nothing any more.
      if (!page.isReached(point)) page.store(point);
      event[Symbol.dispose]();
      onStored();
    },
    (error: unknown) => {
      event[Symbol.dispose]();
      onStored(error);
    },
  );
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
