/** Handing over again and again: only the way there and back is timed. */
import type { DeviceBuffer } from 'cuffi';
import type { DriverChoice } from '../driver.ts';
import type { Contestant } from '../measure.ts';

/** One way of handing over. */
export interface Way extends Omit<Contestant, 'run'> {
  /** The buffer of a round. What it costs is not timed. */
  readonly buffer: () => DeviceBuffer;
  /** Sets its first word before the time begins. Default: and waits for that. */
  readonly change?: (buffer: DeviceBuffer, word: number) => void;
  /** Hands it over; answers with the word that the receiver read. */
  readonly give: (buffer: DeviceBuffer) => Promise<unknown>;
  /** What is done after the round, untimed. */
  readonly after?: (buffer: DeviceBuffer) => void;
}

/** Until V8 has compiled, at both ends, what a server runs all day. */
const WARM_UP_MS = 1000;
/** For those that do mostly the same as one before them. */
const SHORT_WARM_UP_MS = 300;

/** The emulated driver's times say nothing: it need not be warm; a process that was used is. */
export const warmUp = ({ emulated }: DriverChoice, isNew: boolean): number =>
  emulated ? 0 : isNew ? WARM_UP_MS : SHORT_WARM_UP_MS;

let last = 0;
const word = new Uint32Array(1);

function changeAndWait(buffer: DeviceBuffer, value: number): void {
  word[0] = value;
  buffer.copyFromSync(word);
}

/**
 * A contestant that changes one word of the buffer on the device in each round, so that nothing that
 * was left over passes.
 *
 * @throws Error where the receiver read anything else
 */
export function handOver({
  name,
  buffer: next,
  change = changeAndWait,
  give,
  after,
  ...limits
}: Way): Contestant {
  async function turn(): Promise<bigint> {
    const buffer = next();
    last += 1;
    change(buffer, last);
    const start = process.hrtime.bigint();
    const seen = await give(buffer);
    const ns = process.hrtime.bigint() - start;
    if (seen !== last) throw new Error(`${name}: the other process read ${seen}, not ${last}`);
    after?.(buffer);
    return ns;
  }

  return {
    name,
    ...limits,
    async run(calls) {
      // Untimed, as after another contestant's turn the first calls are slower.
      for (let call = 0; call < Math.floor(calls / 10); call += 1) await turn();
      let ns = 0n;
      for (let call = 0; call < calls; call += 1) ns += await turn();
      return Number(ns);
    },
  };
}
