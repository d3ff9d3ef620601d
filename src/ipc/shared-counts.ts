/**
 * Who of this process uses what the driver has once a process, whichever worker threads loaded
 * cuffi: each has JavaScript's state of its own. The counts are in a memfd that every worker finds
 * in /proc/self/fd. A worker that is terminated never gives up its uses: what it had mapped then
 * stays so until the process ends, as work of it may still be under way.
 */
import { createHash } from 'node:crypto';
import {
  closeSync,
  fstatSync,
  openSync,
  readdirSync,
  readlinkSync,
  readSync,
  writeSync,
} from 'node:fs';
import { createMemfd, libcSymbol } from '../../ffi/libc.ts';
import { IpcError } from '../errors.ts';
import { withFileLock } from './file-lock.ts';

/**
 * Runs `begin` as one more use of what is called that, while no other worker begins or ends one.
 *
 * @param version which one it is, of those that had the same name one after the other
 * @throws IpcError where another version is used, and what `begin` throws: that is then no use
 */
export const beginSharedUse = <T>(name: string, version: number, begin: () => T): T =>
  withCounts((fd) => {
    const found = find(fd, name);
    if (found.users > 0 && found.version !== version)
      throw new IpcError(
        'an earlier allocation with the same handle is open in another worker thread of this ' +
          'process: close its buffers first',
      );
    // Counted before, and not after: a worker may be terminated in between.
    write(fd, { ...found, version, users: found.users + 1 });
    try {
      return begin();
    } catch (error) {
      write(fd, found);
      throw error;
    }
  });

/**
 * The handle of what is called that, as one more use: `make` makes it, unless it is used already.
 * Which handle that is, all workers find beside the count.
 *
 * @param make answers with a number other than 0; what it throws is no use
 */
export const useSharedHandle = <H extends number>(name: string, make: () => H): H =>
  withCounts((fd) => {
    const found = find(fd, name);
    const { version: handle, users } = found;
    write(fd, { ...found, version: users > 0 ? handle : 0, users: users + 1 });
    // 0: a worker was terminated while it made one.
    if (users > 0 && handle !== 0) return handle as H;
    try {
      const made = make();
      write(fd, { ...found, version: made, users: users + 1 });
      return made;
    } catch (error) {
      write(fd, found);
      throw error;
    }
  });

/** Ends a use; where it was the last one of the process, by `end`. */
export const endSharedUse = (name: string, end?: () => void): void =>
  withCounts((fd) => {
    const found = find(fd, name);
    const users = Math.max(found.users - 1, 0);
    write(fd, { ...found, users });
    if (users === 0) end?.();
  });

/** What one name's place in the file says. */
interface Entry {
  readonly at: number;
  readonly key: readonly [number, number];
  readonly version: number;
  readonly users: number;
}

/** An entry is four doubles: the key's halves, the version, the users. */
const FIELDS = 4;
const BYTE_LENGTH = FIELDS * Float64Array.BYTES_PER_ELEMENT;

/** The entry of that name, or a free one for it. */
function find(fd: number, name: string): Entry {
  const digest = createHash('sha256').update(name).digest();
  const key = [digest.readUIntBE(0, 6), digest.readUIntBE(6, 6)] as const;
  const all = new Float64Array(fstatSync(fd).size / Float64Array.BYTES_PER_ELEMENT);
  readSync(fd, all, 0, all.byteLength, 0);
  let free = all.length;
  for (let at = 0; at < all.length; at += FIELDS) {
    const users = all[at + 3] as number;
    if (users === 0) free = Math.min(free, at);
    else if (all[at] === key[0] && all[at + 1] === key[1])
      return { at, key, version: all[at + 2] as number, users };
  }
  return { at: free, key, version: 0, users: 0 };
}

function write(fd: number, { at, key, version, users }: Entry): void {
  const fields = Float64Array.of(...key, version, users);
  writeSync(fd, fields, 0, BYTE_LENGTH, at * Float64Array.BYTES_PER_ELEMENT);
}

let counts: number | undefined;

function withCounts<T>(use: (fd: number) => T): T {
  counts ??= openCounts();
  const fd = counts;
  return withFileLock(fd, () => use(fd));
}

const FDS = '/proc/self/fd';

/**
 * The file, by a descriptor of this worker's own: Node closes that with the worker, and with it
 * goes a lock that a terminated one had.
 */
function openCounts(): number {
  const folder = openSync(FDS, 'r');
  try {
    // One worker at a time: two would make one each.
    return withFileLock(folder, findOrMake);
  } finally {
    closeSync(folder);
  }
}

function findOrMake(): number {
  const name = ownName();
  for (const fd of readdirSync(FDS)) {
    const path = `${FDS}/${fd}`;
    try {
      if (readlinkSync(path).startsWith(`/memfd:${name} `)) return openSync(path, 'r+');
    } catch {
      // Closed since it was listed: of another worker, which has ended.
    }
  }
  // This one is nobody's: it stays open as long as the process lives.
  return openSync(`${FDS}/${createMemfd(name, 0)}`, 'r+');
}

/**
 * The same in all workers, and nowhere else: other processes may send files of any name, but not
 * know where this one has its libc.
 */
function ownName(): string {
  const secret = `${process.pid} ${libcSymbol('getpid')}`;
  return `cuffi-mappings-${createHash('sha256').update(secret).digest('hex').slice(0, 32)}`;
}
