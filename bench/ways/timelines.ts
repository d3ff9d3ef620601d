/** From stream to stream and back, by timelines: no message is sent for a round. */
import { PUBLIC } from '../cases/case.ts';
import type { Answering } from './children.ts';
import type { Way } from './way.ts';

type Round = (answering: Answering, value: number) => void;

const way = (round: Round, finish: (answering: Answering) => void): Way => ({
  name: PUBLIC,
  async open({ children }) {
    const answering = await children.answering();
    return {
      async run(calls, untimed) {
        const first = await answering.queue(untimed + calls);
        const timed = first + untimed;
        // The first calls after another contestant's batch are slower.
        for (let value = first; value < timed; value += 1) round(answering, value);
        finish(answering);
        const start = process.hrtime.bigint();
        for (let value = timed; value < timed + calls; value += 1) round(answering, value);
        finish(answering);
        return Number(process.hrtime.bigint() - start);
      },
      close() {},
    };
  },
});

/** Gives up after so many polls, because the other process may have died. */
const MOST_LOOKS = 1e9;

/** The CPU here polls until the other stream has answered. */
export const polled: Way = way(
  ({ ours, theirs, stream, isEmulated }, value) => {
    if (theirs.value >= value) throw new Error(`round ${value} was done before it began`);
    ours.signal(value, { stream });
    for (let looks = 0; theirs.value < value; looks += 1) {
      // The emulated driver makes progress when it is called.
      if (isEmulated) void stream.done;
      if (looks > MOST_LOOKS) throw new Error(`round ${value} has no reply`);
    }
  },
  () => {},
);

/** The stream here waits for the answers; all rounds are queued before. */
export const queuedAhead: Way = way(
  ({ ours, theirs, stream }, value) => {
    ours.signal(value, { stream });
    theirs.wait(value, { stream });
  },
  ({ stream }) => {
    for (let looks = 0; !stream.done; looks += 1)
      if (looks > MOST_LOOKS) throw new Error('the rounds are not answered');
  },
);
