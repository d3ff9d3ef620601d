/**
 * Whether work is being captured into a graph. Meanwhile nothing may be asked, waited for or given
 * back: the driver would end the capture, or the events behind such questions would become a part
 * of the graph. A capture begins and ends within one call, so that is all there is to know.
 */
import type { Context } from './context.ts';
import { CuffiError } from './errors.ts';

let isOpen = false;
/** Where the memory is that the captured work uses, as far as it is not of the stream's context. */
let used = new Set<Context>();

export const isCapturing = (): boolean => isOpen;

/** Calls `work` as what is captured; answers what it returned, and whose memory it uses. */
export function whileCapturing<T>(work: () => T): {
  readonly result: T;
  readonly contexts: ReadonlySet<Context>;
} {
  isOpen = true;
  used = new Set();
  try {
    return { result: work(), contexts: used };
  } finally {
    isOpen = false;
  }
}

/** Remembers whose memory the captured work uses, where there is any. */
export function noteCaptured(contexts: readonly Context[]): void {
  if (isOpen) for (const context of contexts) used.add(context);
}

/** @throws CuffiError while work is being captured */
export function refuseInCapture(doing: string): void {
  if (isOpen)
    throw new CuffiError(
      `${doing} while a graph is captured: a capture only takes up what is queued in its stream. ` +
        'Do it before or after.',
    );
}
