import { discardFds } from '../../../ffi/discard.ts';
import { IpcError } from '../../errors.ts';
import type { Arrived } from './assembly.ts';
import { type DecodedValue, decodeValue, type KnownDescriptors } from './decode.ts';
import { MAX_UNTOLD } from './limits.ts';
import type { Session } from './session.ts';
import { isNothing, readNews, type Tail } from './tail.ts';

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

  /** Takes in a value, and what is said with it; closes the descriptors where it throws. @throws IpcError */
  value({ bytes, fds }: Arrived): DecodedValue {
    try {
      const decoded = decodeValue(bytes, fds.length, this.#known);
      this.#hear(decoded.tail, []);
      // Points without a page are refused.
      this.#session.ordering.isReached(decoded.tail.points);
      return decoded;
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
