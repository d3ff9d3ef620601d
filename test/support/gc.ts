/** Garbage, collected when a test asks for it; and what is mapped where. */
import { readFileSync } from 'node:fs';
import { setImmediate as turn } from 'node:timers/promises';
import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';

setFlagsFromString('--expose-gc');
const gc = runInNewContext('gc') as () => void;

/** Collects garbage until `condition` holds; answers whether it came to hold. */
export async function collectUntil(condition: () => boolean): Promise<boolean> {
  // A finalizer runs in a turn of its own after the collection, its release in another.
  for (let turns = 0; turns < 100 && !condition(); turns += 1) {
    gc();
    await turn();
  }
  return condition();
}

/** Collects garbage, and runs what finalizers queue. */
export async function collectGarbage(): Promise<void> {
  let turns = 0;
  await collectUntil(() => {
    turns += 1;
    return turns > 20;
  });
}

/** Whether an address of this process is mapped. */
export const isMapped = (address: number): boolean =>
  readFileSync('/proc/self/maps', 'utf8')
    .split('\n')
    .some((line) => {
      const [begin = '', end = ''] = line.split(' ', 1)[0]?.split('-') ?? [];
      return address >= Number.parseInt(begin, 16) && address < Number.parseInt(end, 16);
    });
