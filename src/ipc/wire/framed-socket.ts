import { discardFds } from '../../../ffi/linux/close-fd.ts';
import { SystemError } from '../../../ffi/linux/libc.ts';
import { isGone, type SocketMessage, takeMessage } from '../../../ffi/linux/message.ts';
import { type FdWatch, type Readiness, watchFd } from '../../../ffi/linux/poll.ts';
import { closeSocket } from '../../../ffi/linux/socket.ts';
import { FrameAssembler, type FrameKind, type Message } from './frames.ts';
import { SendQueue } from './send-queue.ts';

/** Other work of the loop comes in between after so many, however they are taken. */
const MAX_FRAMES_PER_TICK = 32;
/** For descriptors that are too many on their way: nothing tells when they are fewer. */
const RETRY_MS = 5;
/** The longest period of a timer. */
const MAX_PERIOD_MS = 2 ** 31 - 1;
/**
 * What one that has ended may have left in the socket is taken whole, although nobody takes it yet.
 * It is more than the kernel keeps for one sender: other holders of its socket must not go on.
 */
const MAX_DRAINED_FRAMES = 4096;
const MAX_DRAINED_BYTE_LENGTH = 4 << 20;

/** What was read: 'awaited' where someone waited for what it completed. */
type ReadResult = 'nothing' | 'packet' | 'awaited' | 'end';

/** Who a wire is for. */
export interface FramedSocketHandler {
  /** Whether more is wanted now. */
  wantsMore(): boolean;
  /** Takes what arrived, whole; answers whether someone waited for it. What it throws is `failed`. */
  onMessage(arrived: Message): boolean;
  /** The other end has closed its socket, and all that it sent was taken. */
  onSocketEnd(): void;
  /** The protocol was broken, or the socket has failed. */
  onFailure(error: unknown): void;
  /** All that waited to be sent has gone out. */
  onDrained(): void;
}

/** A socket on the event loop: what comes through it, and what waits to go. */
export class FramedSocket {
  readonly #handler: FramedSocketHandler;
  readonly sendQueue = new SendQueue();
  readonly #assembler = new FrameAssembler();
  #fd: number | undefined;
  #watch: FdWatch | undefined;
  #watched = { readable: false, writable: false };
  #retry: NodeJS.Timeout | undefined;
  #isReferenced = true;
  /** Keeps the process alive while the socket is not watched: an open connection does. */
  #keepAlive: NodeJS.Timeout | undefined;
  #isPeerGone = false;
  /** What was read since the end of the other end was known. */
  #drainedAfterEnd = { packets: 0, byteLength: 0 };
  /** How many messages were read since the last turn of the loop by those who asked for them. */
  #readsThisTick = 0;

  /** @param fd the socket, which is this wire's from now on */
  constructor(fd: number, handler: FramedSocketHandler) {
    this.#handler = handler;
    this.#fd = fd;
    try {
      this.#updateWatch(true);
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
    return this.#isPeerGone || this.sendQueue.isBroken;
  }

  /** As the outbox's `post`. @throws SystemError */
  post(
    kind: FrameKind,
    bytes: Buffer,
    fds: readonly number[],
    onDropped?: () => void,
    acknowledged?: Promise<unknown>,
  ): Promise<void> | undefined {
    const sending = this.sendQueue.post(
      this.#fd as number,
      kind,
      bytes,
      fds,
      onDropped,
      acknowledged,
    );
    if (sending) this.#updateWatch();
    if (this.sendQueue.isBroken) setImmediate(() => this.#read());
    void acknowledged?.then(() => {
      this.#flush();
      this.#updateWatch();
    });
    return sending;
  }

  /** Takes what the kernel has already, which needs no turn of the loop. */
  readNow(): void {
    if (this.#readsThisTick >= MAX_FRAMES_PER_TICK) return;
    const read = this.#readOne('leave the end');
    if (read === 'packet' || read === 'awaited') this.#readsThisTick += 1;
  }

  /** Looks once at what the kernel has; 'over' where only the event loop can tell what is next. */
  poll(): Exclude<ReadResult, 'end'> | 'over' {
    // The loop has turned since.
    this.#readsThisTick = 0;
    if (this.#fd === undefined || this.#isPeerGone || !this.#handler.wantsMore()) return 'over';
    const read = this.#readOne('leave the end');
    return read === 'end' ? 'over' : read;
  }

  /** More is wanted again. */
  resume(): void {
    if (this.isEnding) setImmediate(() => this.#read());
    else this.#updateWatch();
  }

  /** What the kernel has is taken still; then it is the end, whoever else holds the other socket. */
  markPeerGone(): void {
    this.#isPeerGone = true;
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
    this.#assembler.clear();
    this.sendQueue.rejectAll(reason);
  }

  readonly #onReady = ({ readable, writable }: Readiness): void => {
    this.#readsThisTick = 0;
    if (writable) this.#flush();
    if (readable) this.#read();
    this.#updateWatch();
  };

  #flush(): void {
    if (this.#fd === undefined) return;
    try {
      this.sendQueue.flush(this.#fd);
    } catch (error) {
      this.#handler.onFailure(error);
      return;
    }
    if (this.sendQueue.isEmpty) this.#handler.onDrained();
    else if (this.sendQueue.isBroken) this.#read();
  }

  #read(): void {
    for (let n = 0; n < MAX_FRAMES_PER_TICK; n++) {
      if (this.#fd === undefined || !this.#handler.wantsMore()) return;
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
  #readOne(atEnd: 'tell the end' | 'leave the end'): ReadResult {
    if (this.#fd === undefined) return 'nothing';
    try {
      const message = receive(this.#fd);
      if (message === undefined && !this.#isPeerGone) return 'nothing';
      if (message === undefined || message === 'end' || this.#exceedsDrainLimit(message)) {
        if (atEnd === 'tell the end') this.#handler.onSocketEnd();
        return 'end';
      }
      const arrived = this.#assembler.add(message);
      return arrived && this.#handler.onMessage(arrived) ? 'awaited' : 'packet';
    } catch (error) {
      this.#handler.onFailure(error);
      return 'nothing';
    }
  }

  #exceedsDrainLimit({ data, fds }: SocketMessage): boolean {
    if (!this.isEnding) return false;
    this.#drainedAfterEnd.packets += 1;
    this.#drainedAfterEnd.byteLength += data.byteLength;
    const { packets, byteLength } = this.#drainedAfterEnd;
    if (packets <= MAX_DRAINED_FRAMES && byteLength <= MAX_DRAINED_BYTE_LENGTH) return false;
    discardFds(fds);
    return true;
  }

  #updateKeepAlive(): void {
    const { readable, writable } = this.#watched;
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
      this.#updateWatch();
    }, RETRY_MS).unref();
  }

  /** Watches the socket for what is wanted of it now: its one watch is changed, never made anew. */
  #updateWatch(readable = this.#handler.wantsMore()): void {
    if (this.#fd === undefined) return;
    const { isEmpty, isShortOfFds, isAwaitingAck, isBroken } = this.sendQueue;
    const writable = !isEmpty && !isShortOfFds && !isAwaitingAck && !isBroken;
    if (isShortOfFds) this.#retryLater();
    if (readable === this.#watched.readable && writable === this.#watched.writable) return;
    this.#watched = { readable, writable };
    if (this.#watch) this.#watch.change(this.#watched);
    else this.#watch = watchFd(this.#fd, this.#watched, this.#onReady);
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
