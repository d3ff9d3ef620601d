/** Non-blocking streams that cuffi uses internally. */
import { OUT0, readHandle } from '../../ffi/arena.ts';
import { CU_STREAM_NON_BLOCKING } from '../../ffi/constants.ts';
import { cu } from '../../ffi/driver.ts';
import { CUresult } from '../../ffi/results.ts';
import type { CUdeviceptr, CUstream } from '../../ffi/types.ts';
import { check } from '../check.ts';
import type { Context } from '../context.ts';
import { pollInBackground } from '../poller.ts';
import { hasWaitingStreams } from '../waits/waiting-streams.ts';

/** What a stream is for. */
export type StreamPurpose = 'frees' | 'timeline' | 'transfers';

interface InternalStream {
  readonly epoch: number;
  readonly handle: CUstream;
}

const streams: Readonly<Record<StreamPurpose, WeakMap<Context, InternalStream>>> = {
  frees: new WeakMap(),
  timeline: new WeakMap(),
  transfers: new WeakMap(),
};

/** Returns the context's stream for a purpose. The first call creates the stream. */
export function internalStream(context: Context, purpose: StreamPurpose): CUstream {
  const existing = streams[purpose].get(context);
  if (existing?.epoch === context.epoch) return existing.handle;
  context.run(() =>
    check(
      cu.cuStreamCreateWithPriority(OUT0, CU_STREAM_NON_BLOCKING, 0),
      'cuStreamCreateWithPriority',
    ),
  );
  const handle = readHandle<CUstream>(OUT0, cu.cuStreamDestroy_v2);
  context.workTracker.follow(handle, { isShared: true });
  streams[purpose].set(context, { epoch: context.epoch, handle });
  return handle;
}

/**
 * Frees plain device memory that no work uses. cuMemFree would wait for all streams; a
 * stream-ordered free waits for none. Synchronizing that stream, which has no other work, returns
 * the memory to the device (measured on an H200).
 *
 * @throws CudaError if the memory was not freed
 */
export function freeNonBlocking(context: Context, address: CUdeviceptr): void {
  const stream = internalStream(context, 'frees');
  check(cu.cuMemFreeAsync(address, stream), 'cuMemFreeAsync');
  if (!hasWaitingStreams(context)) {
    // If this fails, the memory is still freed. The next successful synchronization returns it.
    cu.cuStreamSynchronize(stream);
    return;
  }
  // The stream may share a hardware queue with one that waits for another process: then it stands still.
  if (standingStill.has(stream)) return;
  const { epoch } = context;
  const synchronize = (): boolean => {
    const isGone = context.epoch !== epoch;
    if (!isGone && cu.cuStreamQuery(stream) === CUresult.CUDA_ERROR_NOT_READY) return false;
    if (!isGone) cu.cuStreamSynchronize(stream);
    standingStill.delete(stream);
    return true;
  };
  // The caller may be out of memory, and allocate again at once.
  const until = performance.now() + MAX_SPIN_MS;
  while (performance.now() < until) if (synchronize()) return;
  standingStill.add(stream);
  pollInBackground(synchronize);
}

/** Streams whose frees are not done: their memory is returned to the device when they are. */
const standingStill = new Set<CUstream>();
/** A free takes far less in a stream that runs. */
const MAX_SPIN_MS = 1;
