/** Copies and fills. */
import type { Driver } from '../functions.ts';
import { withAddress } from '../native.ts';
import { CUresult, type CUresult as Status } from '../results.ts';
import type { HostMemory } from './host.ts';
import type { Memory } from './memory.ts';
import type { Queues } from './queues.ts';

const { CUDA_SUCCESS, CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_INVALID_HANDLE } = CUresult;

const LARGEST_PATTERN = 2 ** 20;

/** Fills `byteLength` bytes with a repeated element, a piece at a time. */
function fill(memory: Memory, address: number, element: Uint8Array, byteLength: number): void {
  const pattern = Buffer.allocUnsafeSlow(Math.min(byteLength, LARGEST_PATTERN)).fill(element);
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
  | 'cuMemsetD8Async'
  | 'cuMemsetD16Async'
  | 'cuMemsetD32Async'
>;

export function copyFunctions(memory: Memory, queues: Queues, host: HostMemory): CopyFunctions {
  /** Copies in the order of a stream, and waits for it. */
  const copyNow = (stream: number, to: number, from: number, byteLength: number): Status => {
    const queue = queues.get(stream);
    if (!queue) return CUDA_ERROR_INVALID_HANDLE;
    let outcome: boolean | undefined;
    queues.enqueue(queue, () => {
      outcome = memory.copy(to, from, byteLength);
      return true;
    });
    queues.waitUntil(() => outcome !== undefined);
    return outcome ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  };

  const copyLater = (stream: number, to: number, from: number, byteLength: number): Status => {
    const queue = queues.get(stream);
    if (!queue) return CUDA_ERROR_INVALID_HANDLE;
    queues.enqueue(queue, () => {
      // Unmapped in the meantime by whoever owned it: nobody is left to be told.
      if (memory.isReachable(to, byteLength) && memory.isReachable(from, byteLength))
        memory.copy(to, from, byteLength);
      return true;
    });
    return CUDA_SUCCESS;
  };

  const set = (
    address: number,
    value: number,
    count: number,
    width: number,
    stream: number,
  ): Status => {
    const queue = queues.get(stream);
    if (!queue) return CUDA_ERROR_INVALID_HANDLE;
    const byteLength = count * width;
    if (byteLength === 0) return CUDA_SUCCESS;
    if (address % width !== 0 || !memory.isReachable(address, byteLength))
      return CUDA_ERROR_INVALID_VALUE;
    queues.enqueue(queue, () => {
      if (memory.isReachable(address, byteLength))
        fill(memory, address, encoded(value, width), byteLength);
      return true;
    });
    return CUDA_SUCCESS;
  };

  return {
    cuMemcpyHtoD_v2(to, from, byteLength) {
      if (byteLength === 0) return CUDA_SUCCESS;
      if (!memory.isReachable(to, byteLength)) return CUDA_ERROR_INVALID_VALUE;
      return copyNow(0, to, from, byteLength);
    },
    cuMemcpyDtoH_v2(to, from, byteLength) {
      if (byteLength === 0) return CUDA_SUCCESS;
      if (!memory.isReachable(from, byteLength)) return CUDA_ERROR_INVALID_VALUE;
      return copyNow(0, to, from, byteLength);
    },
    // Ordinary host memory is read now, because its owner may change it as soon as this returns.
    cuMemcpyHtoDAsync_v2(to, from, byteLength, stream) {
      const queue = queues.get(stream);
      if (!queue) return CUDA_ERROR_INVALID_HANDLE;
      if (byteLength === 0) return CUDA_SUCCESS;
      if (!memory.isReachable(to, byteLength)) return CUDA_ERROR_INVALID_VALUE;
      if (memory.isReachable(from, byteLength)) return copyLater(stream, to, from, byteLength);
      const bytes = host.read(from, byteLength);
      if (!bytes) return CUDA_ERROR_INVALID_VALUE;
      queues.enqueue(queue, () => {
        if (memory.isReachable(to, byteLength))
          withAddress(bytes, (address) => memory.copy(to, address, byteLength));
        return true;
      });
      return CUDA_SUCCESS;
    },
    // Into ordinary host memory: done before this returns, as the driver's staged copies are.
    cuMemcpyDtoHAsync_v2(to, from, byteLength, stream) {
      if (!queues.get(stream)) return CUDA_ERROR_INVALID_HANDLE;
      if (byteLength === 0) return CUDA_SUCCESS;
      if (!memory.isReachable(from, byteLength)) return CUDA_ERROR_INVALID_VALUE;
      const isLater = memory.isReachable(to, byteLength);
      return (isLater ? copyLater : copyNow)(stream, to, from, byteLength);
    },
    cuMemcpyDtoDAsync_v2(to, from, byteLength, stream) {
      if (!queues.get(stream)) return CUDA_ERROR_INVALID_HANDLE;
      if (byteLength === 0) return CUDA_SUCCESS;
      if (!memory.isReachable(to, byteLength) || !memory.isReachable(from, byteLength))
        return CUDA_ERROR_INVALID_VALUE;
      return copyLater(stream, to, from, byteLength);
    },
    cuMemsetD8Async: (address, value, count, stream) => set(address, value, count, 1, stream),
    cuMemsetD16Async: (address, value, count, stream) => set(address, value, count, 2, stream),
    cuMemsetD32Async: (address, value, count, stream) => set(address, value, count, 4, stream),
  };
}
