import { closeFd } from '../../../ffi/libc.ts';
import { IpcError } from '../../errors.ts';
import { ByteWriter } from './byte-writer.ts';
import { PacketKind } from './packet.ts';
import type { Session } from './session.ts';
import { emptyTail, isNothing, type Tail, writeTail } from './tail.ts';
import type { Wire } from './wire.ts';

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
