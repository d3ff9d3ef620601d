/** Processes by pid and start time, since pids are reused; memfds of this and other processes. */
import { closeSync, fstatSync, openSync, readlinkSync } from 'node:fs';
import { libc, statusOfFd } from '../linux/libc.ts';
import { createSealedMemfd } from '../linux/memfd.ts';
import { isProcessAlive, processStartTime } from '../linux/process.ts';

const F_GET_SEALS = 1034;
const F_SEAL_SHRINK = 2;

/** Whether the size of a file is sealed and cannot shrink. False for files on a disk. */
const hasFixedSize = (fd: number): boolean => {
  const seals = libc.fcntl(fd, F_GET_SEALS, 0);
  return seals >= 0 && (seals & F_SEAL_SHRINK) !== 0;
};

/** A memfd whose size and seals nobody can change. The caller closes it. @throws SystemError */
export const createFixedMemfd = (name: string, byteLength: number): number =>
  createSealedMemfd(name, byteLength, { allowsMoreSeals: false });

/** A descriptor of another process. */
export interface ForeignFd {
  readonly pid: number;
  readonly startTime: number;
  readonly fd: number;
}

export const isAlive = ({ pid, startTime }: Omit<ForeignFd, 'fd'>): boolean =>
  isProcessAlive(pid, startTime);

/**
 * Opens a memfd of another process. Undefined unless it has this name, is sealed, and has at least
 * `byteLength` bytes. The caller closes it.
 */
export function openForeignMemfd(
  { pid, fd }: ForeignFd,
  name: string,
  byteLength: number,
): number | undefined {
  const path = `/proc/${pid}/fd/${fd}`;
  let opened: number | undefined;
  try {
    // Checked before it is opened: opening pipes or devices has side effects.
    if (readlinkSync(path) !== `/memfd:${name} (deleted)`) return undefined;
    opened = openSync(path, 'r+');
    // If it could shrink, touching a mapping of it could kill this process.
    if (hasFixedSize(opened) && fstatSync(opened).size >= byteLength) return opened;
  } catch {
    // Closed, or this process may not open it.
  }
  if (opened !== undefined) closeSync(opened);
  return undefined;
}

/**
 * The name and size of a sealed memfd of this process. Undefined for any other descriptor or number.
 */
export function inspectMemfd(fd: number): { name: string; byteLength: number } | undefined {
  if (!Number.isInteger(fd) || fd < 0) return undefined;
  try {
    const [, name] = /^\/memfd:(.+) \(deleted\)$/.exec(readlinkSync(`/proc/self/fd/${fd}`)) ?? [];
    if (name === undefined || !hasFixedSize(fd)) return undefined;
    // Deno's `fstatSync` knows only descriptors that it has opened itself.
    const byteLength = statusOfFd(fd)?.byteLength;
    return byteLength === undefined ? undefined : { name, byteLength };
  } catch {
    return undefined;
  }
}

/** The identity of a process. */
export type ProcessIdentity = Omit<ForeignFd, 'fd'>;

export const currentProcessIdentity = (): ProcessIdentity => ({
  pid: process.pid,
  startTime: processStartTime('self') ?? 0,
});
