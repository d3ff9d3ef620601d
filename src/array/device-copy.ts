/** Copies of items on a device, or from one to another: they only queue. */
import { queueStridedCopy } from '../kernel/builtin-kernels.ts';
import { DeviceBuffer } from '../memory/buffer.ts';
import { InternalEvent } from '../memory/internal-event.ts';
import { queuePitchedCopy } from '../memory/pitched-copy.ts';
import { pollUntil, type WaitOptions } from '../poller.ts';
import { Stream } from '../stream.ts';
import { type CopyPlan, copyOffsets, planCopy } from './copy-plan.ts';
import { itemsByteLength, type Layout, layoutExtents, makeLayout } from './layout.ts';

/** Where items are on a device. */
export interface DeviceItems {
  readonly memory: DeviceBuffer;
  readonly layout: Layout;
}

/** A copy of more rows than this, each of them a single item, is dearer than a launch of a kernel. */
const MAX_ROWS_FOR_DRIVER = 8192;

/** So is one of rows with more bytes than this: a kernel moves twice as many in the same time. */
const MAX_BYTES_FOR_DRIVER: number = 8 << 20;

/**
 * Two copies of the driver always are: 15 us on an H200, where a launch takes 11 and a copy 8
 * (`npm run bench -- arrays --case array.copyTo.strided --large`).
 */
function isFasterByKernel({ kind, width, height, depth, count }: CopyPlan): boolean {
  const rows = height * depth * count;
  if (count > 1) return true;
  return kind === 'gather'
    ? rows > MAX_ROWS_FOR_DRIVER
    : kind === 'box' && rows * width > MAX_BYTES_FOR_DRIVER;
}

/** Queues what a plan says: one launch of a kernel where that pays, else copies of the driver. */
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
  const from = source.address + plan.source.byteOffset;
  return queueStridedCopy({ context, target: to, source: from, width, axes }, stream);
}

/**
 * Queues a copy of items to others of the same shape and itemsize, on the same device or on another
 * one. Where the two lie in each other the items go by memory of their own, so that each is read
 * before it is written.
 */
export function queueItems(
  target: DeviceItems,
  source: DeviceItems,
  stream: Stream | undefined,
): void {
  const plan = planCopy(source.layout, target.layout);
  // Closed ones are refused, also where there is nothing to copy.
  for (const { memory } of [target, source]) memory.address;
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

/** Whether they are the same items. */
const areSameItems = (a: DeviceItems, b: DeviceItems): boolean =>
  a.memory.address + a.layout.byteOffset === b.memory.address + b.layout.byteOffset &&
  a.layout.shape.every(
    (length, axis) => length === 1 || a.layout.strides[axis] === b.layout.strides[axis],
  );

/**
 * Whether the bytes from the first item to the last are in part the same. An address is of one memory
 * only, whichever device's the buffer is said to be.
 */
function overlaps(a: DeviceItems, b: DeviceItems): boolean {
  const rangeOf = ({ memory, layout }: DeviceItems): [number, number] => {
    const { low, high } = layoutExtents(layout);
    return [memory.address + low, memory.address + high];
  };
  const [lowA, highA] = rangeOf(a);
  const [lowB, highB] = rangeOf(b);
  return lowA < highB && lowB < highA;
}

/** Resolves when what is queued now in a stream is done; refuses a buffer closed meanwhile. */
export async function waitForWork(
  buffer: DeviceBuffer,
  stream: Stream | undefined,
  wait: WaitOptions = {},
): Promise<void> {
  const event = new InternalEvent(stream?.context ?? buffer.context);
  try {
    event.record(stream);
    await pollUntil(() => event.isDone, wait);
  } finally {
    event[Symbol.dispose]();
  }
  buffer.address; // throws if it was closed, or its context reset, before it was done
}

/** Blocks until what is queued in a stream is done. */
export function waitForWorkSync({ context }: DeviceBuffer, stream: Stream | undefined): void {
  (stream ?? Stream.legacyDefault({ context })).synchronizeSync();
}
