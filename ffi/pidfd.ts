/** Processes by descriptor: one that stays the process's own when its pid is given to another. */
import { closeFd, errno, libc, openPidfd, SystemError } from './libc.ts';
import { withAddress } from './native.ts';
import { processStartTime } from './process.ts';
import { peerCredentials } from './socket.ts';

/**
 * A descriptor of the process at the other end of a socket, readable when that has ended;
 * undefined where it has, or cannot be seen from here.
 *
 * @throws SystemError
 */
export function peerPidfd(socket: number): number | undefined {
  const values = new Int32Array([-1, 4]);
  const status = withAddress(values, (address) =>
    libc.getsockopt(socket, SOL_SOCKET, SO_PEERPIDFD, address, address + 4),
  );
  if (status === 0) return values[0];
  const number = errno();
  // Kernels before 6.5 do not know the option, and some not for every socket.
  if (number === ENOPROTOOPT || number === EINVAL || number === ENODATA)
    return pidfdOf(peerCredentials(socket).pid);
  if (number === ESRCH) return undefined;
  throw new SystemError('getsockopt', number);
}

/** A descriptor of a process by its pid; undefined where it has ended, or cannot be seen. */
export function pidfdOf(pid: number): number | undefined {
  if (pid <= 0) return undefined;
  const started = processStartTime(pid);
  let pidfd: number;
  try {
    pidfd = openPidfd(pid);
  } catch (error) {
    if (error instanceof SystemError && error.code === 'ESRCH') return undefined;
    throw error;
  }
  // Another process may have got the number in between.
  if (started !== undefined && processStartTime(pid) === started) return pidfd;
  closeFd(pidfd);
  return undefined;
}

const SOL_SOCKET = 1;
const SO_PEERPIDFD = 77;
const ESRCH = 3;
const EINVAL = 22;
const ENODATA = 61;
const ENOPROTOOPT = 92;
