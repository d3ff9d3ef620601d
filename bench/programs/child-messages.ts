/** What the bench and the processes beside it say to each other besides buffers, and where. */
import type { DeviceBuffer } from 'cuffi';

/** The pair of Unix sockets, which node:net has at both ends. */
export const SOCKET_FD = 4;
/** The memory that a process of copies shares with the bench. */
export const SHARED_FD = 5;

/** What the receiver of hand-overs is told. When it is done, it answers nothing, or the echo. */
export type Order =
  /** Keeps a buffer open, so that its memory stays mapped. */
  | { readonly keep: DeviceBuffer }
  /** Closes what it keeps. */
  | { readonly drop: true }
  /** Whether it closes the pool of what it was handed as well. */
  | { readonly closePools: boolean }
  /** Sends a value back. */
  | { readonly echo: unknown }
  /** Compares the whole of what comes next. */
  | { readonly compareNext: true };

/** What the receiver of copies is told: the bytes are in the shared memory. */
export type Copied = {
  /** Whether it is to read them by a mapping that is page-locked. */
  readonly isPageLocked: boolean;
};
