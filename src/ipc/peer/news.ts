import { closeFd } from '../../../ffi/libc.ts';
import { ByteWriter } from './byte-writer.ts';
import { PacketKind } from './packet.ts';
import type { Session } from './session.ts';
import { isNothing, type Tail, writeTail } from './tail.ts';
import type { Wire } from './wire.ts';

/** What is told to the other end by itself. */
export class News {
  readonly #session: Session;
  readonly #wire: Wire;

  constructor(session: Session, wire: Wire) {
    this.#session = session;
    this.#wire = wire;
  }

  /** Answers whether the other end can still be told anything. */
  post(isBye: boolean): boolean {
    try {
      this.tellPage();
      for (;;) {
        this.#tellAdoptions();
        const tail = this.#session.takeNews([], isBye);
        if (isNothing(tail)) return true;
        this.#postTail(tail, []);
        if (isBye) return true;
      }
    } catch {
      // The other end is gone, which reading tells.
      return false;
    }
  }

  /** This process's page of counters, before the first points of it. @throws SystemError */
  tellPage(): void {
    const page = this.#session.ordering.takePage();
    if (page === undefined) return;
    try {
      this.#postTail({ ...this.#session.takeNews([]), hasPage: true }, [page]);
    } finally {
      closeFd(page);
    }
  }

  /** Each with its link. */
  #tellAdoptions(): void {
    for (;;) {
      const adopt = this.#session.adopting.take();
      if (adopt.length === 0) return;
      const links = adopt.map(({ link }) => link);
      try {
        this.#postTail({ ...this.#session.takeNews([]), adopt }, links);
      } finally {
        links.forEach(closeFd);
      }
    }
  }

  #postTail(tail: Tail, fds: readonly number[]): void {
    ByteWriter.use((writer) => {
      writeTail(writer, tail);
      this.#wire.post(PacketKind.news, writer.written, fds)?.catch(() => {});
    });
  }
}
