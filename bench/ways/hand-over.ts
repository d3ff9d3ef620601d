/** Handing over again and again: only the way there and back is timed. */
import type { DeviceBuffer } from 'cuffi';
import { COMPARED, writePatternTo } from '../programs/pattern.ts';
import type { OpenWay } from './way.ts';

/** The rounds of a way. */
export interface Rounds extends Omit<OpenWay, 'run' | 'close'> {
  /** The buffer of a round. What it costs is not timed. */
  buffer(): DeviceBuffer;
  /** Sets its first word before the time begins. Default: and waits for that. */
  change?(buffer: DeviceBuffer, word: number): void;
  /** Hands it over; answers with the word that the receiver read. */
  give(buffer: DeviceBuffer): Promise<unknown>;
  /** What is done after the round, untimed. */
  after?(buffer: DeviceBuffer): void;
}

let last = 0;
const word = new Uint32Array(1);

function changeAndWait(buffer: DeviceBuffer, value: number): void {
  word[0] = value;
  buffer.copyFromSync(word);
}

/**
 * A way that changes one word of the buffer on the device in each round, so that nothing that was
 * left over passes; what it runs throws where the receiver read anything else.
 */
export function handOver({
  buffer: next,
  change = changeAndWait,
  give,
  after,
  ...others
}: Rounds): Omit<OpenWay, 'close'> {
  async function round(): Promise<bigint> {
    const buffer = next();
    last += 1;
    change(buffer, last);
    const start = process.hrtime.bigint();
    const seen = await give(buffer);
    const ns = process.hrtime.bigint() - start;
    if (seen !== last) throw new Error(`the other process read ${seen}, not ${last}`);
    after?.(buffer);
    return ns;
  }

  return {
    ...others,
    async run(calls, untimed) {
      for (let call = 0; call < untimed; call += 1) await round();
      let ns = 0n;
      for (let call = 0; call < calls; call += 1) ns += await round();
      return Number(ns);
    },
  };
}

/**
 * As {@link handOver}, after one round that moves the whole pattern and has the receiver compare it,
 * which touches all pages at both ends as well.
 *
 * @throws Error where other bytes arrived
 */
export async function compareAndHandOver(
  receiver: { compareNext(): Promise<void> },
  { close, ...rounds }: Rounds & Pick<OpenWay, 'close'>,
): Promise<OpenWay> {
  try {
    const buffer = rounds.buffer();
    writePatternTo(buffer);
    await receiver.compareNext();
    const answer = await rounds.give(buffer);
    if (answer !== COMPARED) throw new Error(`the other process got ${answer}`);
    rounds.after?.(buffer);
  } catch (error) {
    await close();
    throw error;
  }
  return { ...handOver(rounds), hasRun: true, close };
}
