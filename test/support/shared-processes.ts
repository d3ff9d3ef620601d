/** Processes that several tests of a file use: a start takes longer than most tests do. */
import { after, afterEach, before } from 'node:test';
import { leases } from '../../src/ipc/index.ts';

/** What is done with one of them. */
interface Handling<P> {
  start(): P | Promise<P>;
  /** Uses it as tests will: what its connection needs for that, it keeps from then on. */
  warmUp?(process: P): Promise<unknown>;
  /** Has it give back all that a test has left there, and all that it has of this process. */
  clear(process: P): Promise<unknown>;
  end(process: P): Promise<unknown>;
}

/**
 * Starts processes before the tests of a file, or of the suite that this is called in, and ends them
 * after those. A test may borrow some that it does not end. After each test, it is waited for what other
 * processes have of this one: those that a test has started itself are ended before.
 */
export class SharedProcesses<P> {
  readonly #processes: P[] = [];
  #lent = 0;

  constructor(count: number, { start, warmUp, clear, end }: Handling<P>) {
    const endAll = async (): Promise<void> => {
      for (const each of this.#processes.splice(0)) await end(each);
    };
    before(async () => {
      try {
        const starting = Array.from({ length: count }, start);
        for (const each of starting) this.#processes.push(await each);
        for (const each of this.#processes) {
          await warmUp?.(each);
          await clear(each);
        }
        await leases.drain({ timeoutMs: 20_000 });
      } catch (error) {
        await endAll();
        throw error;
      }
    });
    afterEach(async () => {
      const lent = this.#processes.slice(0, this.#lent);
      this.#lent = 0;
      await Promise.all(lent.map(clear));
      await leases.drain({ timeoutMs: 20_000 });
    });
    after(endAll);
  }

  /** Lends so many to a test, which are cleared after it. */
  lend(count = 1): readonly [P, P, P] {
    this.#lent = Math.max(this.#lent, count);
    return this.#processes.slice(0, count) as never;
  }
}
