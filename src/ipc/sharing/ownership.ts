import type { Context } from '../../context.ts';
import type { CudaEvent } from '../../event.ts';
import type { DeviceBuffer, OrderedRelease } from '../../memory/buffer.ts';
import type { MemoryPool } from '../../memory/pool.ts';
import type { Stream } from '../../stream.ts';

/** What another process lent for one object that is open here: it is told how that ends. */
export interface Loan {
  /**
   * The object was closed: only work that is queued already may use it, in `stream` alone where
   * the one who closed it named that.
   */
  closed(context: Context, stream: Stream | undefined): void;
  /** Nothing here reaches it for that object any more. */
  returned(): void;
}

/** The other end of the connection that a descriptor came over. */
export interface Sender {
  readonly loan: Loan | undefined;
  /** Whether it is a thread of this process. */
  readonly isOwnProcess: boolean;
  /** Whether this process has lent it an object, or all of a range with such access. */
  has(object: DeviceBuffer | CudaEvent | MemoryPool): boolean;
}

/** How memory of another process is closed: its lender is told, and the mapping given up. */
export function givingBack(
  context: Context,
  release: (returned?: () => void) => void,
  loan: Loan | undefined,
): OrderedRelease {
  let last: Stream | undefined;
  return {
    freeIn(stream) {
      context.activity.visitedBy(stream.context.activity);
      last = stream;
    },
    release() {
      try {
        loan?.closed(context, last);
      } finally {
        release(loan && (() => loan.returned()));
      }
    },
  };
}
