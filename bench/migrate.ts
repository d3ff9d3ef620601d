/** Result files of version 1, as files of today. */
import { z } from 'zod';

/** What is read of a file of version 1; all else in it is the same today. */
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

/** Brings a file of version 1 into the form of today; anything else is given back as it is. */
export function migrate(file: unknown): unknown {
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
