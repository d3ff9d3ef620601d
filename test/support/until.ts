const DEADLINE_MS = 60_000;

/** Resolves when `condition` holds; the event loop turns meanwhile. Fails when that takes for ever. */
export async function until(condition: () => boolean): Promise<void> {
  const end = performance.now() + DEADLINE_MS;
  while (!condition()) {
    if (performance.now() > end) throw new Error(`after ${DEADLINE_MS} ms still not: ${condition}`);
    await new Promise((resolve) => setTimeout(resolve, 1));
  }
}
