/**
 * Messages of Unix sockets that keep them whole and carry descriptors (SOCK_SEQPACKET, SCM_RIGHTS).
 * Nothing here blocks. `readable` of poll.ts tells when to try again.
 */

import { allocatePermanent, viewMemory } from '../native.ts';
import type { Address } from '../types.ts';
import { discardFds } from './close-fd.ts';
import { checkFd, errno, libc, SystemError, succeeded } from './libc.ts';

/** The largest message, in bytes. */
export const MAX_MESSAGE_BYTE_LENGTH = 65_536;
/** The most descriptors of one message: the kernel's own limit. */
export const MAX_MESSAGE_FDS = 253;

/** A received message: its bytes, and descriptors that this process now owns. */
export interface SocketMessage {
  readonly data: Uint8Array;
  /** Close-on-exec. The receiver must close them. */
  readonly fds: readonly number[];
  /** Why the descriptors of the message are lost, if they are: this process has none left for them. */
  readonly shortage?: SystemError;
}

/**
 * Sends one message. The receiver gets copies of the descriptors; the caller's stay open.
 *
 * Returns false, and sends nothing, if the receiver's queue is full.
 *
 * @throws SystemError EPIPE or ECONNRESET if the other end is closed, EBADF for a descriptor
 * that is not open, ETOOMANYREFS if too many descriptors are in flight
 * @throws RangeError for an empty message (it would look like the end), or one above the limits
 */
export function sendMessage(
  socket: number,
  data: Uint8Array,
  fds: readonly number[] = [],
): boolean {
  checkFd(socket, 'socket');
  if (data.byteLength < 1 || data.byteLength > MAX_MESSAGE_BYTE_LENGTH)
    throw new RangeError(
      `cannot send ${data.byteLength} bytes: a message has 1 to ${MAX_MESSAGE_BYTE_LENGTH}`,
    );
  if (fds.length > MAX_MESSAGE_FDS)
    throw new RangeError(`cannot send ${fds.length} descriptors: at most ${MAX_MESSAGE_FDS}`);
  for (const fd of fds) checkFd(fd, 'socket');
  const { bytes, view } = scratch();
  bytes.set(data, PAYLOAD);
  // CMSG_SPACE: the length that the kernel reads includes the padding.
  const control = fds.length > 0 ? CMSG_HEADER + ((4 * fds.length + 7) & ~7) : 0;
  writeMessageHeader(data.byteLength, control);
  if (control > 0) {
    view.setBigUint64(CONTROL, BigInt(CMSG_HEADER + 4 * fds.length), true);
    view.setInt32(CONTROL + 8, SOL_SOCKET, true);
    view.setInt32(CONTROL + 12, SCM_RIGHTS, true);
    fds.forEach((fd, i) => {
      view.setInt32(CONTROL + CMSG_HEADER + 4 * i, fd, true);
    });
  }
  const sent = libc.sendmsg(socket, scratchAddress(HEADER), MSG_NOSIGNAL | MSG_DONTWAIT);
  if (sent < 0 && errno() === EAGAIN) return false;
  succeeded(sent, 'sendmsg');
  return true;
}

/** Whether an error of a socket says that its other end is closed. */
export const isGone = ({ code }: SystemError): boolean => code === 'EPIPE' || code === 'ECONNRESET';

/**
 * Returns the next message, or undefined if none has arrived. Returns `'end'` if the other end has
 * closed and all that it sent has been received.
 *
 * The sender is untrusted: check the data before use, and close unexpected descriptors.
 *
 * @throws SystemError EMFILE or ENFILE if this process has no descriptor left for those of the
 * message, EMSGSIZE if it is too long. The message is lost, and its descriptors are closed
 */
export function receiveMessage(socket: number): SocketMessage | 'end' | undefined {
  const message = takeMessage(socket);
  if (message === undefined || message === 'end') return message;
  if (message.shortage) throw message.shortage;
  return { data: message.data.slice(), fds: message.fds };
}

/**
 * Like {@link receiveMessage}, without a copy: the data are valid until the next call of any
 * function of this file. If no descriptor is left for those of the message, the data arrive alone.
 *
 * @throws SystemError as {@link receiveMessage} for anything else
 */
export function takeMessage(socket: number): SocketMessage | 'end' | undefined {
  checkFd(socket, 'socket');
  const { bytes, view } = scratch();
  let length = receive(socket);
  let failure = length < 0 ? errno() : 0;
  // The other end closed with unread messages of ours. The kernel reports that once, before the
  // messages that it had sent.
  if (failure === ECONNRESET) {
    length = receive(socket);
    failure = length < 0 ? errno() : 0;
  }
  if (failure === EAGAIN) return undefined;
  if (failure !== 0) throw new SystemError('recvmsg', failure);
  const fds = receivedFds(view);
  const flags = view.getInt32(HEADER + 48, true);
  if ((flags & MSG_TRUNC) !== 0) {
    for (const fd of fds) libc.close(fd);
    throw new SystemError('recvmsg', EMSGSIZE, "the message's data were truncated");
  }
  if (length === 0) {
    discardFds(fds);
    return 'end';
  }
  // There is room for more descriptors than the kernel sends.
  if ((flags & MSG_CTRUNC) !== 0) {
    const shortage = findShortage(socket);
    for (const fd of fds) libc.close(fd);
    return { data: bytes.subarray(PAYLOAD, PAYLOAD + length), fds: [], shortage };
  }
  return { data: bytes.subarray(PAYLOAD, PAYLOAD + length), fds };
}

/**
 * Receives everything that is left in a socket after its shutdown, and closes the descriptors.
 * Returns false if that fails. The socket needs SO_PASSCRED: only credentials distinguish an empty
 * message from the end.
 */
export function discardUnread(socket: number): boolean {
  const peek = (): number => libc.recvmsg(socket, scratchAddress(HEADER), MSG_PEEK | MSG_DONTWAIT);
  for (;;) {
    writeMessageHeader(0, 0);
    // The kernel reports a pending error once, before the messages.
    if (peek() < 0 && peek() < 0) return false;
    if ((scratch().view.getInt32(HEADER + 48, true) & MSG_CTRUNC) === 0) return true;
    try {
      const message = takeMessage(socket);
      if (typeof message === 'object') discardFds(message.fds);
    } catch {
      // Truncated, but removed from the queue.
    }
  }
}

const F_DUPFD_CLOEXEC = 1030;
const SOL_SOCKET = 1;
const SCM_RIGHTS = 1;
const SCM_PIDFD = 4;
const MSG_PEEK = 0x2;
const MSG_CTRUNC = 0x8;
const MSG_TRUNC = 0x20;
const MSG_DONTWAIT = 0x40;
const MSG_NOSIGNAL = 0x4000;
const MSG_CMSG_CLOEXEC = 0x4000_0000;
const EAGAIN = 11;
const ENFILE = 23;
const EMFILE = 24;
const EMSGSIZE = 90;
const ECONNRESET = 104;

// Native scratch memory, allocated at first use. Offsets of struct msghdr, its iovec, the control
// messages and the message.
const HEADER = 0;
const IOVEC = 64;
const CONTROL = 512;
const CMSG_HEADER = 16;
const CREDENTIALS = CMSG_HEADER + 16;
const CONTROL_BYTE_LENGTH = CREDENTIALS + CMSG_HEADER + 4 * (MAX_MESSAGE_FDS + 1);
const PAYLOAD = 4096;

interface Scratch {
  readonly address: Address;
  readonly bytes: Uint8Array;
  readonly view: DataView;
}

let scratchMemory: Scratch | undefined;
function scratch(): Scratch {
  if (scratchMemory) return scratchMemory;
  const byteLength = PAYLOAD + MAX_MESSAGE_BYTE_LENGTH;
  const address = allocatePermanent(byteLength);
  const buffer = viewMemory(address, byteLength);
  const bytes = new Uint8Array(buffer);
  const view = new DataView(buffer);
  bytes.fill(0, HEADER, CONTROL);
  view.setBigUint64(IOVEC, BigInt(address + PAYLOAD), true);
  view.setBigUint64(HEADER + 16, BigInt(address + IOVEC), true);
  view.setBigUint64(HEADER + 24, 1n, true);
  view.setBigUint64(HEADER + 32, BigInt(address + CONTROL), true);
  scratchMemory = { address, bytes, view };
  return scratchMemory;
}

const scratchAddress = (offset: number): number => scratch().address + offset;

/** Writes only the fields that change between calls: every message passes here. */
function writeMessageHeader(byteLength: number, control: number): void {
  const { view } = scratch();
  view.setUint32(IOVEC + 8, byteLength, true);
  view.setUint32(HEADER + 8, 0, true);
  view.setUint32(HEADER + 40, control, true);
  view.setUint32(HEADER + 48, 0, true);
}

function receive(socket: number): number {
  writeMessageHeader(MAX_MESSAGE_BYTE_LENGTH, CONTROL_BYTE_LENGTH);
  return libc.recvmsg(socket, scratchAddress(HEADER), MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
}

/** Returns why the kernel dropped descriptors, by opening one more. */
function findShortage(socket: number): SystemError {
  const probe = libc.fcntl(socket, F_DUPFD_CLOEXEC, 0);
  const failure = probe < 0 && errno() === ENFILE ? ENFILE : EMFILE;
  if (probe >= 0) libc.close(probe);
  return new SystemError(
    'recvmsg',
    failure,
    "too few file descriptors are left, so those of a message are lost: raise the limit ('ulimit -n')",
  );
}

function receivedFds(view: DataView): number[] {
  const fds: number[] = [];
  const end = CONTROL + view.getUint32(HEADER + 40, true);
  for (let offset = CONTROL; offset + CMSG_HEADER <= end; ) {
    const length = view.getUint32(offset, true);
    if (length < CMSG_HEADER) break;
    const isSocketLevel = view.getInt32(offset + 8, true) === SOL_SOCKET;
    const type = view.getInt32(offset + 12, true);
    for (let i = CMSG_HEADER; isSocketLevel && type === SCM_RIGHTS && i + 4 <= length; i += 4)
      fds.push(view.getInt32(offset + i, true));
    // A process that shares the socket can order one for each message (SO_PASSPIDFD).
    if (isSocketLevel && type === SCM_PIDFD) libc.close(view.getInt32(offset + CMSG_HEADER, true));
    offset += (length + 7) & ~7;
  }
  return fds;
}
