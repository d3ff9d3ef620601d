import type { PlaceOptions } from '../context.ts';
import type { PoolReuse } from './pool-driver.ts';

/** Options of {@link MemoryPool.create}. */
export interface PoolOptions extends PlaceOptions {
  /** How many bytes it takes from the device at most. Default: the driver's limit. */
  readonly maxSize?: number;
  /**
   * How many bytes the pool keeps, when nothing uses them, for later allocations; above, it gives
   * them back to the device as soon as a stream or the context is waited for. Default Infinity.
   */
  readonly releaseThreshold?: number;
  /**
   * Whether other processes can be given the pool, by file descriptor. Default false, as it costs
   * the driver time.
   */
  readonly shareable?: boolean;
  /** When freed memory is given out again. Default: whenever it can be. */
  readonly reuse?: Partial<PoolReuse>;
}

/** Options of {@link MemoryPool.close}. */
export interface PoolCloseOptions {
  /** Whether the pool's open buffers are closed first, newest first. Default false. */
  readonly buffers?: boolean;
}
