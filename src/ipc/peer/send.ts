import { closeFd, SystemError } from '../../../ffi/linux/libc.ts';
import type { Stream } from '../../stream.ts';
import { passOn } from '../lease/forward.ts';
import type { Lease } from '../lease/lease.ts';
import { ByteWriter } from '../wire/bytes.ts';
import { type LeaseRange, type Tail, writeTail } from '../wire/control-block.ts';
import type { Wire } from '../wire/framed-socket.ts';
import { PacketKind } from '../wire/frames.ts';
import { MAX_VALUE_FDS } from '../wire/limits.ts';
import type { News } from './control.ts';
import type { Session } from './peer-state.ts';
import { type Encoded, encodeValue } from './value-encoder.ts';

/** What a connection that sends is asked. */
interface Sender {
  /** @throws ClosedError, IpcError after the end */
  requireOpen(): void;
  /** What is thrown where the socket has failed. */
  failed(error: SystemError): unknown;
}

/** Values on their way out: with leases for their objects, and behind the work on those. */
export class Sending {
  readonly #session: Session;
  readonly #wire: Wire;
  readonly #news: News;
  readonly #sender: Sender;

  constructor(session: Session, wire: Wire, news: News, sender: Sender) {
    this.#session = session;
    this.#wire = wire;
    this.#news = news;
    this.#sender = sender;
  }

  /**
   * Sends a value at once (then the answer is undefined), or as soon as there is room.
   *
   * @throws TypeError, RangeError, IpcError as {@link encodeValue}; ClosedError after the end
   */
  post(
    value: unknown,
    stream?: Stream,
    kind: PacketKind = PacketKind.value,
  ): Promise<void> | undefined {
    this.#sender.requireOpen();
    this.#wire.outbox.checkRoom();
    return ByteWriter.use((writer) =>
      encodeValue(writer, value, this.#session, (encoded) =>
        this.#post(writer, encoded, stream, kind),
      ),
    );
  }

  #post(
    writer: ByteWriter,
    { fds, objects }: Encoded,
    stream: Stream | undefined,
    kind: PacketKind,
  ): Promise<void> | undefined {
    // A getter in the value may have closed it.
    this.#sender.requireOpen();
    const session = this.#session;
    const points = session.readyPoints(objects, stream);
    const { kept, links, agreed, over } = passOn(objects, session.process);
    let isLent = false;
    try {
      const all = links.length > 0 ? [...fds, ...links] : fds;
      checkFdCount(all.length);
      const leases = session.lent.lend(objects, stream);
      isLent = true;
      for (const [at, which] of kept.entries()) (leases[which] as Lease).onEnd = over[at];
      let news: Tail | undefined;
      const drop = (): void => {
        session.lent.end(leases);
        if (news) session.restoreNews(news);
      };
      try {
        this.#news.tellPage();
        writer.endValue();
        news = session.takeNews(points);
        writeTail(writer, { ...news, kept, leases: rangeOf(leases) });
        return this.#wire.post(kind, writer.written, all, drop, agreed);
      } catch (error) {
        drop();
        throw error instanceof SystemError ? this.#sender.failed(error) : error;
      }
    } finally {
      links.forEach(closeFd);
      if (!isLent) for (const end of over) end();
    }
  }
}

const rangeOf = (leases: readonly Lease[]): LeaseRange | undefined =>
  leases[0] && { first: leases[0].id, count: leases.length };

function checkFdCount(count: number): void {
  if (count > MAX_VALUE_FDS)
    throw new RangeError(
      `the value has ${count} file descriptors, those included by which it is passed on: it may have ${MAX_VALUE_FDS}`,
    );
}
