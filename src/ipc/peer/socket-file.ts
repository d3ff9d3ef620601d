/** Where the sockets of listeners are, and that one name has one listener. */
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
import {
  isSocketInUse,
  listenSocket,
  MAX_SOCKET_NAME_BYTE_LENGTH,
} from '../../../ffi/linux/socket.ts';
import { IpcError } from '../../errors.ts';
import { releaseOrWarn } from '../../lifetime.ts';

/**
 * The socket's name for what a user calls it: `@…` is itself, and a path is absolute, so that it
 * stays the same one when the process changes its working directory.
 *
 * @throws RangeError for what names nothing
 * @throws IpcError where the directory of plain names cannot be trusted
 */
export function socketName(name: string): string {
  const isWrong = name === '' || name === '.' || name === '..' || name.includes('\0');
  if (isWrong) throw new RangeError(`${JSON.stringify(name)} is no name for a socket`);
  if (isPlainName(name)) return join(privateDirectory(), name);
  return name.startsWith('@') ? name : resolve(name);
}

/** Whether a name is in the directory of the user alone. */
export const isPlainName = (name: string): boolean => !/^@|\//.test(name);

/**
 * A {@link socketName} as the kernel is given it: a path that is too long may be short enough from
 * the working directory.
 *
 * @throws RangeError for a path that is too long from there as well
 */
export function addressOfSocket(name: string): string {
  if (name.startsWith('@') || Buffer.byteLength(name) <= MAX_SOCKET_NAME_BYTE_LENGTH) return name;
  // With a dot before it: a file may be called `@…`.
  const fromHere = `./${relative('', name)}`;
  if (Buffer.byteLength(fromHere) <= MAX_SOCKET_NAME_BYTE_LENGTH) return fromHere;
  throw new RangeError(
    `${name} has ${Buffer.byteLength(name)} bytes, and the path of a socket has at most ` +
      `${MAX_SOCKET_NAME_BYTE_LENGTH}: choose a shorter one`,
  );
}

/** Who may open the file of a socket: its user, or every user. */
export type SocketMode = 0o600 | 0o666;

/** A listening socket, and the way to take its name back. */
export interface BoundSocket {
  readonly fd: number;
  /** Removes the file, where it is still this socket's. */
  unlink(): void;
}

/**
 * Listens at a {@link socketName}. A file that a dead process left is replaced.
 *
 * @throws IpcError where another process listens, or the name cannot be had
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
    if (error instanceof SystemError || codeOf(error) !== undefined)
      throw new IpcError(`cannot listen at ${name}: ${(error as Error).message}`);
    throw error;
  }
}

/**
 * Removes the sockets that killed processes left in the directory of plain names: at a name that
 * nobody listens at again one would stay for ever.
 */
export function sweepDeadSockets(directory: string): void {
  for (const entry of readdirSync(directory, { withFileTypes: true })) {
    const path = join(directory, entry.name);
    try {
      if (entry.isSocket() && !isSocketInUse(addressOfSocket(path))) removeDead(path);
    } catch {
      // Replaced or removed by another process meanwhile: it is nothing that this one needs.
    }
  }
}

type FileIdentity = Pick<Stats, 'dev' | 'ino'>;

/** A socket that listens at its path, and the file that it has there. */
interface BoundFile {
  readonly fd: number;
  readonly file: FileIdentity;
}

function bindForUser(path: string): BoundFile {
  const fd = listenSocket(addressOfSocket(path));
  return closedOnFailure(fd, () => ({ fd, file: lstatSync(path) }));
}

/**
 * A socket gets the mode that its descriptor had, less what the umask takes: for other users it must
 * be changed by a path. Where others may write to the directory, they may put another file at that
 * path first. So the socket is made in a directory of this user alone and linked to its path when it
 * is complete; that directory is named by its descriptor, as it may be renamed as well.
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
    // It is not there any more where another user has renamed it.
    ignoreErrors(() => rmdirSync(temporary));
  }
}

function unlinkAtExit(path: string, { fd, file }: BoundFile): BoundSocket {
  const unlink = (): void => {
    exitUnlinks.delete(unlink);
    if (exitUnlinks.size === 0) process.off('exit', unlinkAll);
    const found = lstatSync(path, { throwIfNoEntry: false });
    // Another process that may write to the directory may have been quicker.
    if (found && isSameFile(found, file)) rmSync(path, { force: true });
  };
  if (exitUnlinks.size === 0) process.on('exit', unlinkAll);
  exitUnlinks.add(unlink);
  return { fd, unlink };
}

/** Of the files of this process: one that ends while it listens leaves none. */
const exitUnlinks = new Set<() => void>();
const unlinkAll = (): void => {
  for (const unlink of exitUnlinks) releaseOrWarn(unlink);
};

/** Removes the socket of a dead process. @throws IpcError for one in use, and for anything else */
function removeDead(path: string): void {
  // Two that replace the same dead socket would unlink each other's.
  withLockOf(path, () => {
    const found = lstatSync(path, { throwIfNoEntry: false });
    if (!found) return;
    if (!found.isSocket()) throw new IpcError(`${path} is there, and no socket: it is left alone`);
    if (isSocketInUse(addressOfSocket(path))) throw nameInUseError(path);
    unlinkSync(path);
  });
}

/**
 * Runs `use` while no other process of this user does so for the same path. The lock is a file
 * beside it that this user alone can open: a lock of the directory could be held by every user who
 * may read it.
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
        // The process that had the lock before has removed the file: the next one makes another.
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

/** Made if need be; what is there must be this user's alone. @throws IpcError */
function privateDirectory(): string {
  const { XDG_RUNTIME_DIR: runtime } = process.env;
  const directory =
    runtime?.startsWith('/') && existsSync(runtime)
      ? join(runtime, 'cuffi')
      : join(tmpdir(), `cuffi-${effectiveUid()}`);
  try {
    mkdirSync(directory, { mode: 0o700 });
  } catch (error) {
    if (codeOf(error) !== 'EEXIST')
      throw new IpcError(`cannot make ${directory}: ${(error as Error).message}`);
  }
  const found = lstatSync(directory);
  if (!found.isDirectory() || !isPrivateToUser(found))
    throw new IpcError(
      `${directory} is not a directory of user ${effectiveUid()} alone (mode 0700): no socket is ` +
        'put or looked for there',
    );
  return directory;
}

const DIRECTORY_FLAGS = constants.O_RDONLY | constants.O_DIRECTORY | constants.O_NOFOLLOW;
// Opened to write: a pipe that another user has put there does not keep this thread waiting.
const LOCK_FILE_FLAGS = constants.O_RDWR | constants.O_CREAT | constants.O_NOFOLLOW;

const effectiveUid = (): number => process.geteuid?.() ?? 0;

/** Whether nobody but this user may open what has this status. */
const isPrivateToUser = ({ uid, mode }: Stats): boolean =>
  uid === effectiveUid() && (mode & 0o077) === 0;

const isSameFile = (a: FileIdentity, b: FileIdentity): boolean =>
  a.dev === b.dev && a.ino === b.ino;

const nameInUseError = (name: string): IpcError =>
  new IpcError(`another process listens at ${name} already`);

/** Whether something has the path, in the words of `bind` and of `link`. */
const isNameTaken = (error: unknown): boolean =>
  codeOf(error) === 'EADDRINUSE' || codeOf(error) === 'EEXIST';

const codeOf = (error: unknown): unknown =>
  error instanceof Error && 'code' in error ? error.code : undefined;

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
    // Nothing depends on it.
  }
}
