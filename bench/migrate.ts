/** Result files of older versions, as files of today. */
import { z } from 'zod';

/** What is read of a file of version 1; all else in it is the same in the next. */
const firstVersion = z.looseObject({
  version: z.literal(1),
  machine: z.looseObject({}),
  cases: z.array(
    z.looseObject({
      name: z.string(),
      gigabytesPerSecond: z.array(z.number()).nullable(),
      contestants: z.array(z.object({ name: z.string(), rounds: z.array(z.number()) })),
    }),
  ),
  delays: z.array(z.unknown()).default([]),
});

const suites: readonly (readonly [RegExp, string])[] = [
  [/^hand-over/, 'hand-over'],
  [/\.allocate$/, 'memory'],
  [/^copy/, 'copies'],
  [/^array\./, 'arrays'],
];

/** A file of version 2 has everything but passes: it was measured in one. */
const secondVersion = z.looseObject({ version: z.literal(2) });

/**
 * A file of version 3 was measured by the host's clock alone, not in turns with another run, and
 * says nothing of the limits of its machine.
 */
const thirdVersion = z.looseObject({
  version: z.literal(3),
  machine: z.looseObject({}),
  cases: z.array(z.looseObject({ name: z.string() })),
});

/** Brings an older file into the form of today; anything else is given back as it is. */
export const migrate = (file: unknown): unknown => fromThird(fromSecond(fromFirst(file)));

function fromThird(file: unknown): unknown {
  const { success, data } = thirdVersion.safeParse(file);
  if (!success) return file;
  return {
    ...data,
    version: 4,
    inTurns: false,
    machine: { ...data.machine, link: null, memoryBandwidth: null },
    cases: data.cases.map((one) => ({ ...one, clock: 'host', limit: limitOf(one.name) })),
  };
}

/** The bytes of copies have the limits that they have today. */
function limitOf(name: string): { by: 'link' | 'memory'; times: number } | null {
  if (name === 'copyTo') return { by: 'memory', times: 2 };
  return /^copy(From|ToHost)/.test(name) ? { by: 'link', times: 1 } : null;
}

function fromSecond(file: unknown): unknown {
  const { success, data } = secondVersion.safeParse(file);
  return success ? { ...data, version: 3, passes: 1 } : file;
}

function fromFirst(file: unknown): unknown {
  const { success, data } = firstVersion.safeParse(file);
  if (!success) return file;
  return {
    ...data,
    version: 2,
    quick: false,
    machine: { ...data.machine, clocks: null, commit: null },
    cases: data.cases.map(({ name, gigabytesPerSecond, contestants, ...rest }) => ({
      ...rest,
      name,
      suite: suites.find(([pattern]) => pattern.test(name))?.[1] ?? 'calls',
      isCopy: gigabytesPerSecond !== null,
      count: null,
      contestants: contestants.map(({ name: contestant, rounds }) => ({
        name: contestant,
        samples: rounds,
      })),
    })),
  };
}
