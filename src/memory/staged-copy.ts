/**
 * Awaited copies of ordinary host memory: in slices through page-locked slots, which other threads
 * fill and empty, so that the event loop never waits for memory.
 */
import { copyHostMemory } from '../../ffi/host-copy.ts';
import { libc } from '../../ffi/libc.ts';
import { addressOf } from '../../ffi/native.ts';
import type { Address, CUstream } from '../../ffi/types.ts';
import { nextTurn } from '../wait.ts';
import type { BegunCopy } from './awaited.ts';
import { Lender } from './lender.ts';
import { pieces } from './pieces.ts';
import { roundUp } from './round-up.ts';
import { type Slot, STAGING, StagingRing } from './staging.ts';
import { type HostCopy, moveInStream, queueSlice, requireAttached } from './transfer.ts';

/** How many of libuv's threads copy at once, whatever is copied: files and names take their turns. */
const threads = new Lender(Array.from({ length: STAGING.threads }, (_, thread) => thread));

/** A slice on its way through a slot. */
interface Slice {
  readonly copy: HostCopy;
  /** Of the whole copy. */
  readonly byteLength: number;
  readonly offset: number;
  readonly length: number;
  readonly slot: Slot;
  readonly transfers: CUstream;
}

/**
 * Resolves when the copy is done; to false, with nothing copied, where no memory can be
 * page-locked. Once it has settled nothing touches the host memory, whatever happened.
 */
export async function copyStaged({ copy, transfers, signal }: BegunCopy): Promise<boolean> {
  const { byteLength } = copy.host;
  const ring = StagingRing.of(copy.context);
  if (!ring.enter()) return false;
  const slices = pieces(byteLength, copy.cuts, sliceByteLength(byteLength));
  const move = copy.direction === 'to device' ? moveToDevice : moveToHost;
  const lane = async (_: unknown, turns: number): Promise<void> => {
    // Each may have to make a slot, which blocks: one in a turn.
    for (let turn = 0; turn < turns && ring.mustGrow; turn += 1) await nextTurn();
    // The lanes share one generator: a loop that an error leaves ends it for all of them.
    for (const [offset, length] of slices) {
      const slot = await ring.take();
      try {
        signal?.throwIfAborted();
        await move({ copy, byteLength, offset, length, slot, transfers });
      } finally {
        ring.give(slot);
      }
    }
  };
  const lanes = await Promise.allSettled(Array.from({ length: STAGING.slotCount }, lane));
  ring.leave();
  const failed = lanes.find((outcome) => outcome.status === 'rejected');
  if (failed) throw failed.reason;
  return true;
}

function sliceByteLength(byteLength: number): number {
  const { slices, leastByteLength, slotByteLength } = STAGING;
  const share = roundUp(byteLength / slices, libc.getpagesize());
  return Math.min(slotByteLength, Math.max(leastByteLength, share));
}

async function moveToDevice(slice: Slice): Promise<void> {
  await copyOffThread(slice, (host) => [slice.slot.address, host]);
  await transfer(slice);
}

async function moveToHost(slice: Slice): Promise<void> {
  await transfer(slice);
  // What a closed buffer held is not handed out, as it may be another's by now.
  slice.copy.device();
  await copyOffThread(slice, (host) => [host, slice.slot.address]);
}

/** Copies between the slot and the slice's place in host memory, which must be there throughout. */
async function copyOffThread(
  { copy: { host }, byteLength, offset, length, slot }: Slice,
  ends: (host: Address) => readonly [target: Address, source: Address],
): Promise<void> {
  const thread = await threads.take();
  try {
    requireAttached(host, byteLength);
    const [target, source] = ends((addressOf(host) + offset) as Address);
    await copyHostMemory(target, source, length, host, slot);
    requireAttached(host, byteLength);
  } finally {
    threads.give(thread);
  }
}

const transfer = ({ copy, offset, length, slot, transfers }: Slice): Promise<void> =>
  moveInStream(copy.context, transfers, slot.mark, () =>
    queueSlice(copy, offset, slot.address, length, transfers),
  );
