/** Two ends of one connection in this process, and the other end as a bare socket. */
import { closeFd, isOpenFd } from '../../../../../ffi/linux/libc.ts';
import { receiveMessage, sendMessage } from '../../../../../ffi/linux/message.ts';
import { socketPair } from '../../../../../ffi/linux/socket.ts';
import { Peer } from '../../../../../src/ipc/peer/peer.ts';
import type { PeerOptions } from '../../../../../src/ipc/peer/peer-options.ts';
import { withExportsTable } from '../../../../../src/ipc/sharing/worker-counts.ts';
import { type FrameHeader, writeHeader } from '../../../../../src/ipc/wire/frames.ts';
import { HEADER_BYTE_LENGTH } from '../../../../../src/ipc/wire/limits.ts';

// What the first object that goes to a thread of this process leaves for all later ones.
withExportsTable(() => {});

const own = { pid: process.pid, uid: process.geteuid?.() ?? 0 };

/** Two peers that talk with each other; dispose closes both. */
export function peerPair(
  options?: PeerOptions,
  otherOptions = options,
): Disposable & { readonly a: Peer; readonly b: Peer } {
  const [first, second] = socketPair();
  const a = new Peer(first, own, options);
  const b = new Peer(second, own, otherOptions);
  return {
    a,
    b,
    [Symbol.dispose]() {
      a.close();
      b.close();
    },
  };
}

/** A peer whose other end does as it likes. */
export class Stranger implements Disposable {
  readonly peer: Peer;
  readonly socket: number;

  constructor(options?: PeerOptions) {
    const [first, second] = socketPair();
    this.peer = new Peer(first, own, options);
    this.socket = second;
  }

  /** Sends a packet of the first value, but for what is said; answers whether there was room. */
  send(body: Uint8Array, header: Partial<FrameHeader> = {}, fds: readonly number[] = []): boolean {
    const packet = Buffer.alloc(HEADER_BYTE_LENGTH + body.byteLength);
    packet.set(body, HEADER_BYTE_LENGTH);
    const { byteLength } = body;
    writeHeader(packet, 0, { kind: 1, sequence: 0, offset: 0, byteLength, ...header });
    return sendMessage(this.socket, packet, fds);
  }

  receive(): ReturnType<typeof receiveMessage> {
    return receiveMessage(this.socket);
  }

  [Symbol.dispose](): void {
    this.peer.close();
    if (isOpenFd(this.socket)) closeFd(this.socket);
  }
}

/** What a value with so many GPU objects has behind it: their leases, from the first number on. */
export const leasesFrom = (first: number, count: number): number[] => [
  9,
  ...Buffer.from(new Float64Array([first]).buffer),
  ...(count < 128 ? [count] : [(count & 127) | 128, count >> 7]),
];
