/** The stream memory operations that write a counter and wait for one. */
import { CU_STREAM_WAIT_VALUE_GEQ } from '../../../ffi/constants.ts';
import { cu } from '../../../ffi/driver.ts';
import type { CUdeviceptr, CUstream } from '../../../ffi/types.ts';
import { check } from '../../check.ts';
import type { Context } from '../../context.ts';
import type { Device } from '../../device.ts';

/** Queues the store of a counter. @throws CudaError */
export function writeCounter(
  context: Context,
  stream: CUstream,
  address: CUdeviceptr,
  count: number,
): void {
  const doing = (): string => 'signaling to another process how far a stream is';
  if (has64BitOperations(context))
    check(cu.cuStreamWriteValue64_v2(stream, address, count, 0), 'cuStreamWriteValue64_v2', doing);
  else
    check(
      cu.cuStreamWriteValue32_v2(stream, address, count >>> 0, 0),
      'cuStreamWriteValue32_v2',
      doing,
    );
}

/** Queues a wait until a counter reaches `count`. @throws CudaError */
export function waitForCounter(
  context: Context,
  stream: CUstream,
  address: CUdeviceptr,
  count: number,
): void {
  const doing = (): string => 'making a stream wait for a stream of another process';
  if (has64BitOperations(context))
    check(
      cu.cuStreamWaitValue64_v2(stream, address, count, CU_STREAM_WAIT_VALUE_GEQ),
      'cuStreamWaitValue64_v2',
      doing,
    );
  else
    check(
      cu.cuStreamWaitValue32_v2(stream, address, count >>> 0, CU_STREAM_WAIT_VALUE_GEQ),
      'cuStreamWaitValue32_v2',
      doing,
    );
}

/** Returns how many bits of a counter the streams of a context compare. */
export const comparedBits = (context: Context): 32 | 64 => (has64BitOperations(context) ? 64 : 32);

/**
 * Whether a context has 64-bit operations. Nearly every device has them, and every device has
 * 32-bit ones. Both compare cyclically.
 */
function has64BitOperations(context: Context): boolean {
  let cached = contexts64Bit.get(context);
  if (cached === undefined) {
    cached = context.device.attributeOr('canUse64BitStreamMemOps', 0) !== 0;
    contexts64Bit.set(context, cached);
  }
  return cached;
}

const contexts64Bit = new WeakMap<Context, boolean>();

/** Whether the streams of a device can write and wait for 64-bit words of host memory. */
export function canUseStreams(device: Device): boolean {
  let cached = streamUse.get(device);
  if (cached === undefined) {
    cached = STREAM_ATTRIBUTES.every((name) => device.attributeOr(name, 0) !== 0);
    streamUse.set(device, cached);
  }
  return cached;
}

const streamUse = new WeakMap<Device, boolean>();
const STREAM_ATTRIBUTES = [
  'canUse64BitStreamMemOps',
  'hostRegisterSupported',
  'canMapHostMemory',
] as const;
