import { closeFd } from '../../../ffi/libc.ts';
import { IpcError } from '../../errors.ts';

/** One who has something of the other end by way of this process. */
export interface Adopted {
  /** The number of the question. */
  readonly number: number;
  readonly lease: number;
  readonly pid: number;
  readonly startTime: number;
}

interface Waiting extends Adopted {
  readonly pipe: number;
}

/** What the other end is asked to keep for others too. */
export class Adopting {
  readonly #changed: () => void;
  readonly #answers = new Map<number, () => void>();
  #unsaid: Waiting[] = [];
  #next = 0;
  #isOver = false;

  /** @param changed called when there is something to be told */
  constructor(changed: () => void) {
    this.#changed = changed;
  }

  /** Whether an answer is to come. */
  get isWaiting(): boolean {
    return this.#answers.size > 0;
  }

  /** Resolves when the other end keeps it, or is not there to. The pipe is closed when it went out. */
  ask(lease: number, pid: number, startTime: number, pipe: number): Promise<void> {
    if (this.#isOver) {
      closeFd(pipe);
      return Promise.resolve();
    }
    const number = this.#next;
    this.#next += 1;
    this.#unsaid.push({ number, lease, pid, startTime, pipe });
    const answered = new Promise<void>((resolve) => this.#answers.set(number, resolve));
    this.#changed();
    return answered;
  }

  /** What is to be told: no more than go in one message. */
  take(): Waiting[] {
    return this.#unsaid.splice(0, MAX_ADOPTED);
  }

  /** The other end keeps it. @throws IpcError for what it was not asked */
  answered(number: number): void {
    const resolve = this.#answers.get(number);
    if (!resolve) throw new IpcError('something was adopted that nobody asked for');
    this.#answers.delete(number);
    resolve();
  }

  /** The other end answers no more. */
  end(): void {
    this.#isOver = true;
    for (const { pipe } of this.#unsaid.splice(0)) closeFd(pipe);
    for (const resolve of this.#answers.values()) resolve();
    this.#answers.clear();
  }
}

/** Of one message. */
const MAX_ADOPTED = 64;
