import type { OpenCase } from '../cases/case.ts';
import type { DriverChoice } from '../driver.ts';
import type { Contestant } from '../measure.ts';
import type { Opening, OpenWay, Way } from './way.ts';

const WARM_UP_MS = 300;
const WARM_UP_MOST_MS = 2500;

/**
 * Until V8 has compiled, at both ends, what a server runs all day. The emulated driver's times say
 * nothing: it need not be warm.
 */
export const warmUp = (
  { emulated }: DriverChoice,
  mostMs = WARM_UP_MOST_MS,
): Pick<Contestant, 'warmUpMs' | 'warmUpMostMs'> =>
  emulated ? {} : { warmUpMs: WARM_UP_MS, warmUpMostMs: mostMs };

/** Opens the ways of a case, one after the other. */
export async function openWays(ways: readonly Way[], opening: Opening): Promise<OpenCase> {
  const opened: OpenWay[] = [];
  const contestants: Contestant[] = [];
  async function close(): Promise<void> {
    const errors: unknown[] = [];
    for (const way of opened) {
      try {
        await way.close();
      } catch (error) {
        errors.push(error);
      }
    }
    if (errors.length > 0) throw errors[0];
  }
  try {
    for (const way of ways) {
      const open = await way.open(opening);
      opened.push(open);
      contestants.push({ name: way.name, ...warmUp(opening.driver), ...open });
    }
  } catch (error) {
    await close();
    throw error;
  }
  return { contestants, close };
}
