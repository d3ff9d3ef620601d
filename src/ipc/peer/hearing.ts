import { discardFds } from '../../../ffi/discard.ts';
import { IpcError } from '../../errors.ts';
import type { Arrived } from './assembly.ts';
import { type KnownDescriptors, type ScannedValue, ValueScan } from './decode.ts';
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
