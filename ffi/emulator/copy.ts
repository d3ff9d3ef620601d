/** Copies and fills. */
import type { Driver } from '../functions.ts';
import { withAddress } from '../native.ts';
import { CUresult, type CUresult as Status } from '../results.ts';
import type { Contexts } from './context.ts';
import type { HostMemory } from './host-memory.ts';
import type { Memory } from './memory.ts';
import type { Stream, StreamQueues } from './stream-queues.ts';

const {
  CUDA_SUCCESS,
  CUDA_ERROR_INVALID_VALUE,
  CUDA_ERROR_INVALID_CONTEXT,
  CUDA_ERROR_INVALID_HANDLE,
  CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
} = CUresult;

const MAX_PATTERN_BYTES = 2 ** 20;

/**
 * Copies across the boundary of two mappings are refused, except that hardware accepted synchronous
 * reads of this many bytes. The exact limit was not measured.
 */
const MAX_CROSS_MAPPING_READ = 64;

/**
 * The largest copy from pageable memory to the device that returns before the stream reaches it.
 * Measured to be between 1 MiB and 4 MiB.
 */
export const MAX_STAGED_BYTES: number = 2 ** 20;

/** Fills `byteLength` bytes with a repeated element. */
function fill(memory: Memory, address: number, element: Uint8Array, byteLength: number): void {
  const pattern = Buffer.allocUnsafeSlow(Math.min(byteLength, MAX_PATTERN_BYTES)).fill(element);
  withAddress(pattern, (from) => {
    for (let done = 0; done < byteLength; done += pattern.length)
      memory.copy(address + done, from, Math.min(pattern.length, byteLength - done));
  });
}

/** An unsigned number as `byteLength` bytes. */
function encoded(value: number, byteLength: number): Uint8Array {
  const bytes = Buffer.alloc(4);
  bytes.writeUInt32LE(value >>> 0);
  return bytes.subarray(0, byteLength);
}

export type CopyFunctions = Pick<
  Driver,
  | 'cuMemcpyHtoD_v2'
  | 'cuMemcpyDtoH_v2'
  | 'cuMemcpyHtoDAsync_v2'
  | 'cuMemcpyDtoHAsync_v2'
  | 'cuMemcpyDtoDAsync_v2'
  | 'cuMemcpyPeerAsync'
  | 'cuMemsetD8Async'
  | 'cuMemsetD16Async'
  | 'cuMemsetD32Async'
  | 'cuMemsetD2D8Async'
  | 'cuMemsetD2D16Async'
  | 'cuMemsetD2D32Async'
>;

export function copyFunctions(
  memory: Memory,
  queues: StreamQueues,
  host: HostMemory,
  contexts: Contexts,
): CopyFunctions {
  const copies = new Copies(memory, queues);
  return { ...linearCopies(copies, memory, queues, host, contexts), ...fills(copies) };
}

type FillName = Extract<keyof CopyFunctions, `cuMemset${string}`>;

const fills = (copies: Copies): Pick<CopyFunctions, FillName> => ({
  cuMemsetD8Async: (at, value, count, stream) =>
    copies.fillRows(at, 0, value, 1, [count, 1], stream),
  cuMemsetD16Async: (at, value, count, stream) =>
    copies.fillRows(at, 0, value, 2, [count, 1], stream),
  cuMemsetD32Async: (at, value, count, stream) =>
    copies.fillRows(at, 0, value, 4, [count, 1], stream),
  cuMemsetD2D8Async: (at, pitch, value, width, height, stream) =>
    copies.fillRows(at, pitch, value, 1, [width, height], stream),
  cuMemsetD2D16Async: (at, pitch, value, width, height, stream) =>
    copies.fillRows(at, pitch, value, 2, [width, height], stream),
  cuMemsetD2D32Async: (at, pitch, value, width, height, stream) =>
    copies.fillRows(at, pitch, value, 4, [width, height], stream),
});

function linearCopies(
  copies: Copies,
  memory: Memory,
  queues: StreamQueues,
  host: HostMemory,
  contexts: Contexts,
): Omit<CopyFunctions, FillName> {
  return {
    cuMemcpyHtoD_v2(to, from, byteLength) {
      const queue = queues.legacy(contexts.current);
      if (byteLength === 0) return CUDA_SUCCESS;
      const { device } = queue.context;
      const isRefused = memory.isDeviceRegion(from) && !memory.canRead(from, byteLength, device);
      if (isRefused || !memory.canWrite(to, byteLength, device)) return CUDA_ERROR_INVALID_VALUE;
      return copies.sync(queue, to, from, byteLength);
    },
    cuMemcpyDtoH_v2(to, from, byteLength) {
      const queue = queues.legacy(contexts.current);
      if (byteLength === 0) return CUDA_SUCCESS;
      const { device } = queue.context;
      const isRefused = memory.isDeviceRegion(to) && !memory.canWrite(to, byteLength, device);
      const isReadable =
        byteLength <= MAX_CROSS_MAPPING_READ
          ? memory.canReadAcross(from, byteLength, device)
          : memory.canRead(from, byteLength, device);
      if (isRefused || !isReadable) return CUDA_ERROR_INVALID_VALUE;
      return copies.sync(queue, to, from, byteLength);
    },
    // Pageable host memory is read now, because its owner may change it as soon as the call
    // returns. A large copy returns when the stream has reached it.
    cuMemcpyHtoDAsync_v2(to, from, byteLength, stream) {
      const queue = queues.get(stream);
      if (!queue) return CUDA_ERROR_INVALID_HANDLE;
      const { device } = queue.context;
      if (byteLength === 0) return CUDA_SUCCESS;
      if (!memory.canWrite(to, byteLength, device)) return CUDA_ERROR_INVALID_VALUE;
      if (memory.canRead(from, byteLength, device))
        return copies.async(queue, to, from, byteLength);
      const bytes = memory.isDeviceRegion(from) ? undefined : host.read(from, byteLength);
      if (!bytes) return CUDA_ERROR_INVALID_VALUE;
      let isDone = false;
      const work = (): boolean => {
        if (memory.canStillWrite(to, byteLength, device))
          withAddress(bytes, (address) => memory.copy(to, address, byteLength));
        else queues.failContext(queue);
        isDone = true;
        return true;
      };
      queues.enqueue(queue, work, 'copy');
      if (byteLength > MAX_STAGED_BYTES && !queue.capture)
        queues.blockUntil(
          () => isDone || queue.context.failure !== CUDA_SUCCESS,
          () => [queue],
        );
      return CUDA_SUCCESS;
    },
    // A copy into pageable host memory is done before the call returns, as with the driver's staging.
    // In a graph it runs at each launch.
    cuMemcpyDtoHAsync_v2(to, from, byteLength, stream) {
      const queue = queues.get(stream);
      if (!queue) return CUDA_ERROR_INVALID_HANDLE;
      const { device } = queue.context;
      if (byteLength === 0) return CUDA_SUCCESS;
      if (!memory.canRead(from, byteLength, device)) return CUDA_ERROR_INVALID_VALUE;
      const isLater = memory.canWrite(to, byteLength, device);
      if (!isLater && memory.isDeviceRegion(to)) return CUDA_ERROR_INVALID_VALUE;
      if (!isLater && queue.capture) return copies.async(queue, to, from, byteLength, true);
      return copies[isLater ? 'async' : 'sync'](queue, to, from, byteLength);
    },
    cuMemcpyDtoDAsync_v2(to, from, byteLength, stream) {
      const queue = queues.get(stream);
      if (!queue) return CUDA_ERROR_INVALID_HANDLE;
      const { device } = queue.context;
      if (byteLength === 0) return CUDA_SUCCESS;
      if (!memory.canWrite(to, byteLength, device) || !memory.canRead(from, byteLength, device))
        return CUDA_ERROR_INVALID_VALUE;
      return copies.async(queue, to, from, byteLength);
    },
    // Works without peer access, which only makes it faster.
    cuMemcpyPeerAsync(to, toContext, from, fromContext, byteLength, stream) {
      const queue = queues.get(stream);
      if (!queue) return CUDA_ERROR_INVALID_HANDLE;
      // 0 means the context of the stream.
      const target = toContext === 0 ? queue.context : contexts.get(toContext);
      const source = fromContext === 0 ? queue.context : contexts.get(fromContext);
      if (!target?.alive || !source?.alive) return CUDA_ERROR_INVALID_CONTEXT;
      if (byteLength === 0) return CUDA_SUCCESS;
      const isTaken =
        memory.canWrite(to, byteLength, target.device) &&
        memory.canRead(from, byteLength, source.device);
      if (!isTaken) return CUDA_ERROR_INVALID_VALUE;
      const work = (): boolean => {
        const areThere =
          memory.canStillWrite(to, byteLength, target.device) &&
          memory.canStillRead(from, byteLength, source.device);
        if (areThere) memory.copy(to, from, byteLength);
        else queues.failContext(queue);
        return true;
      };
      queues.enqueue(queue, work, 'copy');
      return CUDA_SUCCESS;
    },
  };
}

/** Copies and fills in the order of streams. */
class Copies {
  readonly #memory: Memory;
  readonly #queues: StreamQueues;

  constructor(memory: Memory, queues: StreamQueues) {
    this.#memory = memory;
    this.#queues = queues;
  }

  /** Copies in stream order and waits for the copy. */
  sync(queue: Stream, to: number, from: number, byteLength: number): Status {
    const queues = this.#queues;
    if (queues.invalidateCapture(queue)) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    let outcome: boolean | undefined;
    const work = (): boolean => {
      outcome = this.#memory.copy(to, from, byteLength);
      return true;
    };
    queues.enqueue(queue, work, 'copy');
    // If the context fails before, the copy never runs.
    queues.blockUntil(
      () => outcome !== undefined || queue.context.failure !== CUDA_SUCCESS,
      () => [queue],
    );
    return outcome ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  }

  /** Queues a copy. */
  async(queue: Stream, to: number, from: number, byteLength: number, isToHost = false): Status {
    const memory = this.#memory;
    const { device } = queue.context;
    const work = (): boolean => {
      if (
        (isToHost || memory.canStillWrite(to, byteLength, device)) &&
        memory.canStillRead(from, byteLength, device)
      )
        memory.copy(to, from, byteLength);
      else this.#queues.failContext(queue);
      return true;
    };
    this.#queues.enqueue(queue, work, 'copy');
    return CUDA_SUCCESS;
  }

  /** Sets `height` rows of `width` elements of `size` bytes each. */
  fillRows(
    address: number,
    pitch: number,
    value: number,
    size: number,
    [width, height]: readonly [number, number],
    stream: number,
  ): Status {
    const memory = this.#memory;
    const queue = this.#queues.get(stream);
    if (!queue) return CUDA_ERROR_INVALID_HANDLE;
    const { device } = queue.context;
    const row = width * size;
    if (row === 0 || height === 0) return CUDA_SUCCESS;
    const isAligned = address % size === 0 && (height === 1 || pitch % size === 0);
    if (!isAligned || (height > 1 && pitch < row)) return CUDA_ERROR_INVALID_VALUE;
    const byteLength = height === 1 ? row : pitch * (height - 1) + row;
    if (
      !memory.canWrite(address, byteLength, device) ||
      memory.isInaccessible(address, queue.context)
    )
      return CUDA_ERROR_INVALID_VALUE;
    const work = (): boolean => {
      if (memory.canStillWrite(address, byteLength, device))
        for (let y = 0; y < height; y += 1)
          fill(memory, address + y * pitch, encoded(value, size), row);
      else this.#queues.failContext(queue);
      return true;
    };
    this.#queues.enqueue(queue, work, 'fill');
    return CUDA_SUCCESS;
  }
}
