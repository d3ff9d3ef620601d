/** Which process this is, and whether another one lives: pids come again, start times do not. */
import { readFileSync, readlinkSync } from 'node:fs';
import { SystemError } from './libc.ts';

/**
 * When a living process started, in clock ticks since boot; undefined for one that has ended, and
 * for one whose entry in /proc cannot be read.
 */
export function processStartTime(pid: number | 'self'): number | undefined {
  let stat: string;
  try {
    stat = readFileSync(`/proc/${pid}/stat`, 'latin1');
  } catch {
    return undefined;
  }
  return parseStartTime(stat);
}

/**
 * As {@link processStartTime}, but throws where that could not be asked for.
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

/** What an entry in /proc says of when its process started; undefined where that has ended. */
function parseStartTime(stat: string): number | undefined {
  // The name, in parentheses, may hold spaces and parentheses of its own.
  const fields = stat.slice(stat.lastIndexOf(')') + 2).split(' ', 20);
  // A killed process that nobody has waited for yet has a state, but nothing else any more.
  if (fields[0] === 'Z' || fields[0] === 'X') return undefined;
  return Number(fields[19]);
}

/**
 * Whether a process has ended or is about to: its descriptors may be closed while its pid is still
 * there. Undefined where that cannot be known: no descriptor is left to ask with, or it is hidden.
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

/** Whether the process that started then still lives, as far as this one can see. */
export function isProcessAlive(pid: number, startTime: number): boolean {
  const started = processStartTime(pid);
  if (started !== undefined) return started === startTime;
  const code = signalError(pid);
  if (code !== undefined) return code === 'EPERM';
  // A zombie can be signalled, and its entry can be read.
  return !isReadable(`/proc/${pid}/stat`);
}

/** The (effective) user that a process runs as; undefined where that cannot be seen. */
export function processUser(pid: number): number | undefined {
  try {
    // Not the owner of its folder: that is root for programs with capabilities.
    const status = readFileSync(`/proc/${pid}/status`, 'latin1');
    const [, user] = /^Uid:\t\d+\t(\d+)\t/m.exec(status) ?? [];
    return user === undefined ? undefined : Number(user);
  } catch {
    return undefined;
  }
}

/** Whether a process is kept from this one: another user's. */
export const isProcessForeign = (pid: number): boolean => signalError(pid) === 'EPERM';

/** The number of this process's pid namespace; 0 where it cannot be seen. */
export function pidNamespace(): number {
  try {
    return Number(/^pid:\[(\d+)\]$/.exec(readlinkSync('/proc/self/ns/pid'))?.[1] ?? 0);
  } catch {
    return 0;
  }
}

/** Names this machine until it is started again: a UUID. */
export const bootId = (): string =>
  readFileSync('/proc/sys/kernel/random/boot_id', 'latin1').trim();

/** Why a process cannot be signalled; undefined where it can. */
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
