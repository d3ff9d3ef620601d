/** Processes by descriptor: unlike a pid, it never comes to mean another process. */

import { allocatePermanent, viewMemory, withAddress } from '../native.ts';
import { isMainThread } from '../thread.ts';
import type { Address } from '../types.ts';
import { closeFd, errno, libc, openPidfd, SystemError } from './libc.ts';
import { isProcessAlive, processStartTime, processStartTimeOrThrow } from './process.ts';
import { peerCredentials } from './socket.ts';

/**
 * A descriptor of the process at the other end of a socket, readable once that process has ended.
 * Undefined if it has ended already, or is outside of this pid namespace.
 *
 * @throws SystemError as {@link pidfdOf}
 */
export function peerPidfd(socket: number): number | undefined {
  const values = new Int32Array([-1, 4]);
  const status = withAddress(values, (address) =>
    libc.getsockopt(socket, SOL_SOCKET, SO_PEERPIDFD, address, address + 4),
  );
  if (status === 0) return values[0];
  const number = errno();
  // Kernels before 6.5 lack the option, and some lack it for certain sockets.
  if (number === ENOPROTOOPT || number === EINVAL || number === ENODATA)
    return pidfdOf(peerCredentials(socket).pid);
  if (number === ESRCH) return undefined;
  throw new SystemError('getsockopt', number);
}

/**
 * A descriptor of a process by its pid. Undefined if the process has ended.
 *
 * @throws SystemError if that cannot be determined: EMFILE, ENFILE, ENOMEM; ENOENT for a process that
 * /proc hides
 */
export function pidfdOf(pid: number): number | undefined {
  if (pid <= 0) return undefined;
  const started = processStartTimeOrThrow(pid);
  let pidfd: number;
  try {
    pidfd = openPidfd(pid);
  } catch (error) {
    if (error instanceof SystemError && error.code === 'ESRCH') return undefined;
    throw error;
  }
  let isSame = false;
  try {
    // The pid may have been reused in between.
    isSame = started !== undefined && processStartTimeOrThrow(pid) === started;
    if (isSame) return pidfd;
    if (started === undefined && !hasEnded(pidfd))
      throw new SystemError('open', ENOENT, `/proc/${pid}/stat`);
    return undefined;
  } finally {
    if (!isSame) closeFd(pidfd);
  }
}

interface CheckedProcess {
  readonly pid: number;
  readonly startTime: number;
  /** From the second check on. */
  pidfd?: number | undefined;
}

/** The process of the last check. */
let lastChecked: CheckedProcess = {
  pid: 0,
  startTime: 0,
};

/**
 * Like {@link isProcessAlive}, for repeated checks of the same process. Reading /proc for each
 * message would cost more than opening memory.
 */
export function isProcessAliveCached(pid: number, startTime: number): boolean {
  const isKnown = lastChecked.pid === pid && lastChecked.startTime === startTime;
  if (isKnown && lastChecked.pidfd !== undefined && !hasEnded(lastChecked.pidfd)) return true;
  const isAlive = isProcessAlive(pid, startTime);
  if (isKnown && isAlive) lastChecked.pidfd ??= openMatchingPidfd(pid, startTime);
  else {
    if (lastChecked.pidfd !== undefined) closeFd(lastChecked.pidfd);
    lastChecked = { pid, startTime };
  }
  return isAlive;
}

/** A descriptor of the process with that start time, if one can be opened. */
function openMatchingPidfd(pid: number, startTime: number): number | undefined {
  // Nobody would close it if a worker were terminated.
  if (!isMainThread()) return undefined;
  let pidfd: number | undefined;
  try {
    pidfd = pidfdOf(pid);
  } catch {
    return undefined;
  }
  if (pidfd === undefined || processStartTime(pid) === startTime) return pidfd;
  closeFd(pidfd);
  return undefined;
}

let pollfd: { readonly address: Address; readonly view: Int32Array } | undefined;

/** Whether the process of a descriptor has ended. Never blocks. */
function hasEnded(pidfd: number): boolean {
  if (!pollfd) {
    const address = allocatePermanent(8);
    pollfd = { address, view: new Int32Array(viewMemory(address, 8)) };
  }
  const { address, view } = pollfd;
  view[0] = pidfd;
  view[1] = POLLIN;
  return libc.poll(address, 1, 0) !== 0;
}

const POLLIN = 1;
const SOL_SOCKET = 1;
const SO_PEERPIDFD = 77;
const ENOENT = 2;
const ESRCH = 3;
const EINVAL = 22;
const ENODATA = 61;
const ENOPROTOOPT = 92;
