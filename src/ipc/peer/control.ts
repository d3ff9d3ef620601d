import { discardFds } from '../../../ffi/linux/close-fd.ts';
import { closeFd } from '../../../ffi/linux/libc.ts';
import { IpcError } from '../../errors.ts';
import { ByteWriter } from '../bytes.ts';
import {
  type ControlBlock,
  emptyControlBlock,
  isEmptyControlBlock,
  readControlMessage,
  writeControlBlock,
} from '../wire/control-block.ts';
import type { FramedSocket } from '../wire/framed-socket.ts';
import { FrameKind, type Message } from '../wire/frames.ts';
import { HEADER_BYTE_LENGTH, MAX_PENDING_CONTROL } from '../wire/limits.ts';
import { type DescriptorCache, type ScannedValue, ValueScan } from '../wire/value-decoder.ts';
import type { PeerState } from './peer-state.ts';

/** Applies what the peer tells in control messages and with its values. */
export class ControlReceiver {
  readonly #state: PeerState;
  readonly #onResume: () => void;
  readonly #descriptorCache: DescriptorCache = new Map();
  /** Whether nothing is read until the host has seen the end of some of the peer's work. */
  isStalled = false;

  /** @param onResume called when reading may continue */
  constructor(state: PeerState, onResume: () => void) {
    this.#state = state;
    this.#onResume = onResume;
  }

  /** Applies a control message. Closes the descriptors if it throws. @throws IpcError */
  receiveControl({ bytes, fds }: Message): ControlBlock {
    let tail: ControlBlock;
    try {
      tail = readControlMessage(bytes, fds.length);
    } catch (error) {
      discardFds(fds);
      throw error;
    }
    this.#apply(tail, fds);
    return tail;
  }

  /** Starts the check of a value. */
  scan({ bytes }: Message): ValueScan {
    return new ValueScan(bytes, this.#descriptorCache);
  }

  /**
   * Continues the check of a value, and then applies its control block. Returns undefined if the
   * check needs another turn of the event loop. Closes the descriptors if it throws. @throws
   * IpcError
   */
  receiveValue({ fds, isSingleFrame }: Message, scan: ValueScan): ScannedValue | undefined {
    try {
      // A message of a single frame is short, and its bytes are valid only now.
      while (!scan.step()) if (!isSingleFrame) return undefined;
      const scanned = scan.end(fds.length);
      this.#apply(scanned.control, []);
      // Throws for points without a page.
      this.#state.timeline.isReached(scanned.control.points);
      // From here on, objects that are not opened must be released.
      if (scanned.control.leases) this.#state.imports.add(scanned.control.leases);
      return scanned;
    } catch (error) {
      discardFds(fds);
      throw error;
    }
  }

  /** Drops the decoded descriptors: this process takes no further values. */
  clearCache(): void {
    this.#descriptorCache.clear();
  }

  #apply(tail: ControlBlock, fds: readonly number[]): void {
    if (!isEmptyControlBlock(tail)) this.#stallUntil(this.#state.applyControl(tail, fds));
    if (this.#state.pendingControlCount > MAX_PENDING_CONTROL)
      throw new IpcError(
        `${MAX_PENDING_CONTROL} things wait to be told, and nobody there reads them`,
      );
  }

  #stallUntil(points: ReturnType<PeerState['applyControl']>): void {
    if (points.length === 0) return;
    this.isStalled = true;
    void this.#state.whenReached(points).then(() => {
      this.isStalled = false;
      this.#onResume();
    });
  }
}

/** Sends control messages. */
export class ControlSender {
  readonly #state: PeerState;
  readonly #socket: FramedSocket;

  constructor(state: PeerState, socket: FramedSocket) {
    this.#state = state;
    this.#socket = socket;
  }

  /**
   * Sends everything that is pending.
   *
   * @returns false if no file descriptor is left to send it with: try again later
   * @throws SystemError if the socket has failed
   */
  sendPending(): boolean {
    try {
      this.sendTimelinePage();
      for (;;) {
        this.#sendForwardRequests();
        const tail = this.#state.takeControl();
        if (isEmptyControlBlock(tail)) return true;
        this.#sendOrRestore(tail);
      }
    } catch (error) {
      if (error instanceof IpcError) return false;
      throw error;
    }
  }

  /** Sends what is pending, and then that this end is closed. As {@link sendPending}. */
  sendClosing(): boolean {
    const isAll = this.sendPending();
    this.#send({ ...emptyControlBlock, isClosing: true }, []);
    return isAll;
  }

  /**
   * Sends that this end holds nothing of the peer and drops what still arrives. @throws SystemError
   */
  sendDone(): void {
    this.#send({ ...emptyControlBlock, isDone: true }, []);
  }

  /** Sends this process's timeline page if it was not sent yet. @throws as {@link sendPending} */
  sendTimelinePage(): void {
    this.#state.timeline.sharePage((page) => {
      this.#send({ ...emptyControlBlock, hasTimelinePage: true }, [page]);
    });
  }

  #sendOrRestore(tail: ControlBlock): void {
    try {
      this.#send(tail, []);
    } catch (error) {
      this.#state.restoreControl(tail);
      throw error;
    }
  }

  /** Sends each request with its link. */
  #sendForwardRequests(): void {
    for (;;) {
      const forwardRequests = this.#state.forwardRequester.take();
      if (forwardRequests.length === 0) return;
      const links = forwardRequests.map(({ link }) => link);
      try {
        this.#send({ ...emptyControlBlock, forwardRequests }, links);
      } catch (error) {
        this.#state.forwardRequester.restore(forwardRequests);
        throw error;
      }
      links.forEach(closeFd);
    }
  }

  #send(tail: ControlBlock, fds: readonly number[]): void {
    ByteWriter.use(HEADER_BYTE_LENGTH, (writer) => {
      writeControlBlock(writer, tail);
      this.#socket.post(FrameKind.control, writer.written, fds)?.catch(() => {});
    });
  }
}
