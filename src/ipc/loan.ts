import type { Context } from '../context.ts';
import type { OrderedRelease } from '../memory/buffer-options.ts';
import type { Stream } from '../stream.ts';

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
