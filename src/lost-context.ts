/**
 * Reports the loss of a context once: with the first error that says so. Errors of later releases only
 * repeat it, and are dropped: thrown at the end of a `using` scope, they would hide the first error in a
 * SuppressedError.
 */
import { CudaError } from './errors.ts';

/** Looks for lost contexts; returns whether it found one that was not known to be lost. */
type LossDetector = () => boolean;

let detectLoss: LossDetector = () => true;
/** Errors that reported a loss first, however often they are rethrown. */
const firstReports = new WeakSet<CudaError>();
/** How deeply releases are nested. */
let releaseDepth = 0;

/** Sets the detector: the contexts are known above this file. */
export function setLossDetector(detector: LossDetector): void {
  detectLoss = detector;
}

/**
 * Records an error that is about to be thrown. In a release, {@link shouldReport} does so instead: a release
 * may catch the errors of its steps.
 */
export function noteError(error: CudaError): void {
  if (releaseDepth === 0 && error.sticky) recordLoss(error);
}

/** Marks the beginning of a release; {@link endRelease} must follow. */
export const beginRelease = (): void => {
  releaseDepth += 1;
};

export const endRelease = (): void => {
  releaseDepth -= 1;
};

/**
 * Whether the error of a release must be reported; if so, it counts as reported.
 *
 * @param isContextLost whether the context is known to be lost: then no error of the driver is news
 */
export function shouldReport(error: unknown, isContextLost: boolean): boolean {
  if (!(error instanceof CudaError) || firstReports.has(error)) return true;
  return error.sticky ? recordLoss(error) : !isContextLost;
}

function recordLoss(error: CudaError): boolean {
  const isNew = detectLoss();
  if (isNew) firstReports.add(error);
  return isNew;
}
