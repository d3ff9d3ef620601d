/**
 * Whether work is being captured into a graph. Meanwhile nothing may be asked, waited for or given
 * back: the driver would end the capture, or the events behind such questions would become a part
 * of the graph. A capture begins and ends within one call, so that is all there is to know.
 */
import { CuffiError } from './errors.ts';

let isOpen = false;

export const isCapturing = (): boolean => isOpen;

/** Calls `work` as what is captured. */
export function whileCapturing<T>(work: () => T): T {
  isOpen = true;
  try {
    return work();
  } finally {
    isOpen = false;
  }
}

/** @throws CuffiError while work is being captured */
export function refuseInCapture(doing: string): void {
  if (isOpen)
    throw new CuffiError(
      `${doing} while a graph is captured: a capture only takes up what is queued in its stream. ` +
        'Do it before or after.',
    );
}
