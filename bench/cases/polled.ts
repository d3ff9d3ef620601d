/**
 * A hand-over in which nobody sleeps: no socket, no event loop. The consumer's stream waits for the
 * producer's, which was queued before; the producer's CPU looks at the page until the consumer's
 * stream has answered.
 */
import type { DriverChoice } from '../driver.ts';
import { PolledHandOver } from '../programs/polled.ts';
import { type Case, inPeers, type OpenCase } from './case.ts';
import { PUBLIC } from './names.ts';
import { warmUp } from './turns.ts';

export const polledCase: Case = {
  name: 'hand-over.polled',
  what: 'the stream of one process to that of another and back, by the counters of ready and done points; both CPUs poll',
  calls: 100,
  peers: inPeers('handOver.polled', 'C'),
  open,
};

async function open(driver: DriverChoice): Promise<OpenCase> {
  const polled = await PolledHandOver.start(driver);
  return {
    contestants: [
      { name: PUBLIC, warmUpMs: warmUp(driver, false), run: (calls) => polled.run(calls) },
    ],
    close: () => polled.end(),
  };
}
