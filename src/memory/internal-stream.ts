/** Non-blocking streams that cuffi uses internally. */
import { OUT0, readHandle } from '../../ffi/arena.ts';
import { CU_STREAM_NON_BLOCKING } from '../../ffi/constants.ts';
import { cu } from '../../ffi/driver.ts';
import type { CUstream } from '../../ffi/types.ts';
import { check } from '../check.ts';
import type { Context } from '../context.ts';

/** What a stream is for. */
export type StreamPurpose = 'frees' | 'points' | 'transfers';

interface InternalStream {
  readonly epoch: number;
  readonly handle: CUstream;
}

const streams: Readonly<Record<StreamPurpose, WeakMap<Context, InternalStream>>> = {
  frees: new WeakMap(),
  points: new WeakMap(),
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
  context.workTracker.streams.add(handle);
  streams[purpose].set(context, { epoch: context.epoch, handle });
  return handle;
}
