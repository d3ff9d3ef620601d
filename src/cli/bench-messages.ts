/** What the two processes of `cuffi bench` send each other, apart from what only one of them needs. */
import type { Channel } from '../ipc/channel/channel.ts';
import type { DeviceBuffer } from '../memory/buffer.ts';
import type { PinnedBuffer } from '../memory/pinned.ts';

/** What the child is sent besides buffers. It replies to each with a word, or null. */
export type Order<C = Channel> =
  | { readonly type: 'page-locked'; readonly pinned: PinnedBuffer }
  /** What is used with one size. */
  | {
      readonly type: 'open';
      readonly byteLength: number;
      readonly buffer: DeviceBuffer | undefined;
      readonly channel: C | undefined;
    }
  /** All bytes are in host memory of both processes. */
  | { readonly type: 'copied'; readonly isPinned: boolean }
  /** Asks which word the last message of the channel had. */
  | { readonly type: 'seen' }
  | { readonly type: 'close' };

/** The child's end of a pair of Unix sockets, and memory of both processes. */
export const SOCKET_FD = 3;
export const MEMORY_FD = 4;
