import { discardFds } from '../../../ffi/linux/close-fd.ts';
import type { Context } from '../../context.ts';
import { ClosedError, IpcError, PeerGoneError } from '../../errors.ts';
import { pollInBackground, waitUntil } from '../../poller.ts';
import type { Stream } from '../../stream.ts';
import { Lent } from '../lease/export-table.ts';
import { type Adopted, Adopting, Adoption, MAX_ASKED } from '../lease/forward.ts';
import { Borrowed } from '../lease/import-table.ts';
import type { Lease } from '../lease/lease.ts';
import type { PeerProcess } from '../lease/peer-process.ts';
import { contextOf, streamOfObject } from '../shareable.ts';
import type { Shareable } from '../sharing/export.ts';
import { endSession, forgetPoolSoon, type ParcelSession } from '../sharing/marshal.ts';
import { Ordering } from '../timeline/ordering.ts';
import { furthest, type Point } from '../timeline/point.ts';
import { emptyTail, type Tail } from '../wire/control-block.ts';

/** Of one message. */
const MAX_NUMBERS = 1024;
const none: readonly never[] = [];

/** Mostly there is nothing: this is on the way of every value. */
const takeFrom = <T>(list: T[]): readonly T[] =>
  list.length === 0 ? none : list.splice(0, MAX_NUMBERS);

/** Each has a link here; the end of some may be seen later here than by the one who asks. */
const MAX_ADOPTIONS = 2 * MAX_ASKED;

/**
 * What the two ends of a connection owe each other: what each has lent, and how far its streams
 * are. It outlives the connection: until all is given back, or the other process is gone.
 */
export class Session implements ParcelSession {
  readonly sent = new Map<string, () => void>();
  readonly received = new Map<string, unknown>();
  readonly lent: Lent;
  readonly borrowed: Borrowed;
  readonly adopting: Adopting;
  readonly ordering = new Ordering();
  readonly process: PeerProcess;
  readonly #name: string;
  readonly #graceMs: number;
  readonly #revoked: number[] = [];
  readonly #forgotten: string[] = [];
  #adoptions = 0;
  #watchNoMore: (() => void) | undefined;
  #unreached = 0;
  #isGone = false;
  #areValuesOver = false;
  #isEnded = false;
  /** Whether the other end has closed the connection in an orderly way. */
  hasClosed = false;
  /** Called when there is something to be told to the other end. */
  onNews: (() => void) | undefined;
  /** Called when the other process is gone. */
  onGone: (() => void) | undefined;

  constructor(process: PeerProcess, name: string, graceMs: number) {
    this.process = process;
    this.#name = name;
    this.#graceMs = graceMs;
    const news = (): void => this.onNews?.();
    this.adopting = new Adopting(news);
    this.borrowed = new Borrowed(
      this.ordering,
      {
        process,
        adopt: (...asked) => this.adopting.ask(...asked),
        isNeeded: (lease) => this.adopting.isNeeded(lease),
      },
      news,
    );
    this.lent = new Lent({
      pid: process.pid,
      name,
      revoke: (lease) => {
        this.#revoked.push(lease);
        news();
      },
    });
    this.#watchNoMore = process.onGone(() => this.#otherIsGone());
  }

  /** Whether either end has something of the other. */
  get isInUse(): boolean {
    return this.lent.size > 0 || this.borrowed.size > 0;
  }

  /** How much waits to be told to the other end. */
  get untold(): number {
    return this.borrowed.untold + this.#forgotten.length;
  }

  /** Whether the other process is gone, and nothing of it comes any more. */
  get isGone(): boolean {
    return this.#isGone;
  }

  /**
   * Why nothing comes from a process that has ended without closing the connection. A child that
   * exits with code 0 has done its work; nothing else tells whether one has.
   */
  goneError(): ClosedError | PeerGoneError {
    const { pid, exit } = this.process;
    const unreached = this.#unreached;
    if (exit?.exitCode === 0 && unreached === 0)
      return new ClosedError(`this Peer is closed: ${this.#name} has exited with code 0`);
    const how = exit?.signal
      ? `was ended by ${exit.signal}`
      : exit?.exitCode === undefined
        ? 'has ended'
        : `has exited with code ${exit.exitCode}`;
    const lost =
      unreached > 0
        ? `; ${unreached} waits for its work were abandoned, so memory that it should have written is incomplete`
        : ' without closing the connection';
    return new PeerGoneError(`${this.#name} ${how}${lost}`, { pid, unreached, ...exit });
  }

  /** Points behind the work that objects come after. @throws CudaError, ClosedError */
  readyPoints(objects: readonly Shareable[], stream: Stream | undefined): Point[] {
    if (objects.length === 0) return [];
    if (stream) return this.ordering.behindStream(stream);
    const points: Point[] = [];
    const asked = new Set<Stream | Context>();
    for (const object of objects) {
      const own = streamOfObject(object);
      const context = contextOf(object);
      const place = own ?? context;
      if (!place || asked.has(place)) continue;
      asked.add(place);
      if (own) points.push(...this.ordering.behindStream(own));
      else if (context) points.push(...this.ordering.behindContext(context));
    }
    return furthest(points);
  }

  /** As {@link ParcelSession}. */
  has(object: Shareable): boolean {
    return this.lent.has(object);
  }

  /** As {@link ParcelSession}. */
  poolEnded(pool: string): void {
    this.#forgotten.push(pool);
    this.onNews?.();
  }

  /** What there is to be told, beside a value or by itself. */
  takeNews(points: readonly Point[] = none): Tail {
    // What was released or dropped meanwhile has nobody to revoke it from.
    const revoked = takeFrom(this.#revoked).filter((lease) => this.lent.isInUse(lease));
    const returned = this.borrowed.takeReturned();
    return { ...emptyTail, points, returned, revoked, forgotten: takeFrom(this.#forgotten) };
  }

  /** Takes back what was to be told in a message that was dropped: it goes first next time. */
  restoreNews({ returned, revoked, forgotten }: Tail): void {
    this.borrowed.restoreReturned(returned);
    this.#revoked.unshift(...revoked);
    this.#forgotten.unshift(...forgotten);
  }

  /** The other end has nothing of this process's, and opens nothing that is still on its way. */
  otherIsDone(): void {
    this.lent.endAll();
  }

  /**
   * Takes in what the other end says; closes `fds` in every case. Answers the points that the host
   * must wait for before anything else is believed of it.
   *
   * @throws IpcError for what cannot be
   */
  hear(
    { hasPage, returned, revoked, adopt, forgotten }: Tail,
    fds: readonly number[],
  ): readonly Point[] {
    if (hasPage) this.ordering.acceptPage(fds[0] as number);
    else if (this.#isGone) discardFds(fds);
    else this.#adopt(adopt, fds);
    // Of one that is gone all is given back already.
    if (this.#isGone) return [];
    let left: Point[] = [];
    const kept: Lease[] = [];
    for (const { lease: id, isOver, points } of returned) {
      const lease = this.lent.find(id);
      const place = points.length > 0 ? lease.place : undefined;
      if (place && !this.ordering.isReached(points))
        if (!this.ordering.wait(points, place.context, place.stream))
          left = furthest([...left, ...points]);
      // Its holder's work may use it until the host has seen the end of that.
      if (isOver && left.length > 0) kept.push(lease);
      else if (isOver) this.lent.endOne(lease);
    }
    if (kept.length > 0)
      void this.reached(left).then(() => {
        // The page may have gone with a connection that broke, and nothing tells any more how far the
        // work is: its holder has them while it lives.
        if (this.#isEnded) return;
        this.lent.end(kept);
        // They may have been the last for which a closed connection stays.
        this.onNews?.();
      });
    for (const id of revoked) this.borrowed.revoke(id, this.#name);
    for (const pool of forgotten) forgetPoolSoon(pool, this);
    return left;
  }

  /** Keeps what the other end has for those whom it passes that on to. @throws IpcError */
  #adopt(asked: readonly Adopted[], links: readonly number[]): void {
    for (const [at, adopted] of asked.entries()) {
      try {
        this.#adoptOne(adopted, links[at] as number);
      } catch (error) {
        discardFds(links.slice(at));
        throw error;
      }
    }
  }

  /** @param link stays its caller's where this throws */
  #adoptOne({ lease, pid, startTime }: Adopted, link: number): void {
    if (this.#adoptions >= MAX_ADOPTIONS)
      throw new IpcError(`more than ${MAX_ADOPTIONS} things of this process were passed on`);
    new Adoption(this.lent.find(lease), { pid, startTime }, link, this.#graceMs, () => {
      this.#adoptions -= 1;
    });
    this.#adoptions += 1;
  }

  /** Resolves when points of the other process are reached, or it is gone. */
  async reached(points: readonly Point[]): Promise<void> {
    const isDone = (): boolean => this.#isGone || this.ordering.isReached(points);
    await waitUntil(() => isDone() || this.#areValuesOver);
    if (isDone()) return;
    // Nobody here waits for a value any more: the process may end.
    await new Promise<void>((resolve) => {
      pollInBackground(() => {
        if (isDone()) resolve();
        return isDone();
      });
    });
  }

  /** The pools that were kept for values to come are let go. */
  endValues(): void {
    this.#areValuesOver = true;
    endSession(this);
  }

  /** Nothing can be told or heard any more. What the other process has it keeps while it lives. */
  end(): void {
    if (this.#isEnded) return;
    this.#isEnded = true;
    this.onNews = undefined;
    this.adopting.end();
    this.borrowed.end();
    if (!this.process.isSeen && !this.#isGone)
      setTimeout(() => this.#otherIsGone(), this.#graceMs).unref();
    this.ordering.close(() => this.#forget());
  }

  #otherIsGone(): void {
    if (this.#isGone) return;
    this.#isGone = true;
    this.#unreached = this.ordering.otherIsGone();
    if (this.#unreached > 0 && this.hasClosed) this.#warn();
    this.adopting.end();
    this.lent.endAll();
    this.#forget();
    this.onGone?.();
    this.onGone = undefined;
  }

  /** An orderly end was reported before: the error that tells of unfinished work has nowhere to go. */
  #warn(): void {
    globalThis.process.emitWarning(
      `${this.#name} has closed its connection and ended before its work on the GPU was done: ` +
        `${this.#unreached} waits for it were abandoned, so memory that it should have written is incomplete`,
      { code: 'CUFFI_UNREACHED' },
    );
  }

  /** Nobody needs to know any more when the other process ends. */
  #forget(): void {
    if (this.#isEnded && this.lent.size === 0) this.#watchNoMore?.();
  }
}
