import type { ReleaseLimits } from './release.ts';

/**
 * How many releases may wait for the GPU, and how much memory, before the queue is short of room:
 * `CUFFI_DEALLOCS_COUNT` (default 10) and `CUFFI_DEALLOCS_RATIO`, a part of the device's memory
 * (default 0.2), as numba's `NUMBA_CUDA_MAX_PENDING_DEALLOCS_COUNT` and `_RATIO`.
 *
 * @throws RangeError for what is no count or no ratio
 */
export function releaseLimits(totalMemory: () => number): ReleaseLimits {
  const count = fromEnvironment('CUFFI_DEALLOCS_COUNT', 10);
  const ratio = fromEnvironment('CUFFI_DEALLOCS_RATIO', 0.2);
  if (!Number.isInteger(count)) throw wrong('CUFFI_DEALLOCS_COUNT', 'an integer of at least 0');
  if (ratio > 1) throw wrong('CUFFI_DEALLOCS_RATIO', 'a number from 0 to 1');
  let byteLength: number | undefined;
  return {
    count,
    byteLength: () => {
      try {
        byteLength ??= ratio * totalMemory();
      } catch {
        // Asked by close() and between turns, which must not fail for it: it limits nothing now.
      }
      return byteLength ?? Number.POSITIVE_INFINITY;
    },
  };
}

/**
 * A number of the environment.
 *
 * @throws RangeError for what is not a number of at least 0
 */
export function fromEnvironment(name: string, fallback: number): number {
  const text = process.env[name];
  if (text === undefined || text === '') return fallback;
  const value = Number(text);
  if (!(value >= 0)) throw wrong(name, 'a number of at least 0');
  return value;
}

const wrong = (name: string, wanted: string): RangeError =>
  new RangeError(`${name} must be ${wanted}, not ${JSON.stringify(process.env[name])}`);
