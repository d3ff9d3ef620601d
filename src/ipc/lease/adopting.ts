import { discardFds } from '../../../ffi/discard.ts';
import { closeFd, duplicateFd } from '../../../ffi/libc.ts';
import { takeMessage } from '../../../ffi/message.ts';
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

/** What comes of what was asked. */
export interface Asked {
  /** Resolves when the other end keeps it, or is not there to. */
  readonly answered: Promise<void>;
  /** To be called, once, when the third process has given it back, or did not get it. */
  over(): void;
}

/** How much the other end is asked to keep at a time. */
export const MAX_ASKED = 1024;

/** What the other end is asked to keep for others too: what would be too much waits for less. */
export class Adopting {
  readonly #changed: () => void;
  /** Each ends the wait for an answer. */
  readonly #waiting = new Set<() => void>();
  #unsaid: Unsaid[] = [];
  /** How much the other end has been asked to keep that is not over. */
  #said = 0;
  #isOver = false;

  /** @param changed called when there is something to be told */
  constructor(changed: () => void) {
    this.#changed = changed;
  }

  /**
   * Asks for one thing. The other end answers by the link, so that this does not wait for the values
   * that come before: they may be more than are taken meanwhile.
   *
   * @param link the other end's end of it, closed when it went out
   * @param ours the end that the third process gets, which stays its caller's
   * @throws SystemError; the link is closed then, too
   */
  ask(lease: number, pid: number, startTime: number, link: number, ours: number): Asked {
    if (this.#isOver) {
      closeFd(link);
      return { answered: Promise.resolve(), over() {} };
    }
    const answered = this.#answerBy(link, ours);
    const asked = { lease, pid, startTime, link };
    this.#unsaid.push(asked);
    this.#changed();
    return { answered, over: () => this.#over(asked) };
  }

  /** What is to be told now: no more than go in one message. */
  take(): Unsaid[] {
    const taken = this.#unsaid.splice(0, Math.min(MAX_ADOPTED, MAX_ASKED - this.#said));
    this.#said += taken.length;
    return taken;
  }

  /** Takes back what was to be told in a message that could not be sent. */
  restore(taken: readonly Unsaid[]): void {
    this.#said -= taken.length;
    this.#unsaid.unshift(...taken);
  }

  /** Whether something of a lease is still to be asked for: it must not be given back before. */
  isNeeded(lease: number): boolean {
    return this.#unsaid.some((unsaid) => unsaid.lease === lease);
  }

  /** The other end answers no more. */
  end(): void {
    this.#isOver = true;
    for (const { link } of this.#unsaid.splice(0)) closeFd(link);
    for (const answered of this.#waiting) answered();
  }

  #over(asked: Unsaid): void {
    const at = this.#unsaid.indexOf(asked);
    if (at >= 0) {
      this.#unsaid.splice(at, 1);
      closeFd(asked.link);
      return;
    }
    this.#said -= 1;
    if (this.#unsaid.length > 0) this.#changed();
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
    const answer = takeMessage(fd);
    // Descriptors would be closed by a read that does not ask for them.
    if (typeof answer === 'object') discardFds(answer.fds);
  } catch {
    // It did not come, as the other end is gone, or ends without.
  }
}

/** Of one message. */
const MAX_ADOPTED = 64;
