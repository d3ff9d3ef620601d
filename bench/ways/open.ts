import type { OpenCase } from '../cases/case.ts';
import type { DriverChoice } from '../driver.ts';
import type { Contestant } from '../measure.ts';
import type { Opening, OpenWay, Way } from './way.ts';

/**
 * For how long a way runs before its first round, in milliseconds: the first of a row in the first of
 * its sizes, for which V8 has most to compile (on an H200's host a pool's took 0.4 ms for the first
 * second and a half, and half of that after two); and those that do mostly what one before them did.
 */
const FIRST = { warmUpMs: 1500, warmUpMostMs: 2500 };
const LATER = { warmUpMs: 100, warmUpMostMs: 200 };

/**
 * Until V8 has compiled, at both ends, what a server runs all day. The emulated driver's times say
 * nothing: it need not be warm.
 */
export const warmUp = (
  { emulated }: DriverChoice,
  isFirst: boolean,
): Pick<Contestant, 'warmUpMs' | 'warmUpMostMs'> => (emulated ? {} : isFirst ? FIRST : LATER);

/** Opens the ways of a case, one after the other. */
export async function openWays(ways: readonly Way[], opening: Opening): Promise<OpenCase> {
  const { driver, children } = opening;
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
      const isFirst = opened.push(open) === 1 && children.isNew(way);
      contestants.push({ name: way.name, ...warmUp(driver, isFirst), ...open });
    }
  } catch (error) {
    await close();
    throw error;
  }
  return { contestants, close };
}
