/** Memory of a graph: each launch allocates it where that was captured, and frees it again. */
import { OUT0, readHandle } from '../../ffi/arena.ts';
import { CU_STREAM_PER_THREAD } from '../../ffi/constants.ts';
import { cu } from '../../ffi/driver.ts';
import type { CUdeviceptr, CUmemoryPool, CUstream } from '../../ffi/types.ts';
import { isInCapture, noteGraphMemory } from '../capture.ts';
import { check } from '../check.ts';
import { CuffiError, NotSupportedError } from '../errors.ts';
import type { Stream } from '../stream.ts';
import { DeviceBuffer } from './buffer.ts';
import type { OrderedRelease } from './buffer-options.ts';
import type { MemoryPool } from './pool.ts';

/**
 * Allocates memory of the graph that is captured. It is free from where the buffer is closed, at the
 * latest from the end of the capture: nothing of it outlives a launch.
 *
 * @throws CuffiError for a stream that is not captured; NotSupportedError, CudaError
 */
export function allocateInCapture(
  pool: MemoryPool,
  handle: CUmemoryPool,
  byteLength: number,
  stream: Stream | undefined,
): DeviceBuffer {
  if (pool.shareable)
    throw new NotSupportedError(
      'memory of a graph is of this process alone: allocate it from a pool that is not shareable',
    );
  const queue = captured(stream, 'allocating memory');
  check(
    cu.cuMemAllocFromPoolAsync(OUT0, byteLength, handle, queue),
    'cuMemAllocFromPoolAsync',
    () => `allocating ${byteLength} bytes of a graph`,
  );
  const address = readHandle<CUdeviceptr>(OUT0, (exact) => cu.cuMemFreeAsync(exact, queue));
  const memory = new GraphMemory(address, queue);
  const buffer = new DeviceBuffer({
    context: pool.context,
    address,
    byteLength,
    origin: 'allocated',
    resource: pool,
    release: memory,
  });
  noteGraphMemory((origin) => {
    memory.end(origin);
    buffer.closeBecause('it was memory of a graph, whose capture has ended');
  });
  return buffer;
}

/** One allocation of a graph, until it is freed in the same capture. */
class GraphMemory implements OrderedRelease {
  readonly #address: CUdeviceptr;
  #stream: CUstream;
  #isFreed = false;

  constructor(address: CUdeviceptr, stream: CUstream) {
    this.#address = address;
    this.#stream = stream;
  }

  /** Frees in another stream than that of the allocation. */
  freeIn(stream: Stream): void {
    this.#stream = captured(stream, 'freeing memory of a graph');
  }

  /** Captures the free; the second time does nothing. */
  release(): void {
    if (this.#isFreed) return;
    check(cu.cuMemFreeAsync(this.#address, this.#stream), 'cuMemFreeAsync');
    this.#isFreed = true;
  }

  /** Frees behind all that was captured; where that failed the memory is gone with it. */
  end(origin: CUstream | undefined): void {
    if (origin === undefined) {
      this.#isFreed = true;
      return;
    }
    this.#stream = origin;
    this.release();
  }
}

/** The handle of a stream that is captured. @throws CuffiError for another */
function captured(stream: Stream | undefined, doing: string): CUstream {
  // A default stream never is, and asking for it wants a context.
  const handle = stream?.handle ?? CU_STREAM_PER_THREAD;
  if (handle > CU_STREAM_PER_THREAD && isInCapture(handle as CUstream)) return handle as CUstream;
  throw new CuffiError(
    `${doing} while a graph is captured, in a stream that is not: name one that is, or do it before ` +
      'or after.',
  );
}
