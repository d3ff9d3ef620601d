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

/** Brings an older file into the form of today; anything else is given back as it is. */
export function migrate(file: unknown): unknown {
  const second = secondVersion.safeParse(fromFirst(file));
  return second.success ? { ...second.data, version: 3, passes: 1 } : file;
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
