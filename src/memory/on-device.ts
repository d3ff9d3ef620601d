/** Copies and fills within a device: they only queue. */
import { cu } from '../../ffi/driver.ts';
import type { CUresult } from '../../ffi/results.ts';
import type { CUdeviceptr, CUstream } from '../../ffi/types.ts';
import { check } from '../check.ts';
import type { Context } from '../context.ts';
import type { Stream } from '../stream.ts';

/** Queues a copy within the device; nothing waits. */
export function copyOnDevice(
  context: Context,
  target: CUdeviceptr,
  source: CUdeviceptr,
  byteLength: number,
  stream: Stream | undefined,
): void {
  if (byteLength === 0) return;
  const call = (handle: CUstream): void =>
    check(
      cu.cuMemcpyDtoDAsync_v2(target, source, byteLength, handle),
      'cuMemcpyDtoDAsync_v2',
      () => `copying ${byteLength} bytes on the device`,
    );
  if (stream) stream.enqueue(call);
  else context.enqueue(call);
}

/** Queues the setting of `count` elements of `width` bytes; nothing waits. */
export function fillOnDevice(
  context: Context,
  target: CUdeviceptr,
  value: number,
  width: 1 | 2 | 4,
  count: number,
  stream: Stream | undefined,
): void {
  if (count === 0) return;
  const name = ({ 1: 'cuMemsetD8Async', 2: 'cuMemsetD16Async', 4: 'cuMemsetD32Async' } as const)[
    width
  ];
  const call = (handle: CUstream): CUresult => cu[name](target, value, count, handle);
  const checked = (handle: CUstream): void =>
    check(call(handle), name, () => `filling ${count * width} bytes`);
  if (stream) stream.enqueue(checked);
  else context.enqueue(checked);
}

/** As {@link fillOnDevice}, of `height` rows that lie `pitch` bytes apart. */
export function fillRowsOnDevice(
  context: Context,
  target: CUdeviceptr,
  pitch: number,
  value: number,
  width: 1 | 2 | 4,
  [count, height]: readonly [count: number, height: number],
  stream: Stream | undefined,
): void {
  if (height === 1) {
    fillOnDevice(context, target, value, width, count, stream);
    return;
  }
  const name = (
    { 1: 'cuMemsetD2D8Async', 2: 'cuMemsetD2D16Async', 4: 'cuMemsetD2D32Async' } as const
  )[width];
  const call = (handle: CUstream): void =>
    check(
      cu[name](target, pitch, value, count, height, handle),
      name,
      () => `filling ${height} rows of ${count * width} bytes`,
    );
  if (stream) stream.enqueue(call);
  else context.enqueue(call);
}
