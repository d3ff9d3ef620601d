/** A way to move bytes to another process, and the rounds that all ways share. */
import type { DeviceBuffer } from 'cuffi';
import type { OpenCase } from '../cases/case.ts';
import type { Contestant } from '../measure.ts';
import type { DriverChoice } from '../results.ts';
import type { Children } from './children.ts';
import { COMPARED, writePatternTo } from './pattern.ts';

export interface Way {
  /** The name of the contestant. */
  readonly name: string;
  /** Prepares, untimed, what the rounds need. */
  open(opening: Opening): OpenWay | Promise<OpenWay>;
}

export interface Opening {
  readonly driver: DriverChoice;
  /** Of the buffer. */
  readonly byteLength: number;
  readonly children: Children;
}

/** A way that is ready for its rounds. */
export interface OpenWay extends Omit<Contestant, 'name'> {
  verify?(): Promise<void>;
  close(): void | Promise<void>;
}

/**
 * How long a way runs before its first round: the first way of a row in its first size needs most, as
 * V8 compiles it then. On an H200 host a hand-over of a pool took 0.4 ms for 1.5 s, then 0.2 ms.
 */
const FIRST = { warmUpMs: 1500, warmUpMostMs: 2500 };
const LATER = { warmUpMs: 300, warmUpMostMs: 600 };

/** The warm-up of a hand-over; the emulated driver, whose times say nothing, has no warm-up. */
export const warmUp = (
  { emulated }: DriverChoice,
  isFirst: boolean,
): Pick<Contestant, 'warmUpMs' | 'warmUpMostMs'> => (emulated ? {} : isFirst ? FIRST : LATER);

/** Opens the ways of a case, one after the other. */
export async function openWays(ways: readonly Way[], opening: Opening): Promise<OpenCase> {
  const { driver, children } = opening;
  const opened: OpenWay[] = [];
  const contestants: Contestant[] = [];
  const close = async (): Promise<void> => {
    const closed = await Promise.allSettled(opened.map(async (way) => way.close()));
    for (const one of closed) if (one.status === 'rejected') throw one.reason;
  };
  try {
    for (const way of ways) {
      const open = await way.open(opening);
      const isFirst = opened.push(open) === 1 && children.isNew(way);
      contestants.push({ name: way.name, ...warmUp(driver, isFirst), ...open });
    }
  } catch (error) {
    await close();
    throw error;
  }
  return {
    contestants,
    close,
    async verify() {
      for (const way of opened) await way.verify?.();
    },
  };
}

/** Sends something there and back; the whole time counts. */
export const roundTrips = (go: () => Promise<unknown>): OpenWay => ({
  async run(calls, untimed) {
    for (let call = 0; call < untimed; call += 1) await go();
    const start = process.hrtime.bigint();
    for (let call = 0; call < calls; call += 1) await go();
    return Number(process.hrtime.bigint() - start);
  },
  close() {},
});

/** The steps of a hand-over. */
export interface Steps extends Omit<OpenWay, 'run' | 'close'> {
  /** Returns the buffer of the round, untimed. */
  buffer(): DeviceBuffer;
  /** Sets the first word, untimed. Default: copies the word and waits. */
  change?(buffer: DeviceBuffer, word: number): void;
  /** Hands the buffer over, timed; returns the word that the receiver read. */
  give(buffer: DeviceBuffer): Promise<unknown>;
  /** Follows the round, untimed. */
  after?(buffer: DeviceBuffer): void;
}

let last = 0;
const word = new Uint32Array(1);

function changeAndWait(buffer: DeviceBuffer, value: number): void {
  word[0] = value;
  buffer.copyFromSync(word);
}

/** Changes one word in each round; `run` throws if the receiver reads another word. */
export function handOver({
  buffer: next,
  change = changeAndWait,
  give,
  after,
  ...others
}: Steps): Omit<OpenWay, 'close'> {
  async function round(): Promise<bigint> {
    const buffer = next();
    last += 1;
    change(buffer, last);
    const start = process.hrtime.bigint();
    const seen = await give(buffer);
    const ns = process.hrtime.bigint() - start;
    if (seen !== last) throw new Error(`the other process read ${seen} instead of ${last}`);
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
 * As {@link handOver}, after one round in which the receiver compares the whole buffer. That also
 * touches all pages on both sides. @throws Error if wrong bytes arrive
 */
export async function compareAndHandOver(
  receiver: { compareNext(): Promise<void> },
  { close, ...steps }: Steps & Pick<OpenWay, 'close'>,
): Promise<OpenWay> {
  try {
    const buffer = steps.buffer();
    writePatternTo(buffer);
    await receiver.compareNext();
    const answer = await steps.give(buffer);
    if (answer !== COMPARED) throw new Error(`the other process: ${answer}`);
    steps.after?.(buffer);
  } catch (error) {
    await close();
    throw error;
  }
  return { ...handOver(steps), hasRun: true, close };
}
