/** What parent and child of a hand-over say to each other besides the buffers, and where. */

/** The pair of Unix sockets, which node:net has at both ends. */
export const SOCKET_FD = 4;
/** The shared memory. */
export const SHARED_FD = 5;

/** What the child closes of what it is handed; the first stays open so that the memory stays mapped. */
export type GivesUp = 'buffers' | 'all but the first' | 'pools too';

/** The bytes are in the shared memory. */
export interface Copy {
  readonly type: 'copy';
  /** Whether it is copied from a mapping that is page-locked. */
  readonly pinned: boolean;
}

export const isCopy = (value: unknown): value is Copy =>
  (value as Partial<Copy> | null)?.type === 'copy';
