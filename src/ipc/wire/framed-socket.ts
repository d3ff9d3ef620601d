import { discardFds } from '../../../ffi/linux/close-fd.ts';
import { closeFd, duplicateFd, SystemError } from '../../../ffi/linux/libc.ts';
import {
  isGone,
  type SocketMessage,
  sendMessage,
  takeMessage,
} from '../../../ffi/linux/message.ts';
import { type FdWatch, type Readiness, watchFd } from '../../../ffi/linux/poll.ts';
import { closeSocket } from '../../../ffi/linux/socket.ts';
import { MAX_TIMER_MS } from '../../deadline.ts';
import { IpcError } from '../../errors.ts';
import { formatBytes } from '../../validate.ts';
import { FrameKind, HEADER_BYTE_LENGTH } from '../protocol.ts';
import {
  FrameAssembler,
  type FrameHeader,
  helloFrame,
  type Message,
  readHello,
  writeHeader,
} from './frames.ts';
import { FRAGMENT_BYTE_LENGTH, MAX_UNSENT_BYTE_LENGTH, MAX_UNSENT_VALUES } from './limits.ts';

/** Handles the events of a {@link FramedSocket}. */
export interface FramedSocketHandler {
  /** Whether more messages are wanted now. */
  wantsMore(): boolean;
  /**
   * Takes a complete message. Returns whether a caller waited for it. If it throws, `onFailure` is
   * called.
   */
  onMessage(arrived: Message): boolean;
  /** The peer has closed its socket, and everything that it sent was read. */
  onSocketEnd(): void;
  /** The peer broke the protocol, or the socket failed. */
  onFailure(error: unknown): void;
  /** Everything that was queued has been sent. */
  onDrained(): void;
}

/** A socket on the event loop, with the messages that arrive and those that are queued. */
export class FramedSocket {
  readonly #handler: FramedSocketHandler;
  readonly sendQueue = new SendQueue();
  readonly #assembler = new FrameAssembler();
  #fd: number | undefined;
  #watch: FdWatch | undefined;
  #watched = { readable: false, writable: false };
  #retry: NodeJS.Timeout | undefined;
  #isReferenced = true;
  /** Keeps the process alive while an open socket is not watched. */
  #keepAlive: NodeJS.Timeout | undefined;
  #isPeerGone = false;
  /** What was read since the peer's end was known. */
  #drainedAfterEnd = { frames: 0, byteLength: 0 };
  #hasMet = false;
  /** How many messages callers have read directly since the last turn of the event loop. */
  #readsThisTick = 0;

  /** How often {@link readNow} has found nothing, or was left out, since it found something. */
  #missedReads = 0;

  /** @param fd the socket. This object owns it from now on */
  constructor(fd: number, handler: FramedSocketHandler) {
    this.#handler = handler;
    this.#fd = fd;
    try {
      sendHello(fd);
      this.#updateWatch(true);
    } catch (error) {
      closeSocket(fd);
      throw error;
    }
  }

  /** Whether the peer has said which versions it speaks: it does so as soon as it exists. */
  get hasMet(): boolean {
    return this.#hasMet;
  }

  get isOpen(): boolean {
    return this.#fd !== undefined;
  }

  /** Whether the peer is gone. What it left in the socket is finite and tells why it ended. */
  get isEnding(): boolean {
    return this.#isPeerGone || this.sendQueue.isBroken;
  }

  /** As {@link SendQueue.post}. @throws SystemError */
  post(
    type: MessageType,
    bytes: Buffer,
    fds: readonly number[],
    onDropped?: () => void,
    acknowledged?: Promise<unknown>,
  ): Promise<void> | undefined {
    const sending = this.sendQueue.post(
      this.#fd as number,
      type,
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

  /**
   * Reads what the kernel already has, without a turn of the event loop. Without it, messages of
   * which many are under way take 1.4 times as long (`npm run bench -- hand-over --case
   * connection.message`).
   */
  readNow(): void {
    if (this.#readsThisTick >= MAX_FRAMES_PER_TICK) return;
    // Where one message is under way at a time, there is nothing yet: the call would be in vain each time.
    if (this.#missedReads >= MAX_MISSED_READS && this.#missedReads++ % READS_PER_LOOK !== 0) return;
    const read = this.#readOne('leave the end');
    if (read === 'frame' || read === 'awaited') {
      this.#readsThisTick += 1;
      this.#missedReads = 0;
    } else this.#missedReads += 1;
  }

  /**
   * Reads once what the kernel has. Returns 'over' if only the event loop can tell what comes next.
   */
  poll(): Exclude<ReadResult, 'end'> | 'over' {
    // The event loop has turned since.
    this.#readsThisTick = 0;
    if (this.#fd === undefined || this.#isPeerGone || !this.#handler.wantsMore()) return 'over';
    const read = this.#readOne('leave the end');
    return read === 'end' ? 'over' : read;
  }

  /** Continues reading after `wantsMore` returned false. */
  resume(): void {
    if (this.isEnding) setImmediate(() => this.#read());
    else this.#updateWatch();
  }

  /**
   * Reads what the kernel still has and then ends, even if another process holds the peer's socket.
   */
  markPeerGone(): void {
    this.#isPeerGone = true;
    this.#read();
  }

  /** Reads the bytes that an ended peer has left. */
  readToEnd(): void {
    this.#read();
  }

  setReferenced(isReferenced: boolean): void {
    this.#isReferenced = isReferenced;
    if (isReferenced) this.#watch?.ref();
    else this.#watch?.unref();
    this.#updateKeepAlive();
  }

  /** Closes the socket and drops everything unsent. The second call does nothing. */
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
      const read = this.#readOne('report the end');
      if (read === 'nothing' || read === 'end') return;
      // The waiting caller goes first. The socket becomes readable again if more is there, unless
      // the peer is gone: then it may not be watched.
      if (read === 'awaited' && !this.isEnding) return;
    }
    // Another holder of the peer's socket must not keep this process from its other work.
    if (this.isEnding) setImmediate(() => this.#read());
  }

  /**
   * Reads one frame from the kernel, if there is one.
   *
   * @param atEnd 'leave the end' does not report the end now: by the next turn of the loop its
   * reason may be known
   */
  #readOne(atEnd: 'report the end' | 'leave the end'): ReadResult {
    if (this.#fd === undefined) return 'nothing';
    try {
      const message = receive(this.#fd);
      if (message === undefined && !this.#isPeerGone) return 'nothing';
      if (message === undefined || message === 'end' || this.#exceedsDrainLimit(message)) {
        if (atEnd === 'report the end') this.#handler.onSocketEnd();
        return 'end';
      }
      if (!this.#hasMet) {
        this.#meet(message);
        // A caller waits for what comes behind it.
        return this.#readOne(atEnd);
      }
      const arrived = this.#assembler.add(message);
      return arrived && this.#handler.onMessage(arrived) ? 'awaited' : 'frame';
    } catch (error) {
      this.#handler.onFailure(error);
      return 'nothing';
    }
  }

  /** Takes the first frame of the peer. @throws IpcError if no version is common to both */
  #meet({ data, fds }: SocketMessage): void {
    discardFds(fds);
    readHello(data);
    this.#hasMet = true;
  }

  #exceedsDrainLimit({ data, fds }: SocketMessage): boolean {
    if (!this.isEnding) return false;
    this.#drainedAfterEnd.frames += 1;
    this.#drainedAfterEnd.byteLength += data.byteLength;
    const { frames, byteLength } = this.#drainedAfterEnd;
    if (frames <= MAX_DRAINED_FRAMES && byteLength <= MAX_DRAINED_BYTE_LENGTH) return false;
    discardFds(fds);
    return true;
  }

  #updateKeepAlive(): void {
    const { readable, writable } = this.#watched;
    const isPaused = !readable && !writable;
    const isNeeded = this.#fd !== undefined && this.#isReferenced && isPaused;
    if (isNeeded) this.#keepAlive ??= setInterval(() => {}, MAX_TIMER_MS);
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

  /**
   * Watches the socket for what is needed now. Changes the existing watch instead of making a new
   * one.
   */
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

// ---- Messages that are not sent yet ----

/** The messages for which the kernel has no room yet, in order. */
export class SendQueue {
  readonly #queued: QueuedMessage[] = [];
  #byteLength = 0;
  #sequence = 0;

  /** Whether this user has too many descriptors in flight. The socket itself has room. */
  isShortOfFds = false;
  /**
   * Whether the peer has closed its socket. Queued messages stay until the peer's last messages
   * tell why.
   */
  isBroken = false;

  get isEmpty(): boolean {
    return this.#queued.length === 0;
  }

  get length(): number {
    return this.#queued.length;
  }

  get byteLength(): number {
    return this.#byteLength;
  }

  /** Whether the first message waits for an acknowledgement. The socket itself may have room. */
  get isAwaitingAck(): boolean {
    return this.#queued[0]?.isAwaitingAck === true;
  }

  /** @throws IpcError if too much is queued already */
  checkCapacity(): void {
    if (this.#queued.length < MAX_UNSENT_VALUES && this.#byteLength < MAX_UNSENT_BYTE_LENGTH)
      return;
    throw new IpcError(
      `${this.#queued.length} values of ${formatBytes(this.#byteLength)} are already waiting to be sent: ` +
        'await send() before the next one',
      undefined,
      'limit-exceeded',
    );
  }

  /**
   * Sends a message at once and returns undefined, or queues a copy and returns a promise.
   *
   * @param type what is sent
   * @param bytes with room for a header in front; free to reuse after the call
   * @param fds remain the caller's
   * @param onDropped called if the message is never sent, unless this call throws
   * @param acknowledged the message, and those after it, wait for this promise
   * @throws SystemError as sendMessage, except when the peer has closed; IpcError if there are no
   * descriptors left for copies of `fds`
   */
  post(
    socket: number,
    { kind, request }: MessageType,
    bytes: Buffer,
    fds: readonly number[],
    onDropped?: () => void,
    acknowledged?: Promise<unknown>,
  ): Promise<void> | undefined {
    const value: UnsentMessage = {
      kind,
      request,
      bytes,
      fds,
      onDropped,
      isAwaitingAck: acknowledged !== undefined,
      offset: 0,
    };
    if (acknowledged) return this.#enqueue(value, acknowledged);
    const isSent = this.isEmpty && !this.isBroken && this.#send(socket, value);
    return isSent ? undefined : this.#enqueue(value);
  }

  /** Sends what the kernel has room for. @throws SystemError as sendMessage */
  flush(socket: number): void {
    for (;;) {
      const first = this.#queued[0];
      if (!first || first.isAwaitingAck || this.isBroken || !this.#send(socket, first)) return;
      this.#remove(first).resolve();
    }
  }

  /** Drops everything that is queued. */
  rejectAll(error: unknown): void {
    this.#drop([...this.#queued], error);
    this.isShortOfFds = false;
  }

  /**
   * Drops the values, requests and responses of which nothing was sent. Control messages stay.
   *
   * @param only the one kind to drop
   */
  rejectUnstarted(error: unknown, only?: FrameKind): void {
    const unstarted = this.#queued.filter(
      ({ kind, offset }) => offset === 0 && (only ? kind === only : kind !== FrameKind.control),
    );
    this.#drop(unstarted, error);
    if (!unstarted.every(({ fds }) => fds.length === 0)) this.isShortOfFds = false;
  }

  #send(socket: number, value: UnsentMessage): boolean {
    this.isShortOfFds = false;
    try {
      if (!sendFrames(socket, value, this.#sequence)) return false;
      this.#sequence = (this.#sequence + 1) >>> 0;
      return true;
    } catch (error) {
      if (!(error instanceof SystemError)) throw error;
      if (error.code === 'ETOOMANYREFS') this.isShortOfFds = true;
      else if (isGone(error)) this.isBroken = true;
      else throw error;
      return false;
    }
  }

  #enqueue({ bytes, fds, ...rest }: UnsentMessage, acknowledged?: Promise<unknown>): Promise<void> {
    // The owners may close theirs before there is room. Descriptors that were sent need no copy.
    const duplicates = rest.offset > 0 ? [] : duplicateAll(fds);
    this.#byteLength += bytes.byteLength;
    return new Promise((resolve, reject) => {
      const queued = { ...rest, bytes: Buffer.from(bytes), fds: duplicates, resolve, reject };
      this.#queued.push(queued);
      void acknowledged?.then(() => {
        queued.isAwaitingAck = false;
      });
    });
  }

  /**
   * Calls `onDropped` for the newest first, so that older control entries end up in front of newer
   * ones.
   */
  #drop(dropped: readonly QueuedMessage[], error: unknown): void {
    for (const each of dropped) this.#remove(each).reject(error);
    for (const each of dropped.toReversed()) each.onDropped?.();
  }

  #remove(value: QueuedMessage): QueuedMessage {
    this.#queued.splice(this.#queued.indexOf(value), 1);
    this.#byteLength -= value.bytes.byteLength;
    value.fds.forEach(closeFd);
    return value;
  }
}

/** The kind of a message, and its number if it is a request or a response. */
export type MessageType = Pick<FrameHeader, 'kind' | 'request'>;

/** A message that is being sent. */
interface UnsentMessage extends MessageType {
  /** With room for a header in front. Later headers overwrite bytes that were already sent. */
  readonly bytes: Buffer;
  readonly fds: readonly number[];
  /** Called if the message is never sent. */
  readonly onDropped: (() => void) | undefined;
  /** Whether owners of forwarded objects must still acknowledge before it is sent. */
  isAwaitingAck: boolean;
  /** How many bytes the kernel has taken. */
  offset: number;
}

interface QueuedMessage extends UnsentMessage {
  resolve(): void;
  reject(error: unknown): void;
}

/** Sends as much as the kernel takes. Returns whether that was everything. */
function sendFrames(socket: number, value: UnsentMessage, sequence: number): boolean {
  const byteLength = value.bytes.byteLength - HEADER_BYTE_LENGTH;
  while (value.offset < byteLength) {
    const { kind, request, bytes, offset } = value;
    const part = Math.min(FRAGMENT_BYTE_LENGTH, byteLength - offset);
    writeHeader(bytes, offset, { kind, sequence, byteLength, offset, request });
    const end = offset + HEADER_BYTE_LENGTH + part;
    const isWhole = offset === 0 && end === bytes.byteLength;
    const frame = isWhole ? bytes : bytes.subarray(offset, end);
    if (!sendMessage(socket, frame, offset === 0 ? value.fds : [])) return false;
    value.offset += part;
  }
  return true;
}

function duplicateAll(fds: readonly number[]): number[] {
  const copies: number[] = [];
  try {
    for (const fd of fds) copies.push(duplicateFd(fd));
    return copies;
  } catch (error) {
    copies.forEach(closeFd);
    if (!(error instanceof SystemError)) throw error;
    throw new IpcError(
      'cannot queue the value: there are not enough descriptors to duplicate its file descriptors',
      error,
    );
  }
}

// ---- Limits, and one read ----

/** After this many frames the event loop gets a turn. */
const MAX_FRAMES_PER_TICK = 32;
/** After so many reads in vain, {@link FramedSocket.readNow} reads once in READS_PER_LOOK calls, until one finds a frame. */
const MAX_MISSED_READS = 8;
const READS_PER_LOOK = 16;
/** The kernel does not report when fewer descriptors are in flight, so sending is retried. */
const RETRY_MS = 5;
/**
 * The most that is read after the peer has ended, although nobody has asked for it yet. The kernel
 * buffers less for one sender, so a process that still holds the peer's socket cannot prolong the
 * end.
 */
const MAX_DRAINED_FRAMES = 4096;
const MAX_DRAINED_BYTE_LENGTH = 4 << 20;

/** The result of one read. 'awaited' means that a caller waited for the completed message. */
type ReadResult = 'nothing' | 'frame' | 'awaited' | 'end';

/** Says first which versions this end speaks. What is wrong with the socket, its next use reports. */
function sendHello(fd: number): void {
  try {
    sendMessage(fd, helloFrame());
  } catch (error) {
    if (!(error instanceof SystemError)) throw error;
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
