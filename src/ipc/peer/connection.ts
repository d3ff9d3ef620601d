import { closeFd, SystemError } from '../../../ffi/libc.ts';
import { type FdWatch, type Readiness, watchFd } from '../../../ffi/poll.ts';
import { type SocketMessage, takeMessage } from '../../../ffi/socket.ts';
import { ClosedError, IpcError } from '../../errors.ts';
import { endSession, type ParcelSession } from '../parcel.ts';
import { Assembly } from './assembly.ts';
import { ByteWriter } from './byte-writer.ts';
import { type DecodedValue, decodeValue, type KnownDescriptors } from './decode.ts';
import { encodeValue } from './encode.ts';
import { Inbox } from './inbox.ts';
import { openValue } from './open.ts';
import { Outbox } from './outbox.ts';

/** Other work of the loop comes in between after so many, however they are taken. */
const MAX_PACKETS_PER_TURN = 32;
/** For descriptors that are too many on their way: nothing tells when they are fewer. */
const RETRY_MS = 5;

/** One end of a connection: a socket on the event loop, what came through it, and what is to go. */
export class Connection {
  /** Who is at the other end, in words. */
  readonly other: string;
  readonly #session: ParcelSession = { sent: new Set(), received: new Map() };
  readonly #known: KnownDescriptors = new Map();
  readonly #inbox = new Inbox();
  readonly #outbox = new Outbox();
  readonly #assembly = new Assembly();
  #fd: number | undefined;
  #watch: FdWatch | undefined;
  #watches = { readable: false, writable: false };
  #retry: NodeJS.Timeout | undefined;
  #isPaused = false;
  #isReferenced = true;
  #isOtherGone = false;
  /** How many values were read since the last turn of the loop by those who asked for them. */
  #readAtOnce = 0;
  #end: Error | undefined;
  /** Called once nothing can be sent, and nothing is left to be received. */
  onOver: (() => void) | undefined;

  /** @param fd the socket, which is this connection's from now on */
  constructor(fd: number, other: string) {
    this.other = other;
    this.#fd = fd;
    try {
      this.#rewatch();
    } catch (error) {
      closeFd(fd);
      throw error;
    }
  }

  /** Why it ended: a ClosedError where that is nobody's fault. */
  get end(): Error | undefined {
    return this.#end;
  }

  /**
   * Sends a value at once (then the answer is undefined), or as soon as there is room.
   *
   * @throws TypeError, RangeError, IpcError as {@link encodeValue}; ClosedError after the end
   */
  post(value: unknown): Promise<void> | undefined {
    if (this.#end) throw this.#end;
    this.#outbox.checkRoom();
    return ByteWriter.use((writer) => {
      const fds = encodeValue(writer, value, this.#session);
      // A getter in the value may have closed it.
      if (this.#end || this.#fd === undefined) throw this.#end;
      try {
        const sending = this.#outbox.post(this.#fd, writer.written, fds);
        if (sending) this.#rewatch();
        return sending;
      } catch (error) {
        throw this.#sendFailed(error);
      }
    });
  }

  /** Asks for the next value; answers with the way to ask no more. */
  take(resolve: (value: unknown) => void, reject: (error: unknown) => void): () => void {
    // What the kernel has already needs no turn of the loop.
    if (this.#inbox.isIdle && this.#readAtOnce < MAX_PACKETS_PER_TURN)
      if (this.#readOne({ tellsEnd: false }) !== 'nothing') this.#readAtOnce += 1;
    const cancel = this.#inbox.take(resolve, reject);
    if (this.#isPaused && this.#inbox.hasRoom) this.#resume();
    if (this.#inbox.isOver) this.#tellOver();
    return cancel;
  }

  /** What the kernel has is taken still; then it is the end, whoever else holds the other socket. */
  otherIsGone(): void {
    this.#isOtherGone = true;
    if (!this.#isPaused) this.#read();
  }

  /** Ends it here, with all that was neither sent nor taken. The second time does nothing. */
  close(): void {
    this.#finish(new ClosedError('this Peer is closed'));
    this.#inbox.clear();
    this.#tellOver();
  }

  /** Ends it because of what the other end did: that is told after what came before. */
  fail(error: IpcError): void {
    this.#finish(error);
  }

  setReferenced(isReferenced: boolean): void {
    this.#isReferenced = isReferenced;
    if (isReferenced) this.#watch?.ref();
    else this.#watch?.unref();
  }

  #finish(reason: Error): void {
    if (this.#end) return;
    this.#end = reason;
    clearTimeout(this.#retry);
    this.#watch?.close();
    this.#watch = undefined;
    if (this.#fd !== undefined) closeFd(this.#fd);
    this.#fd = undefined;
    this.#assembly.clear();
    this.#outbox.rejectAll(reason);
    this.#inbox.end(reason);
    if (this.#inbox.isOver) this.#tellOver();
  }

  #tellOver(): void {
    endSession(this.#session);
    this.#known.clear();
    this.onOver?.();
    this.onOver = undefined;
  }

  #ended(): ClosedError {
    return new ClosedError(`this Peer is closed: ${this.other} has closed the connection`);
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
      this.#outbox.flush(this.#fd);
    } catch (error) {
      this.#outbox.rejectAll(this.#sendFailed(error));
    }
  }

  /** What a failed send means: the other end may be gone, and what it sent be there still. */
  #sendFailed(error: unknown): unknown {
    if (!(error instanceof SystemError)) return error;
    if (isGone(error)) return this.#ended();
    const failure = new IpcError(`nothing can be sent to ${this.other}: ${error.message}`);
    this.fail(failure);
    return failure;
  }

  #read(): void {
    for (let n = 0; this.#isOtherGone || n < MAX_PACKETS_PER_TURN; n++) {
      if (this.#fd === undefined) return;
      if (this.#inbox.isFull) {
        this.#isPaused = true;
        return;
      }
      const read = this.#readOne();
      if (read === 'nothing') return;
      // Who waited for it goes on at once; the socket tells again of what it still has.
      if (read === 'awaited' && !this.#isOtherGone) return;
    }
  }

  /**
   * Takes one packet from the kernel, if there is one.
   *
   * @param tellsEnd false leaves the end to the next turn of the loop, which may know why
   */
  #readOne({ tellsEnd } = { tellsEnd: true }): 'nothing' | 'packet' | 'awaited' {
    if (this.#fd === undefined) return 'nothing';
    try {
      const message = receive(this.#fd);
      if (message === undefined && !this.#isOtherGone) return 'nothing';
      if (message === undefined || message === 'end') {
        if (tellsEnd) this.#finish(this.#ended());
        return 'nothing';
      }
      return this.#arrived(message) ? 'awaited' : 'packet';
    } catch (error) {
      // Whatever it is: the process must not end because of another one's message.
      const reason = error instanceof Error ? error.message : String(error);
      this.fail(new IpcError(`the connection to ${this.other} was closed: ${reason}`));
      return 'nothing';
    }
  }

  /** Takes a packet in; answers whether it completed a value that someone waited for. */
  #arrived(message: SocketMessage): boolean {
    const arrived = this.#assembly.add(message);
    if (!arrived) return false;
    const { bytes, fds } = arrived;
    let decoded: DecodedValue;
    try {
      decoded = decodeValue(bytes, fds.length, this.#known);
    } catch (error) {
      fds.forEach(closeFd);
      throw error;
    }
    return this.#inbox.put(this.#opened(decoded, fds), bytes.byteLength);
  }

  /** A sound message about what cannot be opened here concerns those who take it, not the rest. */
  #opened(decoded: DecodedValue, fds: readonly number[]) {
    try {
      return openValue(decoded, fds, this.#session);
    } catch (error) {
      return { error };
    }
  }

  #resume(): void {
    this.#isPaused = false;
    if (this.#isOtherGone) setImmediate(() => this.#read());
    else this.#rewatch();
  }

  #retryLater(): void {
    this.#retry ??= setTimeout(() => {
      this.#retry = undefined;
      this.#flush();
      this.#rewatch();
    }, RETRY_MS);
  }

  /** Watches the socket for what is wanted of it now: a descriptor has one watch at a time. */
  #rewatch(): void {
    if (this.#fd === undefined) return;
    const readable = !this.#isPaused;
    const writable = !this.#outbox.isEmpty && !this.#outbox.isShortOfFds;
    if (this.#outbox.isShortOfFds) this.#retryLater();
    if (readable === this.#watches.readable && writable === this.#watches.writable) return;
    this.#watches = { readable, writable };
    this.#watch?.close();
    this.#watch = undefined;
    if (!readable && !writable) return;
    this.#watch = watchFd(this.#fd, this.#watches, this.#onReady);
    if (!this.#isReferenced) this.#watch.unref();
  }
}

const isGone = ({ code }: SystemError): boolean => code === 'EPIPE' || code === 'ECONNRESET';

function receive(fd: number): ReturnType<typeof takeMessage> {
  try {
    return takeMessage(fd);
  } catch (error) {
    if (error instanceof SystemError && isGone(error)) return 'end';
    throw error;
  }
}
