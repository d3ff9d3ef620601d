/** How much of a thing a test does: little in `npm test`, all of it in `npm run test:soak`. */
import { randomInt } from 'node:crypto';
import { basename } from 'node:path';

export const isSoak = process.env['CUFFI_DOSE'] === 'soak';

export const iterations = (small: number, full: number): number => (isSoak ? full : small);

/**
 * Where the numbers of a test begin that are there by chance: in `npm test` always the same place; in
 * the soak a new one at each call, which is printed. `CUFFI_SEED` makes a run of the soak again.
 */
export function seed(): number {
  const given = process.env['CUFFI_SEED'];
  if (given !== undefined) return Number(given);
  if (!isSoak) return 20_250_101;
  const made = randomInt(2 ** 31);
  console.log(`${basename(process.argv[1] ?? '')}: CUFFI_SEED=${made}`);
  return made;
}

/** How often a property is tried, and from which seed. */
export const trials = (
  small: number,
  full: number,
): { readonly numRuns: number; readonly seed: number } => ({
  numRuns: iterations(small, full),
  seed: seed(),
});

const DEADLINE_MS = 60_000;

/** Resolves when `condition` holds; the event loop turns meanwhile. Fails when that takes for ever. */
export async function until(condition: () => boolean): Promise<void> {
  const end = performance.now() + DEADLINE_MS;
  while (!condition()) {
    if (performance.now() > end) throw new Error(`after ${DEADLINE_MS} ms still not: ${condition}`);
    await new Promise((resolve) => setTimeout(resolve, 1));
  }
}

/**
 * Lets the event loop turn: what has not happened by then does not. Each turn waits for a timer, as cuffi's
 * poller does, so that a slow machine gives both as many.
 */
export async function turns(count = 10): Promise<void> {
  for (let turn = 0; turn < count; turn += 1)
    await new Promise((resolve) => setTimeout(resolve, 1));
}

/**
 * Waits until `condition` holds, for ten seconds at most, without a turn of the event loop: as a call of
 * the driver that blocks.
 */
export function spinUntil(condition: () => boolean): void {
  const end = performance.now() + 10_000;
  while (!condition() && performance.now() < end);
}
