import type { Context } from '../../context.ts';
import type { CudaEvent } from '../../event.ts';
import type { DeviceBuffer, StreamOrderedRelease } from '../../memory/buffer.ts';
import type { MemoryPool } from '../../memory/pool.ts';
import type { Stream } from '../../stream.ts';

/** What another process lent for one object that is open here: it is told how that ends. */
export interface ImportLease {
  /**
   * The object was closed: only work that is queued already may use it, in `stream` alone where
   * the one who closed it named that.
   */
  closed(context: Context, stream: Stream | undefined): void;
  /** Nothing here reaches it for that object any more. */
  released(): void;
}

/** The other end of the connection that a descriptor came over. */
export interface Sender {
  readonly lease: ImportLease | undefined;
  /** Whether it is a thread of this process. */
  readonly isOwnProcess: boolean;
  /** Whether this process has lent it an object, or all of a range with such access. */
  hasLeaseOn(object: DeviceBuffer | CudaEvent | MemoryPool): boolean;
}

/** How memory of another process is closed: its lender is told, and the mapping given up. */
export function releaseWithLease(
  context: Context,
  release: (onReleased?: () => void) => void,
  lease: ImportLease | undefined,
): StreamOrderedRelease {
  let lastStream: Stream | undefined;
  return {
    setStream(stream) {
      context.workTracker.addOtherContext(stream.context.workTracker);
      lastStream = stream;
    },
    release() {
      try {
        lease?.closed(context, lastStream);
      } finally {
        release(lease && (() => lease.released()));
      }
    },
  };
}
