import { discardFds } from '../../../ffi/linux/close-fd.ts';
import { SystemError } from '../../../ffi/linux/libc.ts';
import { isGone, type SocketMessage, takeMessage } from '../../../ffi/linux/message.ts';
import { type FdWatch, type Readiness, watchFd } from '../../../ffi/linux/poll.ts';
import { closeSocket } from '../../../ffi/linux/socket.ts';
import { type Arrived, Assembly, type PacketKind } from './frames.ts';
import { Outbox } from './send-queue.ts';

/** Other work of the loop comes in between after so many, however they are taken. */
const MAX_PACKETS_PER_TURN = 32;
/** For descriptors that are too many on their way: nothing tells when they are fewer. */
const RETRY_MS = 5;
/** The longest period of a timer. */
const MAX_PERIOD_MS = 2 ** 31 - 1;
/**
 * What one that has ended may have left in the socket is taken whole, although nobody takes it yet.
 * It is more than the kernel keeps for one sender: other holders of its socket must not go on.
 */
const MAX_LEFT_PACKETS = 4096;
const MAX_LEFT_BYTE_LENGTH = 4 << 20;

/** What was read: 'awaited' where someone waited for what it completed. */
type Read = 'nothing' | 'packet' | 'awaited' | 'end';

/** Who a wire is for. */
export interface WireUser {
  /** Whether more is wanted now. */
  wantsMore(): boolean;
  /** Takes what arrived, whole; answers whether someone waited for it. What it throws is `failed`. */
  arrived(arrived: Arrived): boolean;
  /** The other end has closed its socket, and all that it sent was taken. */
  ended(): void;
  /** The protocol was broken, or the socket has failed. */
  failed(error: unknown): void;
  /** All that waited to be sent has gone out. */
  drained(): void;
}

/** A socket on the event loop: what comes through it, and what waits to go. */
export class Wire {
  readonly #user: WireUser;
  readonly outbox = new Outbox();
  readonly #assembly = new Assembly();
  #fd: number | undefined;
  #watch: FdWatch | undefined;
  #watches = { readable: false, writable: false };
  #retry: NodeJS.Timeout | undefined;
  #isReferenced = true;
  /** Keeps the process alive while the socket is not watched: an open connection does. */
  #keepAlive: NodeJS.Timeout | undefined;
  #isOtherGone = false;
  /** What was read since the end of the other end was known. */
  #left = { packets: 0, byteLength: 0 };
  /** How many messages were read since the last turn of the loop by those who asked for them. */
  #readAtOnce = 0;

  /** @param fd the socket, which is this wire's from now on */
  constructor(fd: number, user: WireUser) {
    this.#user = user;
    this.#fd = fd;
    try {
      this.#rewatch(true);
    } catch (error) {
      closeSocket(fd);
      throw error;
    }
  }

  get isOpen(): boolean {
    return this.#fd !== undefined;
  }

  /** Whether the other end is gone: what it has left in the socket is finite, and tells why. */
  get isEnding(): boolean {
    return this.#isOtherGone || this.outbox.isBroken;
  }

  /** As the outbox's `post`. @throws SystemError */
  post(
    kind: PacketKind,
    bytes: Buffer,
    fds: readonly number[],
    dropped?: () => void,
    agreed?: Promise<unknown>,
  ): Promise<void> | undefined {
    const sending = this.outbox.post(this.#fd as number, kind, bytes, fds, dropped, agreed);
    if (sending) this.#rewatch();
    if (this.outbox.isBroken) setImmediate(() => this.#read());
    void agreed?.then(() => {
      this.#flush();
      this.#rewatch();
    });
    return sending;
  }

  /** Takes what the kernel has already, which needs no turn of the loop. */
  takeAtOnce(): void {
    if (this.#readAtOnce >= MAX_PACKETS_PER_TURN) return;
    const read = this.#readOne('leave the end');
    if (read === 'packet' || read === 'awaited') this.#readAtOnce += 1;
  }

  /** Looks once at what the kernel has; 'over' where only the event loop can tell what is next. */
  look(): Exclude<Read, 'end'> | 'over' {
    // The loop has turned since.
    this.#readAtOnce = 0;
    if (this.#fd === undefined || this.#isOtherGone || !this.#user.wantsMore()) return 'over';
    const read = this.#readOne('leave the end');
    return read === 'end' ? 'over' : read;
  }

  /** More is wanted again. */
  resume(): void {
    if (this.isEnding) setImmediate(() => this.#read());
    else this.#rewatch();
  }

  /** What the kernel has is taken still; then it is the end, whoever else holds the other socket. */
  otherIsGone(): void {
    this.#isOtherGone = true;
    this.#read();
  }

  /** Takes what one that is gone has left. */
  readToEnd(): void {
    this.#read();
  }

  setReferenced(isReferenced: boolean): void {
    this.#isReferenced = isReferenced;
    if (isReferenced) this.#watch?.ref();
    else this.#watch?.unref();
    this.#updateKeepAlive();
  }

  /** Closes the socket, with all that was not sent. The second time does nothing. */
  close(reason: Error): void {
    if (this.#fd === undefined) return;
    clearTimeout(this.#retry);
    this.#watch?.close();
    this.#watch = undefined;
    closeSocket(this.#fd);
    this.#fd = undefined;
    this.#updateKeepAlive();
    this.#assembly.clear();
    this.outbox.rejectAll(reason);
  }

  readonly #onReady = ({ readable, writable }: Readiness): void => {
    this.#readAtOnce = 0;
    if (writable) this.#flush();
    if (readable) this.#read();
    this.#rewatch();
  };

  #flush(): void {
    if (this.#fd === undefined) return;
    try {
      this.outbox.flush(this.#fd);
    } catch (error) {
      this.#user.failed(error);
      return;
    }
    if (this.outbox.isEmpty) this.#user.drained();
    else if (this.outbox.isBroken) this.#read();
  }

  #read(): void {
    for (let n = 0; n < MAX_PACKETS_PER_TURN; n++) {
      if (this.#fd === undefined || !this.#user.wantsMore()) return;
      const read = this.#readOne('tell the end');
      if (read === 'nothing' || read === 'end') return;
      // Who waited for it goes on at once; the socket tells again of what it still has, where it is
      // watched: of an end that is gone it may not be.
      if (read === 'awaited' && !this.isEnding) return;
    }
    // Other holders of the other socket must not keep this process from its other work.
    if (this.isEnding) setImmediate(() => this.#read());
  }

  /**
   * Takes one packet from the kernel, if there is one.
   *
   * @param atEnd leaves the end to the next turn of the loop, which may know why
   */
  #readOne(atEnd: 'tell the end' | 'leave the end'): Read {
    if (this.#fd === undefined) return 'nothing';
    try {
      const message = receive(this.#fd);
      if (message === undefined && !this.#isOtherGone) return 'nothing';
      if (message === undefined || message === 'end' || this.#isTooMuchLeft(message)) {
        if (atEnd === 'tell the end') this.#user.ended();
        return 'end';
      }
      const arrived = this.#assembly.add(message);
      return arrived && this.#user.arrived(arrived) ? 'awaited' : 'packet';
    } catch (error) {
      this.#user.failed(error);
      return 'nothing';
    }
  }

  #isTooMuchLeft({ data, fds }: SocketMessage): boolean {
    if (!this.isEnding) return false;
    this.#left.packets += 1;
    this.#left.byteLength += data.byteLength;
    const { packets, byteLength } = this.#left;
    if (packets <= MAX_LEFT_PACKETS && byteLength <= MAX_LEFT_BYTE_LENGTH) return false;
    discardFds(fds);
    return true;
  }

  #updateKeepAlive(): void {
    const { readable, writable } = this.#watches;
    const isPaused = !readable && !writable;
    const isNeeded = this.#fd !== undefined && this.#isReferenced && isPaused;
    if (isNeeded) this.#keepAlive ??= setInterval(() => {}, MAX_PERIOD_MS);
    else {
      clearInterval(this.#keepAlive);
      this.#keepAlive = undefined;
    }
  }

  #retryLater(): void {
    this.#retry ??= setTimeout(() => {
      this.#retry = undefined;
      this.#flush();
      this.#rewatch();
    }, RETRY_MS).unref();
  }

  /** Watches the socket for what is wanted of it now: its one watch is changed, never made anew. */
  #rewatch(readable = this.#user.wantsMore()): void {
    if (this.#fd === undefined) return;
    const { isEmpty, isShortOfFds, isHeld, isBroken } = this.outbox;
    const writable = !isEmpty && !isShortOfFds && !isHeld && !isBroken;
    if (isShortOfFds) this.#retryLater();
    if (readable === this.#watches.readable && writable === this.#watches.writable) return;
    this.#watches = { readable, writable };
    if (this.#watch) this.#watch.change(this.#watches);
    else this.#watch = watchFd(this.#fd, this.#watches, this.#onReady);
    if (!this.#isReferenced) this.#watch.unref();
    this.#updateKeepAlive();
  }
}

function receive(fd: number): ReturnType<typeof takeMessage> {
  try {
    return takeMessage(fd);
  } catch (error) {
    if (error instanceof SystemError && isGone(error)) return 'end';
    throw error;
  }
}
