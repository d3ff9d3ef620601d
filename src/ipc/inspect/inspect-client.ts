/** Asks the sockets for inspection of other processes: see inspect-server.ts. */
import { readdirSync } from 'node:fs';
import { join } from 'node:path';
import { discardFds } from '../../../ffi/linux/close-fd.ts';
import { SystemError } from '../../../ffi/linux/libc.ts';
import { isGone, receiveMessage, sendMessage } from '../../../ffi/linux/message.ts';
import { readable } from '../../../ffi/linux/poll.ts';
import { closeSocket, connectSocket, type PeerCredentials } from '../../../ffi/linux/socket.ts';
import { CuffiError } from '../../errors.ts';
import { trustedCredentials } from '../peer/credentials.ts';
import { Peer } from '../peer/peer.ts';
import { addressOfSocket, inspectionDirectory, sweepDeadSockets } from '../peer/socket-file.ts';
import {
  decodeReply,
  encodeRequest,
  type InspectionRequest,
  type Reply,
} from './inspect-messages.ts';
import { type ProbeReport, takeProbes } from './probes.ts';

/** A process that can be asked. */
export interface InspectedProcess {
  readonly path: string;
  /** As in this process's pid namespace; 0 if that does not show it. */
  readonly pid: number;
}

const DEFAULT_TIMEOUT_MS = 2000;

/**
 * The processes of this user that have a socket. Removes the sockets of killed processes.
 *
 * @throws IpcError if the directory cannot be trusted
 */
export function inspectableProcesses(): InspectedProcess[] {
  const directory = inspectionDirectory();
  sweepDeadSockets(directory);
  return readdirSync(directory)
    .filter((name) => /^\d+-\d+$/.test(name))
    .flatMap((name) => {
      const path = join(directory, name);
      try {
        const { socket, credentials } = open(path);
        closeSocket(socket);
        return { path, pid: credentials.pid };
      } catch {
        // It has ended meanwhile, or is not this user's.
        return [];
      }
    });
}

/**
 * Asks a process.
 *
 * @throws CuffiError if it does not answer in time, or its answer is invalid
 * @throws SystemError if it has ended
 */
export async function inspect<R extends InspectionRequest>(
  path: string,
  request: R,
  timeoutMs: number = DEFAULT_TIMEOUT_MS,
): Promise<Reply<R>> {
  const { socket } = open(path);
  try {
    return await ask(socket, path, request, timeoutMs);
  } finally {
    closeSocket(socket);
  }
}

/**
 * Tries each kind of sharing with a process: it offers, this process opens.
 *
 * @throws as {@link inspect}
 */
export async function probe(path: string): Promise<ProbeReport> {
  const { socket, credentials } = open(path);
  try {
    await ask(socket, path, 'probes', DEFAULT_TIMEOUT_MS);
  } catch (error) {
    closeSocket(socket);
    throw error;
  }
  using peer = new Peer(socket, credentials);
  return await takeProbes(peer);
}

function open(path: string): { readonly socket: number; readonly credentials: PeerCredentials } {
  const socket = connectSocket(addressOfSocket(path));
  try {
    return { socket, credentials: trustedCredentials(socket, {}) };
  } catch (error) {
    closeSocket(socket);
    throw error;
  }
}

async function ask<R extends InspectionRequest>(
  socket: number,
  path: string,
  request: R,
  timeoutMs: number,
): Promise<Reply<R>> {
  if (!trySend(socket, request)) throw refused(path);
  try {
    await readable(socket, { signal: AbortSignal.timeout(timeoutMs) });
  } catch (error) {
    if (!(error instanceof DOMException)) throw error;
    throw new CuffiError(
      `${path} did not answer within ${timeoutMs / 1000} s: its process is busy`,
    );
  }
  const message = receiveMessage(socket);
  if (typeof message !== 'object') throw refused(path);
  discardFds(message.fds);
  const reply = decodeReply(request, message.data);
  if (reply === undefined)
    throw new CuffiError(`${path} gave an invalid answer: its process may have another cuffi`);
  return reply;
}

/** Whether the request was sent: a process that refuses it may have closed the socket before. */
function trySend(socket: number, request: InspectionRequest): boolean {
  try {
    return sendMessage(socket, encodeRequest(request));
  } catch (error) {
    if (error instanceof SystemError && isGone(error)) return false;
    throw error;
  }
}

const refused = (path: string): CuffiError =>
  new CuffiError(`${path} refused to answer: other clients ask it already`);
