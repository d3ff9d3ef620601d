import { IpcError } from '../../errors.ts';
import { Begun, FrameKind, READINESS_WAIT_MS } from '../protocol.ts';
import type { SendQueue } from '../wire/framed-socket.ts';
import { MAX_UNSENT_VALUES } from '../wire/limits.ts';
import type { Control } from './control.ts';
import type { ReceiveQueue } from './receive-queue.ts';
import type { Requests } from './requests.ts';

/** The parts of its connection that a {@link Readiness} asks, and tells. */
export interface ReadinessParts {
  readonly peerName: string;
  readonly values: Pick<ReceiveQueue, 'hasArrivals' | 'isAwaited'>;
  readonly requests: Pick<Requests, 'hasWaiting' | 'isIdle' | 'refuseWaiting'>;
  readonly control: Pick<Control, 'tellBegun'>;
  readonly sendQueue: Pick<SendQueue, 'rejectUnstarted'>;
}

/**
 * What each end of a connection has begun: to receive values, to serve requests. What was sent to an
 * end that has begun neither waits. What was sent to an end that waits for the other kind, and has
 * never begun this one, would wait for ever, and is refused.
 */
export class Readiness {
  readonly #peerName: string;
  readonly #parts: ReadinessParts;
  #own = 0;
  #isEnded = false;
  #peer = 0;
  #telling: NodeJS.Immediate | undefined;
  #grace: NodeJS.Timeout | undefined;
  /** Who waits until the peer serves. */
  readonly #awaitServing: (() => void)[] = [];
  /** Calls of `send` whose values may never be received. */
  readonly #unconfirmed = new Set<(error?: Error) => void>();

  constructor(parts: ReadinessParts) {
    this.#peerName = parts.peerName;
    this.#parts = parts;
  }

  // ---- This end ----

  /** Notes that this end receives values. Call it whenever it waits for one. */
  receives(): void {
    if ((this.#own & Begun.receiving) === 0)
      this.#set((this.#own | Begun.receiving) & ~Begun.ignoringValues);
    // Each message comes here, so the usual case asks one thing.
    if ((this.#own & Begun.serving) === 0 && this.#parts.requests.hasWaiting) this.check();
  }

  /** Notes that this end serves requests. */
  serves(): void {
    if ((this.#own & Begun.serving) === 0) this.#set(this.#own | Begun.serving);
    this.check();
  }

  /**
   * Begins the time after which waiting requests or values are refused, if they may wait for ever. Two
   * parts of a program, one of which receives and one of which serves, need not begin at the same moment.
   */
  check(): void {
    if (this.#grace || !(this.#areRequestsStuck || this.#areValuesStuck)) return;
    this.#grace = setTimeout(() => {
      this.#grace = undefined;
      if (this.#areRequestsStuck) this.#parts.requests.refuseWaiting();
      else if (this.#areValuesStuck) this.#set(this.#own | Begun.ignoringValues);
    }, READINESS_WAIT_MS).unref();
  }

  get #areRequestsStuck(): boolean {
    if ((this.#own & Begun.serving) !== 0) return false;
    return this.#parts.requests.hasWaiting && this.#parts.values.isAwaited;
  }

  get #areValuesStuck(): boolean {
    const { values, requests } = this.#parts;
    return this.#own === Begun.serving && values.hasArrivals && requests.isIdle;
  }

  /** One message covers all that begins in one turn of the event loop. */
  #set(own: number): void {
    this.#own = own;
    if (this.#isEnded) return;
    this.#telling ??= setImmediate(() => {
      this.#telling = undefined;
      this.#parts.control.tellBegun(this.#own);
    });
  }

  // ---- The peer ----

  /** Applies what the peer has begun. */
  onPeerBegun(begun: number): void {
    this.#peer = begun;
    if ((begun & Begun.serving) !== 0) for (const serves of this.#awaitServing.splice(0)) serves();
    if ((begun & Begun.receiving) !== 0) this.#settle();
    else if ((begun & Begun.ignoringValues) !== 0) {
      const error = this.#notReceived();
      this.#settle(error);
      this.#parts.sendQueue.rejectUnstarted(error, FrameKind.value);
    }
  }

  /** Resolves when the peer serves requests; never, if it does not before the end. */
  whenPeerServes(): Promise<void> {
    return new Promise((resolve) => {
      if ((this.#peer & Begun.serving) !== 0) resolve();
      else this.#awaitServing.push(resolve);
    });
  }

  /** @throws IpcError if the peer does not take values, or too many wait to be received */
  checkSend(): void {
    if ((this.#peer & Begun.ignoringValues) !== 0) throw this.#notReceived();
    if (this.#unconfirmed.size >= MAX_UNSENT_VALUES)
      throw new IpcError(
        `${this.#unconfirmed.size} values are already waiting to be received: await send() before the next one`,
        undefined,
        'limit-exceeded',
      );
  }

  /**
   * Delays the end of a `send` until the peer receives values, if it serves requests and has never
   * received.
   */
  confirm(sending: Promise<void> | undefined): Promise<void> | undefined {
    if (this.#peer !== Begun.serving) return sending;
    return new Promise((resolve, reject) => {
      const settle = (error?: Error): void => (error ? reject(error) : resolve(sending));
      this.#unconfirmed.add(settle);
      sending?.catch((error: Error) => {
        this.#unconfirmed.delete(settle);
        reject(error);
      });
    });
  }

  /** Why a request may have no answer yet, as far as it is known. */
  get requestHint(): string | undefined {
    if ((this.#peer & Begun.ignoringValues) !== 0)
      return 'unreceived values are queued there, and later messages wait behind them';
    if ((this.#peer & Begun.serving) !== 0) return undefined;
    return this.#peer === 0
      ? `${this.#peerName} has neither received nor served yet: does it call serve()?`
      : `${this.#peerName} receives values and has never served: does it call serve()?`;
  }

  /** Why a value may not be sent yet, as far as it is known. */
  get sendHint(): string | undefined {
    if ((this.#peer & Begun.receiving) !== 0) return undefined;
    return this.#peer === 0
      ? `${this.#peerName} has neither received nor served yet: does it call receive()?`
      : `${this.#peerName} serves requests and has never received: does it call receive()?`;
  }

  /** Ends all waits. */
  end(reason: Error): void {
    this.#isEnded = true;
    clearTimeout(this.#grace);
    clearImmediate(this.#telling);
    this.#settle(reason);
  }

  #notReceived(): IpcError {
    return new IpcError(
      `${this.#peerName} receives no values: it serves requests and has never called receive(). ` +
        'Receive there, or send requests',
      undefined,
      'not-received',
    );
  }

  #settle(error?: Error): void {
    for (const settle of this.#unconfirmed) settle(error);
    this.#unconfirmed.clear();
  }
}
