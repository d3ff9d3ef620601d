/**
 * Unix sockets with message boundaries and descriptor passing (SOCK_SEQPACKET), which Node lacks.
 * Nothing here blocks. message.ts sends and receives.
 */
import { fchmodSync, unlinkSync } from 'node:fs';
import { allocatePermanent, viewMemory } from '../native.ts';
import type { Address } from '../types.ts';
import { closeOffThread } from './close-fd.ts';
import {
  checkFd,
  closeFd,
  errno,
  isOpenFd,
  isShortage,
  libc,
  SystemError,
  succeeded,
} from './libc.ts';
import { discardUnread } from './message.ts';

/** The process at the other end, as the kernel knows it. */
export interface PeerCredentials {
  /** 0 for a process that this one's pid namespace does not show. */
  readonly pid: number;
  readonly uid: number;
  readonly gid: number;
}

/** Two connected sockets, non-blocking and close-on-exec. @throws SystemError */
export function socketPair(): [number, number] {
  const { ints } = scratch();
  succeeded(libc.socketpair(AF_UNIX, SOCKET_TYPE, 0, scratchAddress(INTS)), 'socketpair');
  return [ints[0] as number, ints[1] as number];
}

/**
 * A socket that only receives and a socket that only sends to it, non-blocking and close-on-exec.
 *
 * They serve as a pipe between processes that do not trust each other. The flags of a pipe's open
 * file belong to all processes that have it, so any of them could make this one block. A call on a
 * socket says itself that it must not block.
 *
 * @throws SystemError
 */
export function oneWaySockets(): [receiveEnd: number, sendEnd: number] {
  const { ints } = scratch();
  succeeded(libc.socketpair(AF_UNIX, STREAM_TYPE, 0, scratchAddress(INTS)), 'socketpair');
  const [receiveEnd, sendEnd] = [ints[0] as number, ints[1] as number];
  libc.shutdown(sendEnd, SHUT_RD);
  return [receiveEnd, sendEnd];
}

/**
 * Opens a listening socket at a path, or at `'@name'` in the abstract namespace, which has no file.
 * Every process of the network namespace can connect to an abstract name: see {@link
 * peerCredentials}. The file of a path has mode 0600; it is neither removed before nor unlinked
 * after. An abstract name disappears with its last descriptor.
 *
 * @throws SystemError EADDRINUSE if the name is taken
 * @throws RangeError for a name that is empty, longer than 107 bytes, or contains NUL
 */
export const listenSocket = (name: string, backlog = 128): number =>
  openSocket(name, SOCKET_TYPE, (fd, byteLength) => {
    // bind takes the mode of the file from the socket: it never exists with another mode.
    fchmodSync(fd, 0o600);
    succeeded(libc.bind(fd, scratchAddress(NAME), byteLength), 'bind');
    try {
      succeeded(libc.listen(fd, backlog), 'listen');
    } catch (error) {
      // The file is this call's own, and nobody would answer there.
      if (!name.startsWith('@')) unlinkSync(name);
      throw error;
    }
  });

/**
 * A socket connected to a listener.
 *
 * @throws SystemError ECONNREFUSED or ENOENT if nobody listens, EAGAIN if the listener's queue
 * is full
 * @throws RangeError as {@link listenSocket}
 */
export const connectSocket = (name: string): number =>
  openSocket(name, SOCKET_TYPE, (fd, byteLength) => {
    succeeded(libc.connect(fd, scratchAddress(NAME), byteLength), 'connect');
  });

/**
 * Whether an open socket of any process has this path. Its owner does not notice the check.
 *
 * @throws SystemError ENOENT if the file does not exist, EACCES if this process may not know
 * @throws RangeError as {@link listenSocket}
 */
export function isSocketInUse(path: string): boolean {
  let status = 0;
  // For a datagram socket the kernel fails with another error, before it notifies the owner.
  const fd = openSocket(path, SOCK_DGRAM | SOCK_CLOEXEC, (probe, byteLength) => {
    status = libc.connect(probe, scratchAddress(NAME), byteLength) < 0 ? errno() : 0;
  });
  closeFd(fd);
  if (status !== 0 && status !== EPROTOTYPE && status !== ECONNREFUSED)
    throw new SystemError('connect', status);
  return status !== ECONNREFUSED;
}

/** The next connection of a listener, or undefined if none is pending. @throws SystemError */
export function acceptSocket(listener: number): number | undefined {
  const fd = libc.accept4(checkFd(listener, 'socket'), 0, 0, SOCK_CLOEXEC | SOCK_NONBLOCK);
  if (fd < 0 && errno() === EAGAIN) return undefined;
  return succeeded(fd, 'accept4');
}

/**
 * The process that connected or listened at the other end. For a socket pair it is the process that
 * created the pair, wherever the ends are now.
 *
 * @throws SystemError
 */
export function peerCredentials(socket: number): PeerCredentials {
  const { ints } = scratch();
  ints[3] = 12;
  succeeded(
    libc.getsockopt(
      checkFd(socket, 'socket'),
      SOL_SOCKET,
      SO_PEERCRED,
      scratchAddress(INTS),
      scratchAddress(INTS + 12),
    ),
    'getsockopt',
  );
  // struct ucred: the ids are unsigned
  return { pid: ints[0] as number, uid: (ints[1] as number) >>> 0, gid: (ints[2] as number) >>> 0 };
}

/**
 * Whether a descriptor is a connected socket of the kind that this file creates. Check descriptors
 * from outside before sending through them.
 *
 * @throws SystemError ENOTSOCK, EBADF
 */
export const isMessageSocket = (fd: number): boolean =>
  readIntOption(fd, SO_DOMAIN) === AF_UNIX &&
  readIntOption(fd, SO_TYPE) === SOCK_SEQPACKET &&
  readIntOption(fd, SO_ACCEPTCONN) === 0;

/** Whether a descriptor, from any process, can be the receiving end of {@link oneWaySockets}. */
export const isReceiveEnd = (fd: number): boolean =>
  isUnixStream(fd) && isNameless(fd, 'getsockname') && isNameless(fd, 'getpeername');

/**
 * Whether a descriptor, from any process, can be the sending end of {@link oneWaySockets}. From now on
 * nothing can arrive there: its queue could hold descriptors whose close blocks.
 */
export const isSendEnd = (fd: number): boolean =>
  isReceiveEnd(fd) && libc.shutdown(fd, SHUT_RD) === 0 && unreadByteLength(fd) === 0;

function isUnixStream(fd: number): boolean {
  try {
    return readIntOption(fd, SO_DOMAIN) === AF_UNIX && readIntOption(fd, SO_TYPE) === SOCK_STREAM;
  } catch (error) {
    if (error instanceof SystemError) return false;
    throw error;
  }
}

/**
 * Only the ends of a socket pair both have no name. A named socket may belong to another program,
 * which would take what is sent there as this process's words.
 */
function isNameless(socket: number, call: 'getsockname' | 'getpeername'): boolean {
  const { ints } = scratch();
  ints[3] = NAME_BYTE_LENGTH;
  const status = libc[call](socket, scratchAddress(NAME), scratchAddress(INTS + 12));
  return status === 0 && ints[3] === FAMILY_BYTE_LENGTH;
}

function unreadByteLength(socket: number): number | undefined {
  const { ints } = scratch();
  return libc.ioctl(socket, SIOCINQ, scratchAddress(INTS)) === 0 ? ints[0] : undefined;
}

function readIntOption(socket: number, option: number): number {
  const { ints } = scratch();
  ints[3] = 4;
  succeeded(
    libc.getsockopt(
      checkFd(socket, 'socket'),
      SOL_SOCKET,
      option,
      scratchAddress(INTS),
      scratchAddress(INTS + 12),
    ),
    'getsockopt',
  );
  return ints[0] as number;
}

/**
 * Shuts a connection down and closes its socket. Unread messages may carry descriptors, which the
 * kernel would close in this call, however long that takes. They are received and discarded first.
 *
 * @param fd a socket that no other process has
 * @throws SystemError EBADF if it is not open
 */
export function closeSocket(fd: number): void {
  const { ints } = scratch();
  ints[0] = 1;
  libc.setsockopt(checkFd(fd, 'close'), SOL_SOCKET, SO_PASSCRED, scratchAddress(INTS), 4);
  // No message can arrive after this.
  libc.shutdown(fd, SHUT_RDWR);
  if (discardUnread(fd) || !isOpenFd(fd)) closeFd(fd);
  else closeOffThread(fd);
}

/** Closes a listener like {@link closeSocket}. Pending connections are refused. */
export function closeListener(fd: number): void {
  libc.shutdown(checkFd(fd, 'close'), SHUT_RDWR);
  const accept = (): number => libc.accept4(fd, 0, 0, SOCK_CLOEXEC | SOCK_NONBLOCK);
  for (let socket = accept(); socket >= 0; socket = accept()) closeSocket(socket);
  // Without a free descriptor, connections are left in the queue.
  if (isShortage(new SystemError('accept4', errno()))) closeOffThread(fd);
  else closeFd(fd);
}

const AF_UNIX = 1;
const SOCK_STREAM = 1;
const SOCK_DGRAM = 2;
const SOCK_SEQPACKET = 5;
const SOCK_NONBLOCK = 0x800;
const SOCK_CLOEXEC = 0x8_0000;
const SOCKET_TYPE = SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC;
const STREAM_TYPE = SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC;
const SOL_SOCKET = 1;
const SO_TYPE = 3;
const SO_PEERCRED = 17;
const SO_ACCEPTCONN = 30;
const SO_DOMAIN = 39;
const SO_PASSCRED = 16;
const SHUT_RD = 0;
const SHUT_RDWR = 2;
const SIOCINQ = 0x541b;
/** The length of a socket's name that has only its address family. */
const FAMILY_BYTE_LENGTH = 2;
const EAGAIN = 11;
const EPROTOTYPE = 91;
const ECONNREFUSED = 111;

// Native scratch memory, allocated at first use. Offsets of four ints and of struct sockaddr_un.
const INTS = 0;
const NAME = 16;
const NAME_BYTE_LENGTH = 112;
/** The longest path or abstract name of a socket, in bytes. */
export const MAX_SOCKET_NAME_BYTE_LENGTH = 107;

interface Scratch {
  readonly address: Address;
  readonly bytes: Uint8Array;
  readonly view: DataView;
  readonly ints: Int32Array;
}

let scratchMemory: Scratch | undefined;
function scratch(): Scratch {
  if (scratchMemory) return scratchMemory;
  const byteLength = NAME + NAME_BYTE_LENGTH;
  const address = allocatePermanent(byteLength);
  const buffer = viewMemory(address, byteLength);
  const [bytes, view] = [new Uint8Array(buffer), new DataView(buffer)];
  scratchMemory = { address, bytes, view, ints: new Int32Array(buffer, INTS, 4) };
  return scratchMemory;
}

const scratchAddress = (offset: number): number => scratch().address + offset;

/** Writes the sockaddr_un and returns its length. */
function writeName(name: string): number {
  const isAbstract = name.startsWith('@');
  const encoded = Buffer.from(isAbstract ? name.slice(1) : name);
  if (encoded.length < 1 || encoded.length > MAX_SOCKET_NAME_BYTE_LENGTH || encoded.includes(0))
    throw new RangeError(
      `a socket's name has 1 to ${MAX_SOCKET_NAME_BYTE_LENGTH} bytes and no NUL: ${JSON.stringify(name)}`,
    );
  const { bytes, view } = scratch();
  bytes.fill(0, NAME, NAME + NAME_BYTE_LENGTH);
  view.setUint16(NAME, AF_UNIX, true);
  bytes.set(encoded, NAME + 2 + (isAbstract ? 1 : 0));
  // Both have one NUL: an abstract name in front, a path at its end.
  return 2 + encoded.length + 1;
}

function openSocket(
  name: string,
  type: number,
  use: (fd: number, nameByteLength: number) => void,
): number {
  const nameByteLength = writeName(name);
  const fd = succeeded(libc.socket(AF_UNIX, type, 0), 'socket');
  try {
    use(fd, nameByteLength);
    return fd;
  } catch (error) {
    closeFd(fd);
    throw error;
  }
}
