/** What parent and child of a hand-over say to each other. */

export interface Request {
  readonly type: 'open';
  /** What `getIpcHandle` gave; `openIpcBuffer` checks it. */
  readonly descriptor: unknown;
}

export type Reply =
  /** Ready (then empty), or the first bytes of what was handed over. */
  | { readonly type: 'done'; readonly first: readonly number[] }
  | { readonly type: 'failed'; readonly message: string };
