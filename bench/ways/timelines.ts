/** From stream to stream and back, by timelines: no message is sent for a round. */
import { PUBLIC, RAW, requireSuccess } from '../cases/case.ts';
import type { Answering, RawWords } from './children.ts';
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

/** The driver's calls alone in both processes, on two words of page-locked memory. */
const rawWay = (
  queue: (answering: Answering, words: RawWords, first: number, end: number) => number,
): Way => ({
  name: RAW,
  async open({ children }) {
    const answering = await children.answering();
    const words = await answering.words();
    // As the other ways wait: the emulated driver makes progress when it is called.
    const pass = async (count: number): Promise<bigint> => {
      const first = await answering.queue(count, true);
      const start = process.hrtime.bigint();
      const status = queue(answering, words, first, first + count);
      const { stream, isEmulated } = answering;
      for (let looks = 0; words.answered < first + count - 1; looks += 1) {
        if (isEmulated) void stream.done;
        if (looks > MOST_LOOKS) throw new Error('the rounds are not answered');
      }
      const end = process.hrtime.bigint();
      requireSuccess(status === 0, 'queueing');
      stream.synchronizeSync();
      return end - start;
    };
    return {
      async run(calls, untimed) {
        if (untimed > 0) await pass(untimed);
        return Number(await pass(calls));
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

/** As {@link queuedAhead}. */
export const queuedAheadRaw: Way = rawWay(({ stream }, words, first, end) => {
  let status = 0;
  for (let value = first; value < end; value += 1)
    status |= words.write(stream, 'ours', value) | words.wait(stream, 'theirs', value);
  return status;
});

/** A ring of slots: the stream here waits until the slot of so many rounds before was released. */
export const ringRaw = (slots: number): Way =>
  rawWay(({ stream }, words, first, end) => {
    let status = 0;
    for (let value = first; value < end; value += 1) {
      if (value >= first + slots) status |= words.wait(stream, 'theirs', value - slots);
      status |= words.write(stream, 'ours', value);
    }
    return status;
  });
