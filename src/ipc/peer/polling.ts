import { busyPoll, type Look, type Polled } from './busy-poller.ts';
import type { Wire } from './wire.ts';

/** A connection that is polled. */
interface Waiting {
  /** Whether someone waits for what has not come. */
  isAwaited(): boolean;
  /** Tells the other end what it is to be told: what is waited for may depend on it. */
  tellNews(): void;
}

/** Looking at the socket of a connection, on request, before the thread sleeps. */
export class Polling implements Polled {
  readonly #wire: Wire;
  readonly #waiting: Waiting;
  /** As {@link Polled}; 0 for not at all. */
  forUs = 0;

  constructor(wire: Wire, waiting: Waiting) {
    this.#wire = wire;
    this.#waiting = waiting;
  }

  /** Someone has begun to wait, perhaps. */
  begin(): void {
    if (this.forUs > 0 && this.#waiting.isAwaited()) busyPoll(this);
  }

  /** As {@link Polled}. */
  look(): Look {
    this.#waiting.tellNews();
    // What waits to go out needs the event loop, and perhaps the answer needs that.
    if (!this.#wire.outbox.isEmpty || !this.#waiting.isAwaited()) return 'over';
    const read = this.#wire.look();
    if (read === 'nothing') return 'nothing';
    if (read === 'over' || !this.#waiting.isAwaited()) return 'over';
    return read === 'awaited' ? 'served' : 'nothing';
  }
}
