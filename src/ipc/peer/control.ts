import { discardFds } from '../../../ffi/linux/close-fd.ts';
import { closeFd } from '../../../ffi/linux/libc.ts';
import { IpcError } from '../../errors.ts';
import { ByteWriter } from '../wire/bytes.ts';
import { emptyTail, isNothing, readNews, type Tail, writeTail } from '../wire/control-block.ts';
import type { Wire } from '../wire/framed-socket.ts';
import { type Arrived, PacketKind } from '../wire/frames.ts';
import { MAX_UNTOLD } from '../wire/limits.ts';
import { type KnownDescriptors, type ScannedValue, ValueScan } from '../wire/value-decoder.ts';
import type { Session } from './peer-state.ts';

/** What the other end says beside its values, and with them. */
export class Hearing {
  readonly #session: Session;
  readonly #goOn: () => void;
  readonly #known: KnownDescriptors = new Map();
  /** Whether the host waits for work of the other end before it believes anything more. */
  isStalled = false;

  /** @param goOn called when more can be believed */
  constructor(session: Session, goOn: () => void) {
    this.#session = session;
    this.#goOn = goOn;
  }

  /** Takes in what is said; closes the descriptors where it throws. @throws IpcError */
  news({ bytes, fds }: Arrived): Tail {
    let tail: Tail;
    try {
      tail = readNews(bytes, fds.length);
    } catch (error) {
      discardFds(fds);
      throw error;
    }
    this.#hear(tail, fds);
    return tail;
  }

  /** Begins to check a value. */
  scan({ bytes }: Arrived): ValueScan {
    return new ValueScan(bytes, this.#known);
  }

  /**
   * Takes in a value, and what is said with it; undefined where the check takes longer: then call it
   * again in a later turn. Closes the descriptors where it throws. @throws IpcError
   */
  value({ fds, isOfMessage }: Arrived, scan: ValueScan): ScannedValue | undefined {
    try {
      // What is of one message is short, and its bytes do not last.
      while (!scan.step()) if (!isOfMessage) return undefined;
      const scanned = scan.end(fds.length);
      this.#hear(scanned.tail, []);
      // Points without a page are refused.
      this.#session.ordering.isReached(scanned.tail.points);
      // From here on what is not opened has to be released.
      if (scanned.tail.leases) this.#session.borrowed.receive(scanned.tail.leases);
      return scanned;
    } catch (error) {
      discardFds(fds);
      throw error;
    }
  }

  /** No more values are taken. */
  forget(): void {
    this.#known.clear();
  }

  #hear(tail: Tail, fds: readonly number[]): void {
    if (!isNothing(tail)) this.#wait(this.#session.hear(tail, fds));
    if (this.#session.untold > MAX_UNTOLD)
      throw new IpcError(`${MAX_UNTOLD} things wait to be told, and nobody there reads them`);
  }

  #wait(points: ReturnType<Session['hear']>): void {
    if (points.length === 0) return;
    this.isStalled = true;
    void this.#session.reached(points).then(() => {
      this.isStalled = false;
      this.#goOn();
    });
  }
}

/** What is told to the other end by itself. */
export class News {
  readonly #session: Session;
  readonly #wire: Wire;

  constructor(session: Session, wire: Wire) {
    this.#session = session;
    this.#wire = wire;
  }

  /**
   * Sends all that there is to tell.
   *
   * @returns false if no file descriptor is left to send it with now: try again
   * @throws SystemError if the socket has failed
   */
  post(): boolean {
    try {
      this.tellPage();
      for (;;) {
        this.#tellAdoptions();
        const tail = this.#session.takeNews();
        if (isNothing(tail)) return true;
        this.#postNews(tail);
      }
    } catch (error) {
      if (error instanceof IpcError) return false;
      throw error;
    }
  }

  /** Tells that this end is closed, after all else that there is to tell. As {@link post}. */
  postClosing(): boolean {
    const isAll = this.post();
    this.#postTail({ ...emptyTail, isClosing: true }, []);
    return isAll;
  }

  /** Tells that this end has nothing of the other one's, and takes nothing. @throws SystemError */
  postDone(): void {
    this.#postTail({ ...emptyTail, isDone: true }, []);
  }

  /** Sends this process's page of counters, before the first points of it. @throws as {@link post} */
  tellPage(): void {
    this.#session.ordering.sharePage((page) => {
      this.#postTail({ ...emptyTail, hasPage: true }, [page]);
    });
  }

  #postNews(tail: Tail): void {
    try {
      this.#postTail(tail, []);
    } catch (error) {
      this.#session.restoreNews(tail);
      throw error;
    }
  }

  /** Each with its link. */
  #tellAdoptions(): void {
    for (;;) {
      const adopt = this.#session.adopting.take();
      if (adopt.length === 0) return;
      const links = adopt.map(({ link }) => link);
      try {
        this.#postTail({ ...emptyTail, adopt }, links);
      } catch (error) {
        this.#session.adopting.restore(adopt);
        throw error;
      }
      links.forEach(closeFd);
    }
  }

  #postTail(tail: Tail, fds: readonly number[]): void {
    ByteWriter.use((writer) => {
      writeTail(writer, tail);
      this.#wire.post(PacketKind.news, writer.written, fds)?.catch(() => {});
    });
  }
}
