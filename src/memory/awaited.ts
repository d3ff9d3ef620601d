/** How awaited copies between host and device begin, go on in turns of the event loop, and end. */
import { addressOf } from '../../ffi/native.ts';
import type { Address, CUstream } from '../../ffi/types.ts';
import { nextTurn, type WaitOptions, waitUntil } from '../wait.ts';
import { requireKept } from './host-views.ts';
import { Mark } from './mark.ts';
import { lockedIn } from './page-lock.ts';
import {
  countingTransfer,
  type HostCopy,
  moveInStream,
  requireAttached,
  transferStream,
} from './transfer.ts';

/** What a copy that has begun goes by. */
export interface BegunCopy {
  readonly copy: HostCopy;
  /** The stream that it goes over. */
  readonly transfers: CUstream;
  /** Recorded behind each part of it. */
  readonly mark: Mark;
  /** Whether the device reaches the host memory itself: nothing that is queued blocks then. */
  readonly isLocked: boolean;
  readonly signal: AbortSignal | undefined;
}

/** Queues a part of a copy, in the stream that it goes over. */
export type QueuePart = (host: Address, stream: CUstream) => void;

/**
 * Calls `use` when the work that was queued in the copy's stream is done, and resolves when `use`
 * has; rejects where the buffer, or the one that the host memory is of, was closed before, or the
 * context reset.
 */
export async function afterWorkSoFar(
  copy: HostCopy,
  options: WaitOptions,
  use: (begun: BegunCopy) => Promise<void>,
): Promise<void> {
  const { context, host, stream } = copy;
  const byteLength = host.byteLength;
  // An event can only be recorded in streams of its own context.
  const before = new Mark(stream?.context ?? context);
  let mark: Mark | undefined;
  try {
    before.record(stream);
    await waitUntil(() => {
      copy.device();
      return before.reached;
    }, options);
    copy.device();
    requireAttached(host, byteLength);
    requireKept(host);
    const owner = lockedIn(context, addressOf(host), byteLength);
    // Its pages stay locked until the copy is done.
    owner?.activity.visitedBy(context.activity);
    const transfers = transferStream(context);
    mark = before.context === context ? before : new Mark(context);
    const begun = { copy, transfers, mark, isLocked: owner !== undefined, signal: options.signal };
    await countingTransfer(() => use(begun));
  } finally {
    before[Symbol.dispose]();
    mark?.[Symbol.dispose]();
  }
  copy.device();
}

/** Copies part by part, each in a turn of the event loop. */
export async function copyInTurns(
  { copy, transfers, mark, isLocked, signal }: BegunCopy,
  parts: Iterable<QueuePart>,
): Promise<void> {
  const { context, host } = copy;
  const byteLength = host.byteLength;
  let isFirst = true;
  for (const queue of parts) {
    if (!isFirst) await nextTurn();
    isFirst = false;
    requireAttached(host, byteLength);
    // Not given up for a signal: the driver has the host memory until the part is through.
    await moveInStream(
      context,
      transfers,
      mark,
      () => queue(addressOf(host), transfers),
      isLocked ? byteLength : 0,
    );
    signal?.throwIfAborted();
  }
}
