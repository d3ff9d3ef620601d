/** Processes as handles name them: by pid and start time, since pids come again. */
import { closeSync, fstatSync, openSync, readlinkSync } from 'node:fs';
import { libc } from '../linux/libc.ts';
import { createSealedMemfd } from '../linux/memfd.ts';
import { isProcessAlive, processStartTime } from '../linux/process.ts';

const F_GET_SEALS = 1034;
const F_SEAL_SHRINK = 2;

/** Whether the size of what a descriptor is of can never shrink: of files on a disk it can. */
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
 * Opens a memfd of another process, if it is one by the name `name`, sealed, and of at least
 * `byteLength` bytes; undefined otherwise. The caller closes it.
 */
export function openForeignMemfd(
  { pid, fd }: ForeignFd,
  name: string,
  byteLength: number,
): number | undefined {
  const path = `/proc/${pid}/fd/${fd}`;
  let opened: number | undefined;
  try {
    // Looked at before it is opened: opening some files (pipes, devices) does things.
    if (readlinkSync(path) !== `/memfd:${name} (deleted)`) return undefined;
    opened = openSync(path, 'r+');
    // One that can shrink could take the ground from under a mapping of it.
    if (hasFixedSize(opened) && fstatSync(opened).size >= byteLength) return opened;
  } catch {
    // gone, or not ours to open
  }
  if (opened !== undefined) closeSync(opened);
  return undefined;
}

/**
 * The name and size of a memfd of this process whose size can never change; undefined for any
 * other descriptor, and for a number that is none.
 */
export function inspectMemfd(fd: number): { name: string; byteLength: number } | undefined {
  if (!Number.isInteger(fd) || fd < 0) return undefined;
  try {
    const [, name] = /^\/memfd:(.+) \(deleted\)$/.exec(readlinkSync(`/proc/self/fd/${fd}`)) ?? [];
    return name !== undefined && hasFixedSize(fd)
      ? { name, byteLength: fstatSync(fd).size }
      : undefined;
  } catch {
    return undefined;
  }
}

/** This process, as others are told of it. */
export type ProcessIdentity = Omit<ForeignFd, 'fd'>;

export const currentProcessIdentity = (): ProcessIdentity => ({
  pid: process.pid,
  startTime: processStartTime('self') ?? 0,
});
