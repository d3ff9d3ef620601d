/** Copies items between host and device, for any layouts, with as few copies as possible. */
import { throwIfOver, type Wait } from '../deadline.ts';
import { DeviceBuffer } from '../memory/buffer.ts';
import { copyHostWithin } from '../memory/host-copy.ts';
import type { Extent, PitchedMemory } from '../memory/pitched.ts';
import { copyPitchedSync, copyPitchedWithin } from '../memory/pitched-copy.ts';
import { assertAttached } from '../memory/staging.ts';
import { nextLoopIteration } from '../poller.ts';
import type { Stream } from '../stream.ts';
import { type CopyPlan, copyOffsets, type Pitches, planCopy } from './copy-plan.ts';
import {
  type DeviceItems,
  type Items,
  queueCopyPlan,
  waitForWork,
  waitForWorkSync,
} from './device-copy.ts';
import { itemsByteLength, layoutExtents } from './layout.ts';

/** A copy between items on the host and items of the same shape and itemsize on a device. */
export interface HostTransfer {
  readonly direction: 'to device' | 'to host';
  /** The memory contains exactly the items. */
  readonly host: Items<Uint8Array>;
  readonly device: DeviceItems;
  readonly stream: Stream | undefined;
}

/** A transfer with its plan. */
interface PlannedTransfer extends HostTransfer {
  readonly plan: CopyPlan;
  readonly isToDevice: boolean;
}

/**
 * How items are transferred. `run` and `box`: by one driver copy of bytes or rows. `range`: by one
 * copy of all bytes from the first item to the last, with the CPU gathering or scattering the items.
 * `staging`: through staging memory on the device, where the device gathers or scatters them.
 */
type CopyStrategy = 'run' | 'box' | 'range' | 'staging';

/** A range is copied if it is short, or not much longer than its items. */
const MAX_SHORT_RANGE = 64 << 10;
const MAX_RANGE_WASTE = 4;

function strategyOf({ isToDevice, device, plan }: PlannedTransfer): CopyStrategy {
  if (plan.kind !== 'gather' && plan.count === 1) return plan.kind;
  const { low, high } = layoutExtents(device.layout);
  const needed = itemsByteLength(device.layout);
  // Bytes between the items must not be overwritten: only a range without gaps is copied.
  if (isToDevice) return high - low === needed ? 'range' : 'staging';
  return high - low <= Math.max(MAX_SHORT_RANGE, needed * MAX_RANGE_WASTE) ? 'range' : 'staging';
}

function planTransfer(transfer: HostTransfer): PlannedTransfer | undefined {
  const { direction, host, device } = transfer;
  // Checked even if there is nothing to copy.
  device.memory.assertOpen();
  const isToDevice = direction === 'to device';
  const [source, target] = isToDevice ? [host, device] : [device, host];
  const plan = planCopy(source.layout, target.layout);
  return plan && { ...transfer, plan, isToDevice };
}

const optionalStream = (stream: Stream | undefined): { readonly stream?: Stream } =>
  stream ? { stream } : {};

/** Resolves when the transfer is done; it starts after the work queued in the stream. */
export async function transfer(given: HostTransfer, wait: Wait): Promise<void> {
  throwIfOver(wait);
  const copy = planTransfer(given);
  if (!copy) return;
  const { host, device, isToDevice, stream } = copy;
  const copyBytes = (buffer: DeviceBuffer, bytes: Uint8Array): Promise<void> =>
    copyHostWithin(buffer, isToDevice ? 'to device' : 'to host', bytes, stream, wait);
  const strategy = strategyOf(copy);
  if (strategy === 'run') {
    const { range, bytes } = runOf(copy);
    await copyBytes(range, bytes);
  } else if (strategy === 'box') {
    await copyPitchedWithin(...boxOf(copy), stream, wait);
  } else if (strategy === 'range') {
    const { range, bytes, steps } = rangeOf(copy);
    const { byteLength } = host.memory;
    if (!isToDevice) await copyBytes(range, bytes);
    assertAttached(host.memory, byteLength);
    for (const _ of steps) {
      await nextLoopIteration();
      assertAttached(host.memory, byteLength);
    }
    if (isToDevice) await copyBytes(range, bytes);
  } else {
    const staging = allocateStaging(copy);
    try {
      if (isToDevice) await copyBytes(staging, host.memory);
      queueStaged(copy, staging);
      if (isToDevice) await waitForWork(device.memory, stream);
      else await copyBytes(staging, host.memory);
      // It may have been closed meanwhile.
      device.memory.assertOpen();
    } finally {
      staging.close();
    }
  }
}

/** As {@link transfer}, but blocks until it is done. */
export function transferSync(given: HostTransfer): void {
  const copy = planTransfer(given);
  if (!copy) return;
  const { host, device, isToDevice, stream } = copy;
  const options = optionalStream(stream);
  const strategy = strategyOf(copy);
  if (strategy === 'run') {
    const { range, bytes } = runOf(copy);
    if (isToDevice) range.copyFromSync(bytes, options);
    else range.copyToHostSync(bytes, options);
  } else if (strategy === 'box') {
    copyPitchedSync(...boxOf(copy), options);
  } else if (strategy === 'range') {
    const { range, bytes, steps } = rangeOf(copy);
    if (!isToDevice) range.copyToHostSync(bytes, options);
    while (!steps.next().done);
    if (isToDevice) range.copyFromSync(bytes, options);
  } else {
    const staging = allocateStaging(copy);
    try {
      if (isToDevice) staging.copyFromSync(host.memory, options);
      queueStaged(copy, staging);
      if (isToDevice) waitForWorkSync(device.memory, stream);
      else staging.copyToHostSync(host.memory, options);
    } finally {
      staging.close();
    }
  }
}

/** The bytes of the run, on both sides. */
function runOf({ plan, host, device, isToDevice }: PlannedTransfer): {
  readonly range: DeviceBuffer;
  readonly bytes: Uint8Array;
} {
  const { width, source, target } = plan;
  const [hostSide, deviceSide] = isToDevice ? [source, target] : [target, source];
  return {
    range: device.memory.subarray(deviceSide.byteOffset, deviceSide.byteOffset + width),
    bytes: host.memory.subarray(hostSide.byteOffset, hostSide.byteOffset + width),
  };
}

/** The box, as arguments of a pitched copy. */
function boxOf({
  plan,
  host,
  device,
  isToDevice,
}: PlannedTransfer): [PitchedMemory, PitchedMemory, Extent] {
  const { width, height, depth } = plan;
  const [source, target] = isToDevice ? [host, device] : [device, host];
  return [
    { memory: target.memory, ...plan.target },
    { memory: source.memory, ...plan.source },
    { width, height, depth },
  ];
}

/** The byte range of the items on the device, and host memory for it. */
function rangeOf({ plan, host, device, isToDevice }: PlannedTransfer): {
  readonly range: DeviceBuffer;
  readonly bytes: Uint8Array;
  readonly steps: Iterator<void> & Iterable<void>;
} {
  const { low, high } = layoutExtents(device.layout);
  const bytes = new Uint8Array(high - low);
  const range = device.memory.subarray(low, high);
  const relativeToRange = (side: Pitches): Pitches => ({
    ...side,
    byteOffset: side.byteOffset - low,
  });
  const steps = isToDevice
    ? copyOnHost({ ...plan, target: relativeToRange(plan.target) }, host.memory, bytes)
    : copyOnHost({ ...plan, source: relativeToRange(plan.source) }, bytes, host.memory);
  return { range, bytes, steps };
}

/** Allocates device memory for the items in the layout of the host. */
const allocateStaging = ({ host, device }: PlannedTransfer): DeviceBuffer =>
  DeviceBuffer.allocate(host.memory.byteLength, { context: device.memory.context });

function queueStaged(
  { plan, device, isToDevice, stream }: PlannedTransfer,
  staging: DeviceBuffer,
): void {
  if (isToDevice) queueCopyPlan(plan, device.memory, staging, stream);
  else queueCopyPlan(plan, staging, device.memory, stream);
}

// ---- Strided copies between host memories ----

/** How much is copied before the event loop gets a turn. */
const BYTES_PER_TICK = 4 << 20;
const ROWS_PER_TICK = 1 << 17;
/** Rows of at least this length are copied by `set`, shorter ones element by element. */
const MIN_LONG_ROW = 64;

/** Typed arrays over both memories, with the longest elements to which the plan is aligned. */
interface Units {
  readonly byteLength: number;
  readonly source: Uint8Array | Uint16Array | Uint32Array;
  readonly target: Uint8Array | Uint16Array | Uint32Array;
}

/**
 * Copies between host memories according to a plan. Yields now and then, so that an asynchronous
 * caller can let the event loop turn. The memories must not overlap.
 */
function* copyOnHost(
  plan: CopyPlan,
  source: Uint8Array,
  target: Uint8Array,
): Generator<void, void> {
  const { width, height, depth } = plan;
  const units = width < MIN_LONG_ROW ? unitsOf(plan, source, target) : undefined;
  let bytes = 0;
  let rows = 0;
  for (const [from, to] of copyOffsets(plan))
    for (let z = 0; z < depth; z += 1)
      for (let y = 0; y < height; y += 1) {
        const begin = from + z * plan.source.slicePitch + y * plan.source.rowPitch;
        const end = to + z * plan.target.slicePitch + y * plan.target.rowPitch;
        if (units) copyRow(units, begin, end, width);
        else target.set(source.subarray(begin, begin + width), end);
        bytes += width;
        rows += 1;
        if (bytes < BYTES_PER_TICK && rows < ROWS_PER_TICK) continue;
        bytes = 0;
        rows = 0;
        yield;
      }
}

function copyRow({ byteLength, source, target }: Units, from: number, to: number, width: number) {
  const begin = from / byteLength;
  const end = to / byteLength;
  const length = width / byteLength;
  for (let i = 0; i < length; i += 1) target[end + i] = source[begin + i] as number;
}

function unitsOf(plan: CopyPlan, source: Uint8Array, target: Uint8Array): Units {
  const steps = ({ byteOffset, rowPitch, slicePitch }: Pitches, memory: Uint8Array): number[] => [
    memory.byteOffset,
    byteOffset,
    rowPitch,
    slicePitch,
  ];
  const all = [
    plan.width,
    ...steps(plan.source, source),
    ...steps(plan.target, target),
    ...plan.repetitions.flatMap((axis) => [axis.source, axis.target]),
  ];
  const isMultipleOf = (byteLength: number): boolean =>
    all.every((step) => step % byteLength === 0);
  const Unit = isMultipleOf(4) ? Uint32Array : isMultipleOf(2) ? Uint16Array : Uint8Array;
  const viewAsUnits = (memory: Uint8Array): Uint8Array | Uint16Array | Uint32Array =>
    new Unit(
      memory.buffer as ArrayBuffer,
      memory.byteOffset,
      Math.floor(memory.byteLength / Unit.BYTES_PER_ELEMENT),
    );
  return {
    byteLength: Unit.BYTES_PER_ELEMENT,
    source: viewAsUnits(source),
    target: viewAsUnits(target),
  };
}
