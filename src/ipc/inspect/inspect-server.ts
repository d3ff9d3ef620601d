/**
 * The socket through which `cuffi ls` and `cuffi doctor --with` ask this process. It answers only
 * processes of the same user, a few at a time, each within a time limit.
 */
import { join } from 'node:path';
import { discardFds } from '../../../ffi/linux/close-fd.ts';
import { receiveMessage, sendMessage } from '../../../ffi/linux/message.ts';
import { type FdWatch, watchFd } from '../../../ffi/linux/poll.ts';
import { acceptSocket, closeSocket, peerCredentials } from '../../../ffi/linux/socket.ts';
import { localProcess } from '../identity.ts';
import { isTrusted, type PeerCredentials } from '../peer/credentials.ts';
import { Peer } from '../peer/peer.ts';
import { inspectionDirectory, listenAt, sweepDeadSockets } from '../peer/socket-file.ts';
import { decodeRequest, type InspectionRequest, type ListReply } from './inspect-messages.ts';
import { offerProbes } from './probes.ts';
import { ownFacts } from './process-facts.ts';
import { sharedObjects } from './shared-objects.ts';

/** The name of a process's socket: its pid alone is used again. */
export const socketNameOf = (pid: number, startTime: number): string => `${pid}-${startTime}`;

/** More clients than people run at a time are refused. */
const MAX_CLIENTS = 8;
/** Each opens a connection and allocates memory. */
const MAX_PROBES = 1;
/** How many connections are accepted in one turn of the event loop. */
const MAX_ACCEPTED_PER_TURN = 16;
/** A client that has not sent its request by then is disconnected. */
const REQUEST_TIMEOUT_MS = 2000;
/** All probes of a client end by then. */
const PROBES_TIMEOUT_MS = 20_000;
/** When accepting has failed, e.g. for lack of descriptors, it pauses. */
const PAUSE_MS = 1000;
/** A reply is one message of at most 64 KiB. */
const MAX_REPLY_BYTE_LENGTH = 60_000;

/**
 * Opens the socket of this process. A process that cannot have one works without: nothing is
 * reported.
 */
export function openInspection(): void {
  try {
    const directory = inspectionDirectory();
    sweepDeadSockets(directory);
    const { pid, startTime } = localProcess();
    const { fd, unlink } = listenAt(join(directory, socketNameOf(pid, startTime)), 0o600);
    try {
      new InspectionServer(fd);
    } catch (error) {
      // A client would wait for an answer.
      unlink();
      closeSocket(fd);
      throw error;
    }
  } catch {
    // No directory, no descriptor, or another user's file: the program does not depend on it.
  }
}

class InspectionServer {
  readonly #fd: number;
  readonly #watch: FdWatch;
  #clients = 0;
  #probes = 0;

  constructor(fd: number) {
    this.#fd = fd;
    this.#watch = watchFd(fd, { readable: true }, () => this.#accept());
    this.#watch.unref();
  }

  #accept(): void {
    try {
      for (let count = 0; count < MAX_ACCEPTED_PER_TURN; count += 1) {
        const socket = acceptSocket(this.#fd);
        if (socket === undefined) return;
        this.#admit(socket);
      }
    } catch {
      // The socket stays readable, so the loop would spin.
      this.#watch.change({});
      setTimeout(() => this.#watch.change({ readable: true }), PAUSE_MS).unref();
    }
  }

  /** Owns the socket. @throws SystemError if it cannot be watched */
  #admit(socket: number): void {
    try {
      const credentials = peerCredentials(socket);
      if (this.#clients < MAX_CLIENTS && isTrusted(credentials, {})) {
        this.#serve(socket, credentials);
        return;
      }
    } catch (error) {
      closeSocket(socket);
      throw error;
    }
    closeSocket(socket);
  }

  #serve(socket: number, credentials: PeerCredentials): void {
    const watch = watchFd(socket, { readable: true }, () => {
      const request = takeRequest(socket);
      if (request === undefined) return;
      stop();
      if (request === 'probes' && this.#probes < MAX_PROBES) this.#probe(socket, credentials);
      else {
        if (request === 'list' || request === 'facts') reply(socket, request);
        closeSocket(socket);
      }
    });
    watch.unref();
    const timer = setTimeout(() => {
      stop();
      closeSocket(socket);
    }, REQUEST_TIMEOUT_MS).unref();
    const stop = (): void => {
      clearTimeout(timer);
      watch.close();
      this.#clients -= 1;
    };
    this.#clients += 1;
  }

  #probe(socket: number, credentials: PeerCredentials): void {
    if (!sendReply(socket, { ok: true })) {
      closeSocket(socket);
      return;
    }
    let peer: Peer;
    try {
      peer = new Peer(socket, credentials);
    } catch {
      // The socket is closed then.
      return;
    }
    peer.unref();
    this.#probes += 1;
    const timer = setTimeout(() => peer.close(), PROBES_TIMEOUT_MS).unref();
    // The client's values are never received: its end of the connection only opens what it gets.
    void offerProbes(peer).finally(() => {
      clearTimeout(timer);
      peer.close();
      this.#probes -= 1;
    });
  }
}

/** Returns the request of a client; undefined if none has come yet, 'none' for anything else. */
function takeRequest(socket: number): InspectionRequest | 'none' | undefined {
  try {
    const message = receiveMessage(socket);
    if (message === undefined) return undefined;
    if (message === 'end') return 'none';
    discardFds(message.fds);
    return decodeRequest(message.data) ?? 'none';
  } catch {
    return 'none';
  }
}

function reply(socket: number, request: 'list' | 'facts'): void {
  try {
    sendReply(socket, request === 'facts' ? ownFacts() : listReply(ownFacts(), sharedObjects()));
  } catch {
    // The client has gone.
  }
}

/** Whether the kernel took the message. */
function sendReply(socket: number, value: object): boolean {
  try {
    return sendMessage(socket, Buffer.from(JSON.stringify(value)));
  } catch {
    return false;
  }
}

/** Leaves out the smallest objects if there are more than fit in a message. */
export function listReply(
  { pid, program, user, driver }: ReturnType<typeof ownFacts>,
  objects: ReturnType<typeof sharedObjects>,
): ListReply {
  const process = { pid, program, user, driver };
  let kept = objects;
  const make = (): ListReply => ({
    process,
    objects: kept,
    omitted: objects.length - kept.length,
  });
  while (kept.length > 0 && JSON.stringify(make()).length > MAX_REPLY_BYTE_LENGTH)
    kept = kept.slice(0, kept.length >> 1);
  return make();
}
