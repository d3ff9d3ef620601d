/** Memory compared where it is. */

import { type CopyOptions, DeviceBuffer } from '../memory/buffer.ts';
import { checkSignal, nextLoopIteration, type WaitOptions } from '../poller.ts';
import { Stream, streamOf } from '../stream.ts';
import { checkInstance, checkOptions } from '../validate.ts';
import { builtinKernel } from './builtin-kernels.ts';

const THREADS = 256;
const MOST_BLOCKS = 1024;

/** How many bytes of each buffer are compared by the CPU between two turns of the event loop. */
const SLICE = 4 << 20;

/**
 * How many bytes of two buffers of a length are the same, counted on the device by a kernel, after
 * the work queued in the stream; where that cannot be, on the host. Both belong to the call until its
 * promise settles.
 *
 * @throws RangeError for buffers of different lengths; TypeError, ClosedError, CudaError
 * @example
 * const equal = await cuda.countEqualBytes(sent, received);
 * console.log(`${sent.byteLength - equal} bytes differ`);
 */
export async function countEqualBytes(
  a: DeviceBuffer,
  b: DeviceBuffer,
  options?: CopyOptions,
): Promise<number> {
  const { stream: given, signal } = checkOptions(options, ['stream', 'signal'], 'countEqualBytes');
  const left = checkInstance(a, DeviceBuffer, 'a');
  const right = checkInstance(b, DeviceBuffer, 'b');
  const wait = checkSignal(signal);
  const stream = streamOf(given);
  for (const buffer of [left, right]) buffer.address; // a closed one is refused
  if (left.byteLength !== right.byteLength)
    throw new RangeError(
      `a has ${left.byteLength} bytes and b has ${right.byteLength}: they cannot be compared`,
    );
  if (left.byteLength === 0) return 0;
  const counted = await countOnDevice(left, right, stream, wait);
  return counted ?? countOnHost(left, right, stream, wait);
}

/** Undefined where the kernel is not to be had. */
async function countOnDevice(
  left: DeviceBuffer,
  right: DeviceBuffer,
  stream: Stream | undefined,
  wait: WaitOptions,
): Promise<number | undefined> {
  const { context, byteLength } = left;
  if (right.context !== context) return undefined;
  const kernel = builtinKernel(context, 'compare', 'cuffi_count_equal', stream);
  if (!kernel) return undefined;
  const ordered = stream ?? Stream.legacyDefault({ context });
  const equal = DeviceBuffer.allocate(8, { context });
  try {
    equal.fill(0, { stream: ordered });
    const grid = Math.min(Math.ceil(byteLength / (4 * THREADS)), MOST_BLOCKS);
    kernel.launch({ grid, block: THREADS, stream: ordered }, left, right, byteLength, equal);
    const [count = 0n] = await equal.copyToHost(new BigUint64Array(1), {
      stream: ordered,
      ...wait,
    });
    return Number(count);
  } finally {
    equal.close();
  }
}

async function countOnHost(
  left: DeviceBuffer,
  right: DeviceBuffer,
  stream: Stream | undefined,
  wait: WaitOptions,
): Promise<number> {
  const options = { ...(stream && { stream }), ...wait };
  let count = 0;
  for (let start = 0; start < left.byteLength; start += SLICE) {
    const end = Math.min(start + SLICE, left.byteLength);
    const [ours = new Uint8Array(), theirs = ours] = await Promise.all(
      [left, right].map((buffer) => buffer.subarray(start, end).copyToHost(undefined, options)),
    );
    for (const [at, byte] of ours.entries()) if (byte === theirs[at]) count += 1;
    await nextLoopIteration();
  }
  return count;
}
