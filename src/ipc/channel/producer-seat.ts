import { closeFd } from '../../../ffi/linux/libc.ts';
import type { Context } from '../../context.ts';
import type { Stream } from '../../stream.ts';
import { TrackedStores } from '../timeline/stores.ts';
import type { SharedWords, TimelinePoint } from '../timeline/words.ts';
import { type Grant, type Ring, Seat } from './ring.ts';
import { type SentEnds, WakeSockets } from './wake-sockets.ts';

/** One consumer, as the producer sees it. */
export class ProducerSeat {
  /** Its process in words. */
  readonly name: string;
  readonly seat: Seat;
  /** Its first message. Also in the seat, where the consumer could change it. */
  readonly start: number;
  readonly #sockets: WakeSockets;
  readonly #ring: Ring;
  /** The consumer's own copy of the ring, if it has one. */
  readonly #copy: { readonly words: SharedWords; readonly stores: TrackedStores } | undefined;
  /** How many messages were granted. */
  #granted = 0;
  readonly #sent: SentEnds;
  #isClosed = false;

  private constructor(
    init: Pick<ProducerSeat, 'name' | 'seat' | 'start'> & { readonly ring: Ring },
    copy: SharedWords | undefined,
    { sockets, sent }: { readonly sockets: WakeSockets; readonly sent: SentEnds },
  ) {
    this.name = init.name;
    this.seat = init.seat;
    this.start = init.start;
    this.#ring = init.ring;
    this.#sockets = sockets;
    this.#sent = sent;
    this.#copy = copy && {
      words: copy,
      stores: new TrackedStores(copy, {
        // The producer notices by its own memory if the work fails.
        onStored: () => this.wakeIfAsleep(),
        isAwaited: () => this.seat.isAsleep,
        isLazy: true,
      }),
    };
  }

  /** @throws SystemError */
  static create(
    name: string,
    ring: Ring,
    start: number,
    onWake: () => void,
    needsCopy: boolean,
  ): ProducerSeat {
    const seat = Seat.create(ring.slots, start);
    let copy: SharedWords | undefined;
    try {
      if (needsCopy) copy = ring.createCopy();
      return new ProducerSeat({ name, ring, seat, start }, copy, WakeSockets.create(onWake));
    } catch (error) {
      if (copy) ring.closeCopy(copy);
      seat.words.close();
      throw error;
    }
  }

  /** Stores into the consumer's own copy of the ring that a message is filled. @throws CudaError */
  storeFilled(filled: TimelinePoint, context: Context, stream: Stream | undefined): void {
    this.#copy?.stores.store(filled, context, stream);
  }

  /** Whether the consumer has ended or closed the channel. */
  get isGone(): boolean {
    return this.#sockets.hasEnded;
  }

  get granted(): number {
    return this.#granted;
  }

  grant(grant: Grant): void {
    this.seat.grant(this.#granted, grant);
    this.#granted += 1;
    this.wakeIfAsleep();
  }

  wakeIfAsleep(): void {
    if (this.seat.isAsleep) this.#sockets.wake();
  }

  /** The descriptors for the consumer. The caller owns them. Call it once. @throws SystemError */
  takeFds(): readonly number[] {
    const { receiveEnd, sendEnd } = this.#sent;
    const { words } = this.seat;
    // Devices wait for the words of a seat only when they are known to be fixed.
    const seat = this.#ring.hasRecords ? words.takeFd() : words.copyFd();
    try {
      const ring = this.#copy ? this.#copy.words.takeFd() : this.#ring.words.copyFd();
      return [ring, seat, receiveEnd, sendEnd];
    } catch (error) {
      closeFd(seat);
      throw error;
    }
  }

  /** Closes the descriptors that {@link takeFds} would return. */
  discardFds(): void {
    closeFd(this.#sent.receiveEnd);
    closeFd(this.#sent.sendEnd);
  }

  close(): void {
    if (this.#isClosed) return;
    this.#isClosed = true;
    this.#sockets.close();
    this.seat.endWaits();
    this.seat.words.close();
    if (this.#copy) this.#ring.closeCopy(this.#copy.words);
  }
}

/** Processes in words, with what they have: `process 1 has`, `process 1 and process 2 have`. */
export function namesOf(seats: Iterable<ProducerSeat>): string {
  const names = [...new Set([...seats].map(({ name }) => name))];
  const last = names.pop();
  return names.length === 0 ? `${last} has` : `${names.join(', ')} and ${last} have`;
}
