/** Where the sockets of listeners are, and how one name gets only one listener. */

import {
  chmodSync,
  closeSync,
  constants,
  existsSync,
  fstatSync,
  linkSync,
  lstatSync,
  mkdirSync,
  mkdtempSync,
  openSync,
  readdirSync,
  rmdirSync,
  rmSync,
  type Stats,
  unlinkSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { basename, dirname, join, relative, resolve } from 'node:path';
import { withFileLock } from '../../../ffi/linux/file-lock.ts';
import { closeFd, SystemError } from '../../../ffi/linux/libc.ts';
import { effectiveUid } from '../../../ffi/linux/process.ts';
import {
  isSocketInUse,
  listenSocket,
  MAX_SOCKET_NAME_BYTE_LENGTH,
} from '../../../ffi/linux/socket.ts';
import { IpcError } from '../../errors.ts';
import { releaseOrWarn } from '../../lifetime.ts';
import { isError } from '../../validate.ts';

/**
 * Resolves a user's name to the name of a socket. `@…` stays as it is. A path becomes absolute, so
 * that it stays the same when the process changes its working directory.
 *
 * @throws RangeError for an invalid name
 * @throws IpcError if the directory of plain names cannot be trusted
 */
export function socketName(name: string): string {
  const isWrong = name === '' || name === '.' || name === '..' || name.includes('\0');
  if (isWrong) throw new RangeError(`${JSON.stringify(name)} is not a valid socket name`);
  if (name === INSPECTION)
    throw new RangeError(`the name '${name}' is reserved for cuffi ls: use another one`);
  if (isPlainName(name)) return join(privateDirectory(), name);
  return name.startsWith('@') ? name : resolve(name);
}

/** The folder, in the directory of plain names, of the sockets that `cuffi ls` asks. */
const INSPECTION = 'inspect';

/**
 * Returns the folder of the sockets for inspection, and creates it if needed. @throws IpcError if
 * others can access it
 */
export const inspectionDirectory = (): string =>
  openPrivateDirectory(join(privateDirectory(), INSPECTION));

/** Whether a name is a plain one, in the directory that only this user can access. */
export const isPlainName = (name: string): boolean => !/^@|\//.test(name);

/**
 * Converts a {@link socketName} to the address for the kernel. A path that is too long may be short
 * enough relative to the working directory.
 *
 * @throws RangeError if the relative path is too long as well
 */
export function addressOfSocket(name: string): string {
  if (name.startsWith('@') || Buffer.byteLength(name) <= MAX_SOCKET_NAME_BYTE_LENGTH) return name;
  // The dot comes first because a file may be called `@…`.
  const fromHere = `./${relative('', name)}`;
  if (Buffer.byteLength(fromHere) <= MAX_SOCKET_NAME_BYTE_LENGTH) return fromHere;
  throw new RangeError(
    `${name} has ${Buffer.byteLength(name)} bytes, and the path of a socket has at most ` +
      `${MAX_SOCKET_NAME_BYTE_LENGTH}: choose a shorter one`,
  );
}

/** Who may open the file of a socket: its user, or every user. */
export type SocketMode = 0o600 | 0o666;

/** A listening socket and the function that removes its file. */
export interface BoundSocket {
  readonly fd: number;
  /** Removes the file if it is still the file of this socket. */
  unlink(): void;
}

/**
 * Listens at a {@link socketName}. Replaces a file that a dead process left.
 *
 * @throws IpcError if another process listens there, or the name cannot be used
 * @throws RangeError as listenSocket
 */
export function listenAt(name: string, mode: SocketMode): BoundSocket {
  try {
    if (name.startsWith('@')) return { fd: listenSocket(name), unlink() {} };
    const place = mode === 0o600 ? bindForUser : bindForAll;
    try {
      return unlinkAtExit(name, place(name));
    } catch (error) {
      if (!isNameTaken(error)) throw error;
    }
    removeDead(name);
    return unlinkAtExit(name, place(name));
  } catch (error) {
    if (isNameTaken(error)) throw nameInUseError(name);
    if (error instanceof IpcError) throw error;
    if (error instanceof SystemError || codeOf(error) !== undefined)
      throw new IpcError(`cannot listen at ${name}: ${(error as Error).message}`);
    throw error;
  }
}

/**
 * Removes the sockets that killed processes left in the directory of plain names. A socket at a
 * name that is never used again would otherwise stay for ever.
 */
export function sweepDeadSockets(directory: string): void {
  for (const entry of readdirSync(directory, { withFileTypes: true })) {
    const path = join(directory, entry.name);
    try {
      if (entry.isSocket() && !isSocketInUse(addressOfSocket(path))) removeDead(path);
    } catch {
      // Another process replaced or removed the file meanwhile, which does not matter here.
    }
  }
}

type FileIdentity = Pick<Stats, 'dev' | 'ino'>;

/** A socket that listens at its path, with the identity of its file. */
interface BoundFile {
  readonly fd: number;
  readonly file: FileIdentity;
}

function bindForUser(path: string): BoundFile {
  const fd = listenSocket(addressOfSocket(path));
  return closedOnFailure(fd, () => ({ fd, file: lstatSync(path) }));
}

/**
 * The file of a socket gets the mode of its descriptor, less the umask. Other users get access only
 * through a chmod of the path. If others may write to the directory, they could put another file at
 * that path first. So the socket is created in a private directory and linked to its path when it
 * is complete. That directory is addressed by its descriptor, as it may be renamed as well.
 */
function bindForAll(path: string): BoundFile {
  addressOfSocket(path); // where it is too long nobody could connect
  const temporary = mkdtempSync(join(dirname(path), '.cuffi-'));
  try {
    const directory = openSync(temporary, DIRECTORY_FLAGS);
    try {
      if (!isPrivateToUser(fstatSync(directory)))
        throw new IpcError(
          `cannot listen at ${path}: ${temporary}, made for it, is not a directory of this user ` +
            'alone. Listen at a path where other users cannot replace files',
        );
      const inside = `/proc/self/fd/${directory}/socket`;
      const fd = listenSocket(inside);
      try {
        return closedOnFailure(fd, () => {
          chmodSync(inside, 0o666);
          const file = lstatSync(inside);
          linkSync(inside, path);
          return { fd, file };
        });
      } finally {
        ignoreErrors(() => unlinkSync(inside));
      }
    } finally {
      closeSync(directory);
    }
  } finally {
    // The directory is missing if another user has renamed it.
    ignoreErrors(() => rmdirSync(temporary));
  }
}

function unlinkAtExit(path: string, { fd, file }: BoundFile): BoundSocket {
  const unlink = (): void => {
    exitUnlinks.delete(unlink);
    ownNames.delete(path);
    if (exitUnlinks.size === 0) process.off('exit', unlinkAll);
    const found = lstatSync(path, { throwIfNoEntry: false });
    // Another process that may write to the directory may have replaced the file.
    if (found && isSameFile(found, file)) rmSync(path, { force: true });
  };
  if (exitUnlinks.size === 0) process.on('exit', unlinkAll);
  exitUnlinks.add(unlink);
  ownNames.add(path);
  return { fd, unlink };
}

/** Removes the files of this process's sockets at exit. */
const exitUnlinks = new Set<() => void>();
const unlinkAll = (): void => {
  for (const unlink of exitUnlinks) releaseOrWarn(unlink);
};

/**
 * Removes the socket of a dead process. @throws IpcError for a socket in use, and for other files
 */
function removeDead(path: string): void {
  // Two processes that replace the same dead socket would unlink each other's.
  withLockOf(path, () => {
    const found = lstatSync(path, { throwIfNoEntry: false });
    if (!found) return;
    if (!found.isSocket())
      throw new IpcError(
        `${path} exists and is not a socket: remove it, or listen at another path`,
      );
    if (isSocketInUse(addressOfSocket(path))) throw nameInUseError(path);
    unlinkSync(path);
  });
}

/**
 * Runs `use` while no other process of this user does so for the same path. The lock is a file next
 * to the path that only this user can open. Every user who can read the directory could hold a lock
 * on the directory itself.
 */
function withLockOf(path: string, use: () => void): void {
  const lock = join(dirname(path), `.${basename(path)}.cuffi-lock`);
  let isDone = false;
  while (!isDone) {
    const fd = openSync(lock, LOCK_FILE_FLAGS, 0o600);
    try {
      const opened = fstatSync(fd);
      if (!opened.isFile() || !isPrivateToUser(opened))
        throw new IpcError(
          `the dead socket ${path} cannot be replaced: ${lock} is not a file of this user alone. ` +
            'Remove it, or listen at a path in a directory of your own',
        );
      withFileLock(fd, () => {
        const found = lstatSync(lock, { throwIfNoEntry: false });
        // The previous holder of the lock has removed the file. Retries with a new file.
        if (!found || !isSameFile(found, opened)) return;
        isDone = true;
        try {
          use();
        } finally {
          unlinkSync(lock);
        }
      });
    } catch (error) {
      if (!(error instanceof SystemError) || error.syscall !== 'flock') throw error;
      throw new IpcError(
        `the dead socket ${path} cannot be replaced: another process of this user holds the lock ` +
          `of ${lock} (${error.code}). End it, or try again`,
      );
    } finally {
      closeSync(fd);
    }
  }
}

/**
 * Returns the directory of plain names, and creates it if needed. @throws IpcError if others can
 * access it
 */
function privateDirectory(): string {
  const { XDG_RUNTIME_DIR: runtime } = process.env;
  const directory =
    runtime?.startsWith('/') && existsSync(runtime)
      ? join(runtime, 'cuffi')
      : join(tmpdir(), `cuffi-${effectiveUid()}`);
  return openPrivateDirectory(directory);
}

/** Creates a directory if needed, and returns it. @throws IpcError if others can access it */
function openPrivateDirectory(directory: string): string {
  try {
    mkdirSync(directory, { mode: 0o700 });
  } catch (error) {
    if (codeOf(error) !== 'EEXIST')
      throw new IpcError(`cannot create ${directory}: ${(error as Error).message}`);
  }
  const found = lstatSync(directory);
  if (!found.isDirectory() || !isPrivateToUser(found))
    throw new IpcError(
      `${directory} is not a directory of user ${effectiveUid()} alone (mode 0700): correct its owner ` +
        'and mode, or remove it',
    );
  return directory;
}

const DIRECTORY_FLAGS = constants.O_RDONLY | constants.O_DIRECTORY | constants.O_NOFOLLOW;
// Opened for writing, so that a pipe of another user cannot block this thread.
const LOCK_FILE_FLAGS = constants.O_RDWR | constants.O_CREAT | constants.O_NOFOLLOW;

/** Whether only this user may open the file with this status. */
const isPrivateToUser = ({ uid, mode }: Stats): boolean =>
  uid === effectiveUid() && (mode & 0o077) === 0;

const isSameFile = (a: FileIdentity, b: FileIdentity): boolean =>
  a.dev === b.dev && a.ino === b.ino;

/** The sockets of this process that listen. */
const ownNames = new Set<string>();

const nameInUseError = (name: string): IpcError =>
  new IpcError(
    ownNames.has(name)
      ? `this process listens at ${name} already: close that Listener first, or use another name`
      : `another process listens at ${name} already: use another name, or end it`,
    undefined,
    'address-in-use',
  );

/** Whether the error means that the path exists, from `bind` or from `link`. */
const isNameTaken = (error: unknown): boolean =>
  codeOf(error) === 'EADDRINUSE' || codeOf(error) === 'EEXIST';

const codeOf = (error: unknown): unknown =>
  isError(error) && 'code' in error ? error.code : undefined;

function closedOnFailure<T>(fd: number, use: () => T): T {
  try {
    return use();
  } catch (error) {
    closeFd(fd);
    throw error;
  }
}

function ignoreErrors(work: () => void): void {
  try {
    work();
  } catch {
    // Nothing depends on this.
  }
}
