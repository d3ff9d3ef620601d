/**
 * Which streams stand still beside others that wait for a word of memory. A device has a number of
 * queues: a stream takes one without unfinished work, or shares one if there isn't.
 */
import { setTimeout as delay } from 'node:timers/promises';
import { Asked, PATIENCE_MS, question } from './asked.ts';
import type { FactGroup } from './facts.ts';
import { MIB } from './kinds.ts';

const LEGACY = 1;
const NOT_READY = 600;
const OTHERS = 16;

/** Whether the work of a stream is not done after a time in which it would have been. */
async function standsStill(asked: Asked, stream: number, limitMs: number): Promise<boolean> {
  for (const end = performance.now() + limitMs; ; await delay(1)) {
    if ((await asked.call('cuStreamQuery', stream)).status !== NOT_READY) return false;
    if (performance.now() > end) return true;
  }
}

export const queueFacts: FactGroup = async (note) => {
  for (const count of [1, 2, 3, 4, 5, 6, 7, 8])
    await question(note, `beside ${count} waiting streams`, async (named) => {
      await using asked = await Asked.start(named);
      const memory = await asked.memory(MIB);
      const others: number[] = [];
      for (let n = 0; n < OTHERS; n += 1) others.push(await asked.stream());
      const waiting: number[] = [];
      for (let n = 0; n < count; n += 1) waiting.push(await asked.stream());
      for (const stream of [...others, ...waiting, LEGACY])
        await asked.made('cuMemsetD8Async', memory, 1, 64, stream);
      await asked.made('cuCtxSynchronize');
      for (const stream of waiting) await asked.hold(stream);
      await delay(20);
      const all = [...others, LEGACY];
      let still = 0;
      for (const stream of all) {
        await asked.made('cuMemsetD8Async', memory, 1, 64, stream);
        if (await standsStill(asked, stream, PATIENCE_MS / 20)) still += 1;
      }
      named('others that stand still, with work one after the other', `${still} of ${all.length}`);
      asked.release();
      let after = 0;
      for (const stream of all) if (await standsStill(asked, stream, PATIENCE_MS)) after += 1;
      named('others that stand still when the waits have ended', after);
    });
};
