/** The ways that `cuffi bench` compares, and the figures of each. */

/** The ways of a hand-over, in the order of the table. */
export const ways = {
  /** The buffer, which the receiver has mapped, over a connection. */
  connection: { isCopy: false },
  /** A slot of a channel. */
  channel: { isCopy: false },
  /** The same two, to a process in Python. */
  'connection, Python': { isCopy: false },
  'channel, Python': { isCopy: false },
  /** All bytes through a Unix socket. */
  'copying, socket': { isCopy: true },
  /** All bytes through ordinary memory that both processes map. */
  'copying, shared memory': { isCopy: true },
  /** All bytes through page-locked memory of both processes. */
  'copying, page-locked': { isCopy: true },
} as const satisfies Readonly<Record<string, { readonly isCopy: boolean }>>;
export type WayName = keyof typeof ways;
export const wayNames = Object.keys(ways) as WayName[];

/**
 * The figures of one way with one size. A hand-over lasts from when the data is ready in this process
 * until the other one has read a word of it on the device and this one knows that: there and back.
 */
export interface Figures {
  readonly way: WayName;
  readonly byteLength: number;
  readonly rounds: number;
  readonly medianMs: number;
  readonly p95Ms: number;
  /** Of a copy: its bytes by its median. */
  readonly bytesPerSecond: number | null;
}

/** The figures of samples, by the nearest rank. */
export function figuresOf(way: WayName, byteLength: number, samples: readonly number[]): Figures {
  const sorted = [...samples].sort((a, b) => a - b);
  // Rounded to nanoseconds, the resolution of `performance.now()`.
  const quantile = (part: number): number =>
    Number((sorted[Math.ceil(part * sorted.length) - 1] as number).toFixed(6));
  const medianMs = quantile(0.5);
  return {
    way,
    byteLength,
    rounds: sorted.length,
    medianMs,
    p95Ms: quantile(0.95),
    bytesPerSecond: ways[way].isCopy ? Math.round(byteLength / (medianMs / 1000)) : null,
  };
}
