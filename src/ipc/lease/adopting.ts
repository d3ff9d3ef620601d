import { readSync } from 'node:fs';
import { closeFd, duplicateFd } from '../../../ffi/libc.ts';
import { watchFd } from '../../../ffi/poll.ts';

/** One who has something of the other end by way of this process. */
export interface Adopted {
  readonly lease: number;
  readonly pid: number;
  readonly startTime: number;
}

interface Unsaid extends Adopted {
  readonly link: number;
}

/** What the other end is asked to keep for others too. */
export class Adopting {
  readonly #changed: () => void;
  /** Each ends the wait for an answer. */
  readonly #waiting = new Set<() => void>();
  #unsaid: Unsaid[] = [];
  #isOver = false;

  /** @param changed called when there is something to be told */
  constructor(changed: () => void) {
    this.#changed = changed;
  }

  /**
   * Resolves when the other end keeps it, or is not there to. It answers by the link, so that this
   * does not wait for the values that come before: they may be more than are taken meanwhile.
   *
   * @param link the other end's end of it, closed when it went out
   * @param ours the end that the third process gets, which stays its caller's
   * @throws SystemError; the link is closed then, too
   */
  ask(lease: number, pid: number, startTime: number, link: number, ours: number): Promise<void> {
    if (this.#isOver) {
      closeFd(link);
      return Promise.resolve();
    }
    const answered = this.#answerBy(link, ours);
    this.#unsaid.push({ lease, pid, startTime, link });
    this.#changed();
    return answered;
  }

  /** What is to be told: no more than go in one message. */
  take(): Unsaid[] {
    return this.#unsaid.splice(0, MAX_ADOPTED);
  }

  /** The other end answers no more. */
  end(): void {
    this.#isOver = true;
    for (const { link } of this.#unsaid.splice(0)) closeFd(link);
    for (const answered of this.#waiting) answered();
  }

  #answerBy(link: number, ours: number): Promise<void> {
    let resolve: () => void = () => {};
    const answer = new Promise<void>((resolved) => {
      resolve = resolved;
    });
    let own: number | undefined;
    try {
      own = duplicateFd(ours);
      this.#await(own, resolve);
      return answer;
    } catch (error) {
      closeFd(link);
      if (own !== undefined) closeFd(own);
      throw error;
    }
  }

  /** @param own closed when the answer came, or none comes any more; not where this throws */
  #await(own: number, resolve: () => void): void {
    const answered = (): void => {
      this.#waiting.delete(answered);
      watch.close();
      takeAnswer(own);
      closeFd(own);
      resolve();
    };
    const watch = watchFd(own, { readable: true }, answered);
    watch.unref();
    this.#waiting.add(answered);
  }
}

/** So that it does not go on to the third process. */
function takeAnswer(fd: number): void {
  try {
    readSync(fd, new Uint8Array(1));
  } catch {
    // It did not come, as the other end is gone, or ends without.
  }
}

/** Of one message. */
const MAX_ADOPTED = 64;
