import { fstatSync } from 'node:fs';
import { isMainThread } from 'node:worker_threads';
import { setCloseOnExec } from '../../../ffi/libc.ts';
import { peerCredentials } from '../../../ffi/socket.ts';
import { checkOptions } from '../../arguments.ts';
import { IpcError } from '../../errors.ts';
import { Peer } from './peer.ts';
import { type BusyPollOptions, checkPeerOptions } from './peer-options.ts';

/** Tells a child its end of the connection: the descriptor and the socket's inode. */
export const PARENT_VARIABLE = 'CUFFI_PARENT';

let parent: Peer | undefined;

/**
 * The process that started this one with `spawnPeer`: always the same object, for which the options
 * hold that were given last. It ends when the parent closes it or has ended.
 *
 * @throws IpcError in a process that has no such parent, and in a worker thread
 * @example
 * for await (const task of parentPeer()) await parentPeer().send(work(task));
 */
export function parentPeer(options?: BusyPollOptions): Peer {
  const { busyPollUs } = checkPeerOptions(checkOptions(options, ['busyPollUs'], 'parentPeer'));
  parent ??= openParent();
  if (busyPollUs !== undefined) parent.connection.polling.forUs = busyPollUs;
  return parent;
}

function openParent(): Peer {
  if (!isMainThread)
    throw new IpcError("parentPeer() is the main thread's: a worker thread has no connection");
  const { [PARENT_VARIABLE]: told } = process.env;
  // Not for this process's own children, which inherit the variable but not the descriptor.
  delete process.env[PARENT_VARIABLE];
  const [, fd, inode] = /^(\d{1,9}):(\d+)$/.exec(told ?? '') ?? [];
  if (fd === undefined || !isSocket(Number(fd), Number(inode)))
    throw new IpcError('this process was not started by spawnPeer(): it has no parentPeer()');
  setCloseOnExec(Number(fd));
  return new Peer(Number(fd), peerCredentials(Number(fd)));
}

function isSocket(fd: number, inode: number): boolean {
  try {
    const found = fstatSync(fd);
    return found.isSocket() && found.ino === inode;
  } catch {
    return false;
  }
}
