/** Queues copies of items on a device, or between devices. */
import type { Wait } from '../deadline.ts';
import { workDone } from '../internal-event.ts';
import { queueStridedCopy } from '../kernel/builtin-kernels.ts';
import { DeviceBuffer } from '../memory/buffer.ts';
import { queuePitchedCopy } from '../memory/pitched-copy.ts';
import { Stream } from '../stream.ts';
import { type CopyPlan, copyOffsets, planCopy } from './copy-plan.ts';
import { itemsByteLength, type Layout, layoutExtents, makeLayout } from './layout.ts';

/** Items in some memory. */
export interface Items<M> {
  readonly memory: M;
  readonly layout: Layout;
}

/** Items in device memory. */
export type DeviceItems = Items<DeviceBuffer>;

/** With more rows than this, each a single item, a kernel is faster than the driver's copy. */
const MAX_ROWS_FOR_DRIVER = 8192;

/** With more bytes than this in longer rows, a kernel is twice as fast as the driver's copy. */
const MAX_BYTES_FOR_DRIVER: number = 8 << 20;

/**
 * Whether one kernel is faster than the driver's copies. It always is faster than two of them: on
 * an H200 two copies take 15 us, one copy 8 us, and a launch 11 us (`npm run bench -- arrays --case
 * array.copyTo.strided --large`).
 */
function isFasterByKernel({ kind, width, height, depth, count }: CopyPlan): boolean {
  const rows = height * depth * count;
  if (count > 1) return true;
  return kind === 'gather'
    ? rows > MAX_ROWS_FOR_DRIVER
    : kind === 'box' && rows * width > MAX_BYTES_FOR_DRIVER;
}

/** Queues a planned copy: by one kernel launch if that is faster, otherwise by driver copies. */
export function queueCopyPlan(
  plan: CopyPlan,
  target: DeviceBuffer,
  source: DeviceBuffer,
  stream: Stream | undefined,
): void {
  if (isFasterByKernel(plan) && tryCopyByKernel(plan, target, source, stream)) return;
  const { width, height, depth } = plan;
  const options = stream ? { stream } : {};
  for (const [from, to] of copyOffsets(plan))
    queuePitchedCopy(
      { memory: target, ...plan.target, byteOffset: to },
      { memory: source, ...plan.source, byteOffset: from },
      { width, height, depth },
      options,
    );
}

function tryCopyByKernel(
  { width, axes, ...plan }: CopyPlan,
  target: DeviceBuffer,
  source: DeviceBuffer,
  stream: Stream | undefined,
): boolean {
  const { context } = target;
  if (source.context !== context) return false;
  const to = target.writableAddress + plan.target.byteOffset;
  const from = source.readableAddress + plan.source.byteOffset;
  for (const memory of [target, source]) memory.orderUse(stream);
  return queueStridedCopy({ context, target: to, source: from, width, axes }, stream);
}

/**
 * Queues a copy between items of the same shape and itemsize, on one device or two. If source and
 * target overlap, the items go through staging memory, so that each is read before it is written.
 */
export function queueItems(
  target: DeviceItems,
  source: DeviceItems,
  stream: Stream | undefined,
): void {
  const plan = planCopy(source.layout, target.layout);
  // Throws for closed memory, even if there is nothing to copy.
  for (const { memory } of [target, source]) memory.assertOpen();
  if (!plan) return;
  if (!overlaps(target, source)) {
    queueCopyPlan(plan, target.memory, source.memory, stream);
    return;
  }
  if (areSameItems(target, source)) return;
  const staging = DeviceBuffer.allocate(itemsByteLength(source.layout), {
    context: source.memory.context,
  });
  try {
    const between = {
      memory: staging,
      layout: makeLayout(source.layout.shape, source.layout.itemsize),
    };
    queueItems(between, source, stream);
    queueItems(target, between, stream);
  } finally {
    staging.close();
  }
}

/** Whether both are the same items of the same memory. */
const areSameItems = (a: DeviceItems, b: DeviceItems): boolean =>
  a.memory.readableAddress + a.layout.byteOffset ===
    b.memory.readableAddress + b.layout.byteOffset &&
  a.layout.shape.every(
    (length, axis) => length === 1 || a.layout.strides[axis] === b.layout.strides[axis],
  );

/**
 * Whether the byte ranges of the items overlap. Addresses are unique over all devices, so the device
 * does not matter.
 */
function overlaps(a: DeviceItems, b: DeviceItems): boolean {
  const rangeOf = ({ memory, layout }: DeviceItems): [number, number] => {
    const { low, high } = layoutExtents(layout);
    return [memory.readableAddress + low, memory.readableAddress + high];
  };
  const [lowA, highA] = rangeOf(a);
  const [lowB, highB] = rangeOf(b);
  return lowA < highB && lowB < highA;
}

/** Resolves when the work queued so far in a stream is done. @throws ClosedError */
export async function waitForWork(
  buffer: DeviceBuffer,
  stream: Stream | undefined,
  wait: Wait = {},
): Promise<void> {
  await workDone(stream?.context ?? buffer.context, stream, wait);
  // It may have been closed, or its context reset, during the wait.
  buffer.assertOpen();
}

/** Blocks until the work queued so far in a stream is done. */
export function waitForWorkSync({ context }: DeviceBuffer, stream: Stream | undefined): void {
  (stream ?? Stream.legacyDefault({ context })).synchronizeSync();
}
