/** A polled hand-over, from the side of the bench: the producer and the consumer are processes. */
import { type ChildProcess, fork } from 'node:child_process';
import { once } from 'node:events';
import { fileURLToPath } from 'node:url';
import type { DriverChoice } from '../driver.ts';
import type { Batch } from './polled-messages.ts';

const PRODUCER = fileURLToPath(new URL('./polled-producer-child.ts', import.meta.url));

/** Two processes whose streams tell each other how far they are, and whose CPUs only look. */
export class PolledHandOver {
  readonly #producer: ChildProcess;

  private constructor(producer: ChildProcess) {
    this.#producer = producer;
  }

  /** Resolves when both have opened the driver. @throws Error where one cannot */
  static async start(driver: DriverChoice): Promise<PolledHandOver> {
    const env = { ...process.env, CUFFI_DRIVER: driver.name };
    const polled = new PolledHandOver(fork(PRODUCER, { env }));
    await polled.#answer();
    return polled;
  }

  /** How many nanoseconds so many rounds took. */
  run(batch: Batch): Promise<number> {
    const answer = this.#answer();
    this.#producer.send(batch);
    return answer as Promise<number>;
  }

  /** Kills the producer, and with it the consumer; resolves when it is gone. */
  async end(): Promise<void> {
    const { exitCode, signalCode } = this.#producer;
    if (exitCode !== null || signalCode !== null) return;
    const exited = once(this.#producer, 'exit');
    this.#producer.kill('SIGKILL');
    await exited;
  }

  async #answer(): Promise<unknown> {
    const ended = new AbortController();
    const { signal } = ended;
    try {
      return await Promise.race([
        once(this.#producer, 'message', { signal }).then(([answer]) => answer),
        once(this.#producer, 'exit', { signal }).then(() => {
          throw new Error('the producer ended before it answered');
        }),
      ]);
    } finally {
      // Who is not waited for any more listens no more.
      ended.abort();
    }
  }
}
