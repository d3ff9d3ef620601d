/** Where a memory manager is put, so that contexts know of it without knowing its room. */
import { selectionCount } from '../ffi/driver.ts';
import type { Context } from './context.ts';
import type { MemoryInfo } from './context-state.ts';
import { CuffiError } from './errors.ts';

/** What a context asks of the memory manager that serves it. */
export interface ContextMemory {
  /** False while the manager itself works: what it asks of its context, the driver answers. */
  readonly answers: boolean;
  getMemoryInfo(): MemoryInfo;
  deferCleanup(): Disposable;
  reset(): void;
}

/** Makes what serves a context. */
type Serve = (context: Context) => ContextMemory;

let chosen: { readonly selection: number; readonly serve: Serve } | undefined;
/** The driver selection in which the newest context was made. */
let lastMade = -1;

/**
 * Chooses who serves the memory of all contexts of the driver in use.
 *
 * @throws CuffiError once there is a context, whose memory came from elsewhere
 */
export function chooseContextMemory(serve: Serve): void {
  if (lastMade === selectionCount())
    throw new CuffiError(
      'a memory manager is set before the first context is made: at the beginning of the program, ' +
        'before it makes buffers, streams or events',
    );
  chosen = { selection: selectionCount(), serve };
}

/** What serves a new context; undefined where that is the driver. */
export function serveContext(context: Context): ContextMemory | undefined {
  lastMade = selectionCount();
  return chosen?.selection === lastMade ? chosen.serve(context) : undefined;
}
