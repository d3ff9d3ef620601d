import { discardFds } from '../../../ffi/linux/close-fd.ts';
import { closeFd } from '../../../ffi/linux/libc.ts';
import { IpcError } from '../../errors.ts';
import { ByteWriter } from '../wire/bytes.ts';
import {
  type ControlBlock,
  emptyControlBlock,
  isEmptyControlBlock,
  readControlMessage,
  writeControlBlock,
} from '../wire/control-block.ts';
import type { FramedSocket } from '../wire/framed-socket.ts';
import { FrameKind, type Message } from '../wire/frames.ts';
import { MAX_PENDING_CONTROL } from '../wire/limits.ts';
import { type DescriptorCache, type ScannedValue, ValueScan } from '../wire/value-decoder.ts';
import type { PeerState } from './peer-state.ts';

/** What the other end says beside its values, and with them. */
export class ControlReceiver {
  readonly #state: PeerState;
  readonly #onResume: () => void;
  readonly #descriptorCache: DescriptorCache = new Map();
  /** Whether the host waits for work of the other end before it believes anything more. */
  isStalled = false;

  /** @param onResume called when more can be believed */
  constructor(state: PeerState, onResume: () => void) {
    this.#state = state;
    this.#onResume = onResume;
  }

  /** Takes in what is said; closes the descriptors where it throws. @throws IpcError */
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

  /** Begins to check a value. */
  scan({ bytes }: Message): ValueScan {
    return new ValueScan(bytes, this.#descriptorCache);
  }

  /**
   * Takes in a value, and what is said with it; undefined where the check takes longer: then call it
   * again in a later turn. Closes the descriptors where it throws. @throws IpcError
   */
  receiveValue({ fds, isSingleFrame }: Message, scan: ValueScan): ScannedValue | undefined {
    try {
      // What is of one message is short, and its bytes do not last.
      while (!scan.step()) if (!isSingleFrame) return undefined;
      const scanned = scan.end(fds.length);
      this.#apply(scanned.control, []);
      // Points without a page are refused.
      this.#state.timeline.isReached(scanned.control.points);
      // From here on what is not opened has to be released.
      if (scanned.control.leases) this.#state.imports.add(scanned.control.leases);
      return scanned;
    } catch (error) {
      discardFds(fds);
      throw error;
    }
  }

  /** No more values are taken. */
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

/** What is told to the other end by itself. */
export class ControlSender {
  readonly #state: PeerState;
  readonly #socket: FramedSocket;

  constructor(state: PeerState, socket: FramedSocket) {
    this.#state = state;
    this.#socket = socket;
  }

  /**
   * Sends all that there is to tell.
   *
   * @returns false if no file descriptor is left to send it with now: try again
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

  /** Tells that this end is closed, after all else that there is to tell. As {@link sendPending}. */
  sendClosing(): boolean {
    const isAll = this.sendPending();
    this.#send({ ...emptyControlBlock, isClosing: true }, []);
    return isAll;
  }

  /** Tells that this end has nothing of the other one's, and takes nothing. @throws SystemError */
  sendDone(): void {
    this.#send({ ...emptyControlBlock, isDone: true }, []);
  }

  /** Sends this process's page of counters, before the first points of it. @throws as {@link sendPending} */
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

  /** Each with its link. */
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
    ByteWriter.use((writer) => {
      writeControlBlock(writer, tail);
      this.#socket.post(FrameKind.news, writer.written, fds)?.catch(() => {});
    });
  }
}
