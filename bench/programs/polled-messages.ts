/** What the two processes of a polled hand-over say to each other, and where they meet. */

/** The page of counters, as a descriptor. */
export const PAGE_FD = 4;
/** Its words: how far the producer's stream is, and how far the consumer's. */
export const READY = 0;
export const DONE = 1;

/** Rounds that the producer is to time, after as many others. */
export interface Batch {
  readonly calls: number;
  readonly untimed: number;
}

/** Rounds that the consumer is to queue, from the first that it has not queued yet. */
export interface Rounds {
  readonly first: number;
  readonly count: number;
}
