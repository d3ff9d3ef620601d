/** Copies between host and device: blocking, and awaited without blocking the event loop. */
import { OUT0, readHandle } from '../../ffi/arena.ts';
import { CU_EVENT_DISABLE_TIMING } from '../../ffi/constants.ts';
import { cu } from '../../ffi/driver.ts';
import { withAddress } from '../../ffi/native.ts';
import type { CUresult } from '../../ffi/results.ts';
import type { Address, CUdeviceptr, CUevent, CUstream } from '../../ffi/types.ts';
import { check, isReady } from '../check.ts';
import type { Context } from '../context.ts';
import type { Stream } from '../stream.ts';
import { nextTurn, type WaitOptions, waitUntil } from '../wait.ts';
import { ownStream } from './own-stream.ts';
import { pieces } from './pieces.ts';

/** One copy: which way, between what. */
export interface HostCopy {
  readonly direction: 'to device' | 'to host';
  readonly context: Context;
  readonly host: Uint8Array;
  /** The device address; asked again for each slice, so that closing the buffer is noticed. */
  device(): CUdeviceptr;
  /** Where the device memory must be cut, as offsets. */
  readonly cuts: readonly number[];
  readonly stream: Stream | undefined;
}

/**
 * How much is copied between two turns of the event loop: at the 10 to 18 GB/s of pageable
 * memory less than half a millisecond.
 */
const SLICE_BYTE_LENGTH = 4 << 20;

const doing =
  ({ direction, host }: HostCopy) =>
  (): string =>
    `copying ${host.byteLength} bytes ${direction}`;

function issue(copy: HostCopy, offset: number, byteLength: number, stream: CUstream): void {
  const device = (copy.device() + offset) as CUdeviceptr;
  withAddress(copy.host, (address) => {
    const host = (address + offset) as Address;
    if (copy.direction === 'to device')
      check(
        cu.cuMemcpyHtoDAsync_v2(device, host, byteLength, stream),
        'cuMemcpyHtoDAsync_v2',
        doing(copy),
      );
    else
      check(
        cu.cuMemcpyDtoHAsync_v2(host, device, byteLength, stream),
        'cuMemcpyDtoHAsync_v2',
        doing(copy),
      );
  });
}

/** Blocks until the copy is done, after all work that was queued in its stream. */
export function copySync(copy: HostCopy): void {
  const { context, direction, host, stream } = copy;
  const byteLength = host.byteLength;
  if (byteLength === 0) return;
  if (stream) {
    stream.enqueue((handle) => {
      for (const [offset, length] of pieces(byteLength, copy.cuts))
        issue(copy, offset, length, handle);
    });
    stream.synchronizeSync();
    return;
  }
  const start = copy.device();
  // The driver may still be moving the last bytes when it returns.
  context.enqueue(() =>
    withAddress(host, (address) => {
      for (const [offset, length] of pieces(byteLength, copy.cuts)) {
        const device = (start + offset) as CUdeviceptr;
        const here = (address + offset) as Address;
        if (direction === 'to device')
          check(cu.cuMemcpyHtoD_v2(device, here, length), 'cuMemcpyHtoD_v2', doing(copy));
        else check(cu.cuMemcpyDtoH_v2(here, device, length), 'cuMemcpyDtoH_v2', doing(copy));
      }
    }),
  );
}

/**
 * Resolves when the copy is done. It begins when the work that was queued in its stream at the
 * call is done, and goes over a stream of its own: a copy of pageable memory queued in a busy
 * stream would make the driver block this thread.
 */
export async function copyAwaited(copy: HostCopy, options: WaitOptions = {}): Promise<void> {
  const { context, host } = copy;
  const byteLength = host.byteLength;
  if (byteLength === 0) return;
  await workSoFar(copy, options);
  copy.device();
  const transfers = ownStream(context, 'transfers');
  const resets = context.resets;
  for (const [offset, length] of pieces(byteLength, copy.cuts, SLICE_BYTE_LENGTH)) {
    if (offset > 0) await nextTurn();
    if (host.byteLength !== byteLength)
      throw new TypeError('the host memory was detached while it was copied');
    issue(copy, offset, length, transfers);
    // Not given up for a signal: the driver has the host memory until the slice is through.
    await waitUntil(() => context.resets !== resets || isDone(transfers));
    options.signal?.throwIfAborted();
  }
  // Throws if the buffer was closed, or its context reset, before the last slice arrived.
  copy.device();
}

const isDone = (stream: CUstream): boolean => isReady(cu.cuStreamQuery(stream), 'cuStreamQuery');

/** Resolves when what is queued in the copy's stream now is done, or its buffer was closed. */
async function workSoFar(copy: HostCopy, options: WaitOptions): Promise<void> {
  const { stream } = copy;
  // An event can only be recorded in streams of its own context.
  const context = stream?.context ?? copy.context;
  context.run(() => check(cu.cuEventCreate(OUT0, CU_EVENT_DISABLE_TIMING), 'cuEventCreate'));
  const event = readHandle<CUevent>(OUT0, cu.cuEventDestroy_v2);
  const { resets } = context;
  try {
    if (stream) stream.recordEvent(event);
    else context.run(() => check(cu.cuEventRecord(event, 0 as CUstream), 'cuEventRecord'));
    await waitUntil(() => {
      copy.device();
      return context.resets !== resets || isReady(cu.cuEventQuery(event), 'cuEventQuery');
    }, options);
  } finally {
    if (context.resets === resets) cu.cuEventDestroy_v2(event);
  }
}

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
