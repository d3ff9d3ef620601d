/** A hand-over without a connection: streams and CPUs poll counters in shared memory. */
import { type ChildProcess, fork } from 'node:child_process';
import { once } from 'node:events';
import { fileURLToPath } from 'node:url';
import { PUBLIC } from '../cases/case.ts';
import type { Way } from './way.ts';

const PRODUCER = fileURLToPath(new URL('../programs/polled-producer-child.ts', import.meta.url));

/** The page of counters, as a descriptor in the two processes of {@link polled}, and its words. */
export const PAGE_FD = 4;
export const READY = 0;
export const DONE = 1;

/** What the producer is sent: the rounds to time, and those before. */
export interface PolledBatch {
  readonly calls: number;
  readonly untimed: number;
}

/** What the consumer is sent: the rounds to queue. */
export interface PolledRounds {
  readonly first: number;
  readonly count: number;
}

/** Nobody sleeps: a stream waits for another process's stream, and a CPU polls the counter. */
export const polled: Way = {
  name: PUBLIC,
  async open({ driver }) {
    const producer = fork(PRODUCER, { env: { ...process.env, CUFFI_DRIVER: driver.name } });
    await reply(producer);
    return {
      async run(calls, untimed) {
        const answer = reply(producer);
        producer.send({ calls, untimed } satisfies PolledBatch);
        return (await answer) as number;
      },
      // The consumer ends with the producer.
      async close() {
        if (producer.exitCode !== null || producer.signalCode !== null) return;
        const exited = once(producer, 'exit');
        producer.kill('SIGKILL');
        await exited;
      },
    };
  },
};

async function reply(producer: ChildProcess): Promise<unknown> {
  const settled = new AbortController();
  const { signal } = settled;
  try {
    return await Promise.race([
      once(producer, 'message', { signal }).then(([message]) => message),
      once(producer, 'exit', { signal }).then(() => {
        throw new Error('the producer exited before it replied');
      }),
    ]);
  } finally {
    settled.abort();
  }
}
