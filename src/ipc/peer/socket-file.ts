/** Where the sockets of listeners are, and that one name has one listener. */
import {
  chmodSync,
  closeSync,
  existsSync,
  lstatSync,
  mkdirSync,
  openSync,
  unlinkSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { SystemError } from '../../../ffi/libc.ts';
import { isSocketInUse, listenSocket } from '../../../ffi/socket.ts';
import { IpcError } from '../../errors.ts';
import { releaseQuietly } from '../../resource.ts';
import { withFileLock } from '../file-lock.ts';

/**
 * The socket's name for what a user calls it: `@…` and paths are themselves.
 *
 * @throws RangeError for what names nothing
 * @throws IpcError where the directory of plain names cannot be trusted
 */
export function socketName(name: string): string {
  const isWrong = name === '' || name === '.' || name === '..' || name.includes('\0');
  if (isWrong) throw new RangeError(`${JSON.stringify(name)} is no name for a socket`);
  return isPrivateName(name) ? join(privateDirectory(), name) : name;
}

/** Whether a name is in the directory of the user alone. */
export const isPrivateName = (name: string): boolean => !/^@|\//.test(name);

/** A listening socket, and the way to take its name back. */
export interface NamedSocket {
  readonly fd: number;
  /** Removes the file, where it is still this socket's. */
  unlink(): void;
}

/**
 * Listens at a name. A file that a dead process left is replaced.
 *
 * @throws IpcError where another process listens, or the name cannot be had
 * @throws RangeError as listenSocket
 */
export function listenAt(name: string, mode: number): NamedSocket {
  try {
    if (name.startsWith('@')) return { fd: listenSocket(name), unlink() {} };
    const directory = openSync(dirname(name), 'r');
    try {
      // Two that replace the same dead socket would unlink each other's.
      return withFileLock(directory, () => listenAtPath(name, mode));
    } finally {
      closeSync(directory);
    }
  } catch (error) {
    if (codeOf(error) === 'EADDRINUSE')
      throw new IpcError(`another process listens at ${name} already`);
    if (error instanceof SystemError || codeOf(error) !== undefined)
      throw new IpcError(`cannot listen at ${name}: ${(error as Error).message}`);
    throw error;
  }
}

function listenAtPath(path: string, mode: number): NamedSocket {
  removeStale(path);
  const fd = listenSocket(path);
  // Wider than the process's umask would have it, where others were asked for.
  if (mode !== 0o600) chmodSync(path, mode);
  const { dev, ino } = lstatSync(path);
  const unlink = (): void => {
    unlinks.delete(unlink);
    const found = lstatSync(path, { throwIfNoEntry: false });
    if (found && found.dev === dev && found.ino === ino) unlinkSync(path);
  };
  if (unlinks.size === 0) process.on('exit', unlinkAll);
  unlinks.add(unlink);
  return {
    fd,
    unlink() {
      unlink();
      if (unlinks.size === 0) process.off('exit', unlinkAll);
    },
  };
}

/** Of the files of this process: one that ends while it listens leaves none. */
const unlinks = new Set<() => void>();
const unlinkAll = (): void => {
  for (const unlink of unlinks) releaseQuietly(unlink);
};

function removeStale(path: string): void {
  const found = lstatSync(path, { throwIfNoEntry: false });
  if (!found) return;
  if (!found.isSocket()) throw new IpcError(`${path} is there, and no socket: it is left alone`);
  if (isSocketInUse(path)) throw new IpcError(`another process listens at ${path} already`);
  unlinkSync(path);
}

/** Made if need be; what is there must be this user's alone. @throws IpcError */
function privateDirectory(): string {
  const uid = process.geteuid?.() ?? 0;
  const { XDG_RUNTIME_DIR: runtime } = process.env;
  const directory =
    runtime?.startsWith('/') && existsSync(runtime)
      ? join(runtime, 'cuffi')
      : join(tmpdir(), `cuffi-${uid}`);
  try {
    mkdirSync(directory, { mode: 0o700 });
  } catch (error) {
    if (codeOf(error) !== 'EEXIST')
      throw new IpcError(`cannot make ${directory}: ${(error as Error).message}`);
  }
  const found = lstatSync(directory);
  if (!found.isDirectory() || found.uid !== uid || (found.mode & 0o077) !== 0)
    throw new IpcError(
      `${directory} is not a directory of user ${uid} alone (mode 0700): no socket is put or ` +
        'looked for there',
    );
  return directory;
}

const codeOf = (error: unknown): unknown =>
  error instanceof Error && 'code' in error ? error.code : undefined;
