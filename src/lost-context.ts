/**
 * Which contexts are known to be lost. The user hears of a loss once, from the first error that says
 * so. What releases say of it afterwards is nothing new: thrown at the end of a `using` scope it would
 * hide that first error in a SuppressedError.
 */
import { CudaError } from './errors.ts';

/** Looks for contexts that are lost; whether it found one that was not known to be. */
type LossDetector = () => boolean;

let detectLoss: LossDetector = () => true;
/** Errors that are a user's first news of a loss, however often they are thrown on. */
const firstReports = new WeakSet<CudaError>();
/** How many releases are under way, each in the one before. */
let releaseDepth = 0;

/** Sets how to look for lost contexts: those are known above this file. */
export function setLossDetector(detector: LossDetector): void {
  detectLoss = detector;
}

/**
 * Takes note of an error that is made to be thrown. Those of a release are left to {@link shouldReport}, as
 * a release may catch what one of its steps throws.
 */
export function noteError(error: CudaError): void {
  if (releaseDepth === 0 && error.sticky) recordLoss(error);
}

/** Says that a release begins; {@link endRelease} must follow. */
export const beginRelease = (): void => {
  releaseDepth += 1;
};

export const endRelease = (): void => {
  releaseDepth -= 1;
};

/**
 * Whether what a release threw is to be said; then it counts as said.
 *
 * @param isContextLost whether what was released is of a context that is known to be lost: then nothing
 * that the driver says of it is news
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
