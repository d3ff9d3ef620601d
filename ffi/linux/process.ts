/** Identifies processes by pid and start time, since pids are reused. Tells whether one is alive. */
import { readFileSync, readlinkSync } from 'node:fs';
import { SystemError } from './libc.ts';

/**
 * The start time of a running process, in clock ticks since boot. Undefined if the process has ended
 * or its entry in /proc cannot be read.
 *
 * @param root the folder that /proc is in, for tests
 */
export function processStartTime(pid: number | 'self', root = ''): number | undefined {
  let stat: string;
  try {
    stat = readFileSync(`${root}/proc/${pid}/stat`, 'latin1');
  } catch {
    return undefined;
  }
  return parseStartTime(stat);
}

/**
 * Like {@link processStartTime}, but throws if /proc cannot be read.
 *
 * @throws SystemError EMFILE, ENFILE, ENOMEM
 */
export function processStartTimeOrThrow(pid: number): number | undefined {
  try {
    return parseStartTime(readFileSync(`/proc/${pid}/stat`, 'latin1'));
  } catch (error) {
    const { code, errno = 0 } = error as NodeJS.ErrnoException;
    if (code === 'ENOENT' || code === 'ESRCH') return undefined;
    throw new SystemError('open', -errno, `/proc/${pid}/stat`);
  }
}

/** The start time in the text of `/proc/PID/stat`. Undefined if the process has ended. */
function parseStartTime(stat: string): number | undefined {
  // The name, in parentheses, may contain spaces and parentheses.
  const fields = stat.slice(stat.lastIndexOf(')') + 2).split(' ', 20);
  // A process that was killed and not yet waited for is a zombie (Z).
  if (fields[0] === 'Z' || fields[0] === 'X') return undefined;
  return Number(fields[19]);
}

/**
 * Whether a process has ended or is exiting. Its descriptors may be closed while its pid still
 * exists. Undefined if that cannot be determined: no descriptor is left, or /proc hides the process.
 */
export function isProcessEnding(pid: number): boolean | undefined {
  let stat: string;
  try {
    stat = readFileSync(`/proc/${pid}/stat`, 'latin1');
  } catch {
    return signalError(pid) === 'ESRCH' ? true : undefined;
  }
  const fields = stat.slice(stat.lastIndexOf(')') + 2).split(' ');
  return fields[0] === 'Z' || fields[0] === 'X' || (Number(fields[6]) & PF_EXITING) !== 0;
}

const PF_EXITING = 0x4;

/** Whether the process with that start time is alive, as far as this process can see. */
export function isProcessAlive(pid: number, startTime: number): boolean {
  const started = processStartTime(pid);
  if (started !== undefined) return started === startTime;
  const code = signalError(pid);
  if (code !== undefined) return code === 'EPERM';
  // A zombie can be signalled, and its entry can be read.
  return !isReadable(`/proc/${pid}/stat`);
}

/** The effective user of this process, whose rights its files and sockets have. */
export const effectiveUid = process.geteuid as () => number;

/** The effective user id of a process. Undefined if it cannot be read. */
export function processUser(pid: number | 'self', root = ''): number | undefined {
  try {
    // Not the owner of the folder: that is root for programs with capabilities.
    const status = readFileSync(`${root}/proc/${pid}/status`, 'latin1');
    const [, user] = /^Uid:\t\d+\t(\d+)\t/m.exec(status) ?? [];
    return user === undefined ? undefined : Number(user);
  } catch {
    return undefined;
  }
}

/** Whether this process may not signal a process, because it runs as another user. */
export const isOtherUsersProcess = (pid: number): boolean => signalError(pid) === 'EPERM';

/** The number of this process's pid namespace. 0 if it cannot be read. */
export function pidNamespace(): number {
  try {
    return Number(/^pid:\[(\d+)\]$/.exec(readlinkSync('/proc/self/ns/pid'))?.[1] ?? 0);
  } catch {
    return 0;
  }
}

/** The machine's boot id: a UUID that changes at each boot. */
export const bootId = (root = ''): string =>
  readFileSync(`${root}/proc/sys/kernel/random/boot_id`, 'latin1').trim();

/** The error code of signalling a process. Undefined if it can be signalled. */
function signalError(pid: number): string | undefined {
  try {
    process.kill(pid, 0);
    return undefined;
  } catch (error) {
    return (error as NodeJS.ErrnoException).code;
  }
}

function isReadable(path: string): boolean {
  try {
    readFileSync(path);
    return true;
  } catch {
    return false;
  }
}
