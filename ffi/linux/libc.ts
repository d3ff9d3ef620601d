/** Functions of libc that Node lacks: mappings, memfds, processes by descriptor, semaphores. */

import { types } from 'node:util';
import { koffi } from '../koffi.ts';
import { type Library, type NativeFunction, openLibrary } from '../library.ts';
import {
  addressOf,
  allocatePermanent,
  MAX_VIEW_BYTE_LENGTH,
  viewMemory,
  withAddress,
} from '../native.ts';
import { isMainThread } from '../thread.ts';
import { type Address, type CType, int, pointer, size_t, uint } from '../types.ts';

const long: CType<number> = { c: 'long', ffi: 'int64', byteLength: 8 };

/** Every libc function in use: its parameters, and the type that it returns. */
const signatures = {
  mmap: [[pointer, size_t, int, int, int, long], 'uint64'],
  munmap: [[pointer, size_t], 'int32'],
  madvise: [[pointer, size_t, int], 'int32'],
  getpagesize: [[], 'int32'],
  memfd_create: [[pointer, uint], 'int32'],
  ftruncate: [[int, long], 'int32'],
  fallocate: [[int, int, long, long], 'int32'],
  close: [[int], 'int32'],
  fcntl: [[int, int, long], 'int32'],
  ioctl: [[int, size_t, pointer], 'int32'],
  fstatfs: [[int, pointer], 'int32'],
  dup3: [[int, int, int], 'int32'],
  pipe2: [[pointer, int], 'int32'],
  poll: [[pointer, size_t, int], 'int32'],
  eventfd: [[uint, int], 'int32'],
  read: [[int, pointer, size_t], 'int64'],
  fdopen: [[int, pointer], 'uint64'],
  setvbuf: [[pointer, pointer, int, size_t], 'int32'],
  fwrite: [[pointer, size_t, size_t, pointer], 'uint64'],
  fflush: [[pointer], 'int32'],
  epoll_create1: [[int], 'int32'],
  epoll_ctl: [[int, int, int, pointer], 'int32'],
  epoll_wait: [[int, pointer, int, int], 'int32'],
  flock: [[int, int], 'int32'],
  pread: [[int, pointer, size_t, long], 'int64'],
  pwrite: [[int, pointer, size_t, long], 'int64'],
  memmove: [[pointer, pointer, size_t], 'uint64'],
  memset: [[pointer, int, size_t], 'uint64'],
  process_vm_readv: [[int, pointer, size_t, pointer, size_t, size_t], 'int64'],
  process_vm_writev: [[int, pointer, size_t, pointer, size_t, size_t], 'int64'],
  getuid: [[], 'uint32'],
  socket: [[int, int, int], 'int32'],
  socketpair: [[int, int, int, pointer], 'int32'],
  bind: [[int, pointer, uint], 'int32'],
  listen: [[int, int], 'int32'],
  accept4: [[int, pointer, pointer, int], 'int32'],
  connect: [[int, pointer, uint], 'int32'],
  getsockopt: [[int, int, int, pointer, pointer], 'int32'],
  getsockname: [[int, pointer, pointer], 'int32'],
  getpeername: [[int, pointer, pointer], 'int32'],
  setsockopt: [[int, int, int, pointer, uint], 'int32'],
  shutdown: [[int, int], 'int32'],
  sendmsg: [[int, pointer, int], 'int64'],
  recvmsg: [[int, pointer, int], 'int64'],
  // Fixed arity: a variadic declaration costs twice, and all calls here fit six integers.
  syscall: [[long, size_t, size_t, size_t, size_t, size_t, size_t], 'int64'],
  sem_init: [[pointer, int, uint], 'int32'],
  sem_post: [[pointer], 'int32'],
  sem_trywait: [[pointer], 'int32'],
  sched_yield: [[], 'int32'],
} as const satisfies Record<
  string,
  readonly [readonly CType[], 'int32' | 'uint32' | 'int64' | 'uint64']
>;

type LibcName = keyof typeof signatures;
type Libc = { readonly [K in LibcName]: (...args: number[]) => number };

let library: Library | undefined;
function openLibc(): Library {
  if (library) return library;
  library = openLibrary(['libc.so.6', 'libc.so', 'libc.musl-x86_64.so.1']);
  // koffi aborts the process if a worker thread is terminated while it declares a function. So a
  // worker declares all of them at its start.
  if (!isMainThread()) for (const name of names) bindFunction(name);
  return library;
}

function bindFunction(name: LibcName): NativeFunction | undefined {
  const [params, result] = signatures[name];
  const value = openLibc().bind(name, params, result);
  if (value) Object.defineProperty(libc, name, { configurable: true, enumerable: true, value });
  return value;
}

/** libc's functions, declared at their first call. They fail as in C: -1, and errno. */
export const libc = {} as Libc;
const names = Object.keys(signatures) as LibcName[];
for (const name of names) {
  Object.defineProperty(libc, name, {
    configurable: true,
    enumerable: true,
    get() {
      const value = bindFunction(name);
      if (!value) throw new SystemError(name, 38, 'libc has no such function');
      return value;
    },
  });
}

/** The address of a libc function, for C to call without JavaScript. @throws SystemError ENOSYS */
export function libcSymbol(name: string): Address {
  const address = openLibc().symbol(name);
  if (address === undefined) throw new SystemError(name, 38, 'libc has no such function');
  return address as Address;
}

/** The error number of this thread's last libc call. */
export const errno = (): number => koffi().errno();

let errorNames: Map<number, string> | undefined;
function nameOfError(number: number): string {
  errorNames ??= new Map(Object.entries(koffi().os.errno).map(([name, value]) => [value, name]));
  return errorNames.get(number) ?? `ERRNO_${number}`;
}

/** A libc call that failed; `code` is the error's name, as in Node's own system errors. */
export class SystemError extends Error {
  readonly errno: number;
  readonly code: string;
  readonly syscall: string;

  constructor(syscall: string, number: number, detail?: string) {
    const code = nameOfError(number);
    super(`${syscall}: ${code}${detail ? ` (${detail})` : ''}`);
    this.name = 'SystemError';
    this.errno = number;
    this.code = code;
    this.syscall = syscall;
  }
}

const SHORTAGES: ReadonlySet<unknown> = new Set(['EMFILE', 'ENFILE', 'ENOMEM', 'ENOBUFS']);

/** Whether an error, of libc or of Node, says that descriptors or kernel memory ran out. */
export const isShortage = (error: unknown): error is Error =>
  types.isNativeError(error) && 'code' in error && SHORTAGES.has(error.code);

/** Returns `result`. @throws SystemError with errno if it is negative */
export function succeeded(result: number, syscall: string): number {
  if (result < 0) throw new SystemError(syscall, errno());
  return result;
}

const PROT_READ = 1;
const PROT_WRITE = 2;
const MAP_SHARED = 1;
const MFD_CLOEXEC = 1;
const F_GETFD = 1;
const F_SETFD = 2;
const F_DUPFD_CLOEXEC = 1030;
const F_GET_SEALS = 1034;
const FD_CLOEXEC = 1;
const F_DUPFD_QUERY = 1027;
const SYS_KCMP = process.arch === 'arm64' ? 272 : 312;
const KCMP_FILE = 0;
const SYS_PIDFD_OPEN = 434;

const EBADF = 9;

const isFdNumber = (fd: number): boolean => Number.isInteger(fd) && fd >= 0 && fd <= 0x7fff_ffff;

/**
 * Returns `fd` if it can be a descriptor. koffi would pass NaN as 0, which is stdin, and would cut
 * numbers to 32 bits. @throws SystemError EBADF
 */
export function checkFd(fd: number, syscall: string): number {
  if (!isFdNumber(fd)) throw new SystemError(syscall, EBADF, `${fd} is not a descriptor`);
  return fd;
}

/** Closes a descriptor. @throws SystemError */
export const closeFd = (fd: number): void => {
  succeeded(libc.close(checkFd(fd, 'close')), 'close');
};

/** Whether `fd` is an open descriptor of this process. */
export const isOpenFd = (fd: number): boolean => isFdNumber(fd) && libc.fcntl(fd, F_GETFD, 0) >= 0;

/** Keeps a descriptor from being inherited by programs that this process starts. */
export const setCloseOnExec = (fd: number): void => {
  succeeded(libc.fcntl(checkFd(fd, 'fcntl'), F_SETFD, FD_CLOEXEC), 'fcntl');
};

/** Another descriptor of the same open file, close-on-exec. @throws SystemError */
export const duplicateFd = (fd: number): number =>
  succeeded(libc.fcntl(checkFd(fd, 'fcntl'), F_DUPFD_CLOEXEC, 0), 'fcntl');

/**
 * Whether two descriptors refer to one open file, in whatever way they got here. Undefined if the
 * kernel supports neither `F_DUPFD_QUERY` (before Linux 6.10) nor `kcmp` (in some containers).
 */
export function isSameFile(a: number, b: number): boolean | undefined {
  if (!isOpenFd(a) || !isOpenFd(b)) return false;
  const queried = libc.fcntl(a, F_DUPFD_QUERY, b);
  if (queried >= 0) return queried === 1;
  const { pid } = process;
  const compared = libc.syscall(SYS_KCMP, pid, pid, KCMP_FILE, a, b, 0);
  return compared >= 0 ? compared === 0 : undefined;
}

/** A pipe: the end to read from, and the end to write to. Both are close-on-exec. @throws SystemError */
export function createPipe(): [readEnd: number, writeEnd: number] {
  const ends = new Int32Array(2);
  succeeded(libc.pipe2(addressOf(ends), O_CLOEXEC), 'pipe2');
  return [ends[0] as number, ends[1] as number];
}

const O_CLOEXEC = 0x8_0000;

/** What the inode of a descriptor says. */
export interface FdStatus {
  /** The file type bits of the mode (`S_IFMT`). 0 for anonymous inodes of the kernel. */
  readonly type: number;
  /** The device's major number, if the file is a device. */
  readonly major: number;
  /** The device number of the file system, which the kernel assigns. */
  readonly fileSystem: number;
  readonly byteLength: number;
  /** The memory or disk space that the contents take now. */
  readonly storedByteLength: number;
}

/**
 * The status of a descriptor, or undefined on failure (see errno). It uses cached values:
 * `fstat` would ask the file system, which may be another process's (FUSE) and never reply.
 */
export function statusOfFd(fd: number): FdStatus | undefined {
  if (!isFdNumber(fd)) return undefined;
  statusScratch ??= (() => {
    const address = allocatePermanent(STATX_BYTE_LENGTH + 1);
    return { address, view: new DataView(viewMemory(address, STATX_BYTE_LENGTH + 1)) };
  })();
  const { address, view } = statusScratch;
  // An empty path means the descriptor itself.
  view.setUint8(STATX_BYTE_LENGTH, 0);
  const flags = AT_EMPTY_PATH | AT_STATX_DONT_SYNC;
  const path = address + STATX_BYTE_LENGTH;
  if (libc.syscall(SYS_STATX, fd, path, flags, STATX_BASIC_STATS, address, 0) < 0) return undefined;
  return {
    type: view.getUint16(28, true) & S_IFMT,
    byteLength: Number(view.getBigUint64(40, true)),
    storedByteLength: Number(view.getBigUint64(48, true)) * 512,
    major: view.getUint32(128, true),
    fileSystem: view.getUint32(136, true) * 2 ** 32 + view.getUint32(140, true),
  };
}

let statusScratch: { readonly address: Address; readonly view: DataView } | undefined;

const SYS_STATX = process.arch === 'arm64' ? 291 : 332;
const STATX_BYTE_LENGTH = 256;
const STATX_BASIC_STATS = 0x7ff;
const AT_EMPTY_PATH = 0x1000;
const AT_STATX_DONT_SYNC = 0x4000;
const S_IFMT = 0o170000;
const S_IFIFO = 0o010000;

/**
 * Whether a descriptor is that end of a pipe without a name. Named pipes (FIFOs) have the rights of
 * their file. `O_PATH` descriptors of them have no access at all.
 */
export function isPipeEnd(fd: number, end: 'read' | 'write'): boolean {
  const status = statusOfFd(fd);
  if (status?.type !== S_IFIFO) return false;
  // `fstatfs` would ask the file system of a named pipe, which may be another process's (FUSE).
  pipeFileSystem ??= (() => {
    const ends = createPipe();
    const own = statusOfFd(ends[0])?.fileSystem;
    ends.forEach(closeFd);
    return own;
  })();
  if (status.fileSystem !== pipeFileSystem) return false;
  const access = end === 'read' ? O_RDONLY : O_WRONLY;
  return (libc.fcntl(fd, F_GETFL, 0) & (O_PATH | O_ACCMODE)) === access;
}

/** All pipes without names are on one file system of the kernel. */
let pipeFileSystem: number | undefined;

/** Commands of `fcntl` that read and set the flags of an open file. */
export const F_GETFL = 3;
export const F_SETFL = 4;
const O_RDONLY = 0;
const O_WRONLY = 1;
const O_ACCMODE = 3;
const O_PATH = 0o1000_0000;

/** Whether a descriptor is a file in memory: a memfd, or a file in tmpfs. */
export const isInMemory = (fd: number): boolean =>
  // Only those have seals, even if they allow none.
  isFdNumber(fd) && libc.fcntl(fd, F_GET_SEALS, 0) >= 0;

/** An anonymous file in memory, close-on-exec, of the given size. @throws SystemError */
export function createMemfd(name: string, byteLength: number): number {
  const fd = withAddress(Buffer.from(`${name}\0`), (address) =>
    succeeded(libc.memfd_create(address, MFD_CLOEXEC), 'memfd_create'),
  );
  if (libc.ftruncate(fd, byteLength) < 0) {
    const number = errno();
    libc.close(fd);
    throw new SystemError('ftruncate', number);
  }
  return fd;
}

/** A shared mapping of a descriptor. */
export interface Mapping {
  readonly address: Address;
  readonly byteLength: number;
  /** The first 4 GiB at most. Touching a view of it after `unmap()` kills the process. */
  view(): ArrayBuffer;
  unmap(): void;
}

/** Maps a descriptor, shared and writable. @throws SystemError */
export function mapShared(fd: number, byteLength: number, fileOffset = 0): Mapping {
  checkFd(fd, 'mmap');
  const address = libc.mmap(0, byteLength, PROT_READ | PROT_WRITE, MAP_SHARED, fd, fileOffset);
  // MAP_FAILED is (void *)-1, which arrives as a bigint above 2^53.
  if (typeof address !== 'number') throw new SystemError('mmap', errno());
  return {
    address: address as Address,
    byteLength,
    view: () => viewMemory(address as Address, Math.min(byteLength, MAX_VIEW_BYTE_LENGTH)),
    unmap: () => {
      succeeded(libc.munmap(address, byteLength), 'munmap');
    },
  };
}

/** Lets other threads that are ready run on this core first. */
export const yieldCore = (): void => {
  libc.sched_yield();
};

/** A descriptor of a process, readable once the process has ended. @throws SystemError */
export const openPidfd = (pid: number): number =>
  succeeded(libc.syscall(SYS_PIDFD_OPEN, pid, 0, 0, 0, 0, 0), 'pidfd_open');

// struct iovec local, struct iovec remote
const iovecs = new BigUint64Array(4);
let iovecsAddress: Address | undefined;

function transferMemory(
  call: 'process_vm_readv' | 'process_vm_writev',
  pid: number,
  local: Address,
  remote: Address,
  byteLength: number,
): number {
  iovecsAddress ??= addressOf(iovecs);
  iovecs[0] = BigInt(local);
  iovecs[1] = BigInt(byteLength);
  iovecs[2] = BigInt(remote);
  iovecs[3] = BigInt(byteLength);
  return libc[call](pid, iovecsAddress, 1, iovecsAddress + 16, 1, 0);
}

/**
 * Copies memory of any process, this one included. A bad remote address does not crash.
 * Returns the number of bytes copied, or -1 with errno (EFAULT).
 */
export const readProcessMemory = (
  pid: number,
  from: Address,
  into: Address,
  byteLength: number,
): number => transferMemory('process_vm_readv', pid, into, from, byteLength);

/** As {@link readProcessMemory}, in the other direction. */
export const writeProcessMemory = (
  pid: number,
  into: Address,
  from: Address,
  byteLength: number,
): number => transferMemory('process_vm_writev', pid, from, into, byteLength);
