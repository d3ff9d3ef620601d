/** The result file: its schema, and the statistics that follow from its samples. */
import { readFileSync, writeFileSync } from 'node:fs';
import { z } from 'zod';

/** A wrong argument, or a file that cannot be read. The message is one sentence for the user. */
export class UsageError extends Error {}

/** The times of one contestant, in nanoseconds per call, and their statistics. */
export interface Samples {
  readonly name: string;
  readonly median: number;
  readonly p10: number;
  readonly p90: number;
  readonly p99: number;
  readonly max: number;
  /** One per round; a case of the suite `event-loop` has many. */
  readonly samples: readonly number[];
  /** The same by the process of the run that took them. */
  readonly passes: readonly (readonly number[])[];
}

export function summarize(
  name: string,
  samples: readonly number[],
  passes: Samples['passes'] = [samples],
): Samples {
  const sorted = [...samples].sort((a, b) => a - b);
  const [p10, median, p90, p99, max] = [0.1, 0.5, 0.9, 0.99, 1].map((part) =>
    quantile(sorted, part),
  ) as [number, number, number, number, number];
  return { name, median, p10, p90, p99, max, samples, passes };
}

/** Interpolates linearly between two samples. */
function quantile(sorted: readonly number[], fraction: number): number {
  const position = (sorted.length - 1) * fraction;
  const below = sorted[Math.floor(position)] ?? Number.NaN;
  const above = sorted[Math.ceil(position)] ?? Number.NaN;
  return below + (above - below) * (position - Math.floor(position));
}

/**
 * The ratio of two contestants in each round. The two samples of a round were taken one after the
 * other, so a machine that is slow for some seconds affects both. Undefined if one of them took part
 * in fewer rounds.
 */
export const ratiosOf = (one: Samples, other: Samples): number[] | undefined =>
  one.samples.length === other.samples.length
    ? one.samples.map((ns, at) => ns / (other.samples[at] as number))
    : undefined;

/** The median of {@link ratiosOf}, or the ratio of the medians if there are no such pairs. */
export function ratioOf(one: Samples, other: Samples): number {
  const ratios = ratiosOf(one, other);
  return ratios ? summarize('', ratios).median : one.median / other.median;
}

/** As {@link ratioOf}, the difference. */
export const differenceOf = (one: Samples, other: Samples): number =>
  one.samples.length === other.samples.length
    ? summarize(
        '',
        one.samples.map((ns, at) => ns - (other.samples[at] as number)),
      ).median
    : one.median - other.median;

const text = z.string().min(1);
const count = z.int().nonnegative();
const lanes = z.object({ speed: z.number().positive(), width: z.int().positive() });

const machine = z.object({
  /** When the run began, in ISO 8601. */
  date: text,
  gpu: text,
  /** Null for the emulated driver, and if there is no nvidia-smi. */
  driverVersion: text.nullable(),
  cuda: text,
  /** In MHz, read before the run. */
  clocks: z.object({ sm: count, memory: count, smMax: count, memoryMax: count }).nullable(),
  cpu: text,
  cpuCount: count,
  node: text,
  koffi: text,
  cuffi: text,
  /** The PCI Express link: 1e9 transfers a second per lane, and lanes. Null if it is unknown. */
  link: z.object({ current: lanes, max: lanes }).nullable(),
  /** Bytes per second, from the memory's clock and bus width. */
  memoryBandwidth: z.number().positive().nullable(),
  /** With `+` if the tree had changes; null outside a clone. */
  commit: text.nullable(),
});

const driver = z.object({
  name: text,
  library: text,
  reason: text,
  /** True if there was no GPU. */
  emulated: z.boolean(),
  version: text,
});

// Only samples are stored, a list for each pass; the statistics are computed from them.
const contestant = z
  .object({ name: text, samples: z.array(z.array(z.number().nonnegative())).min(1) })
  .refine(({ samples }) => samples.flat().length > 0, 'there is no sample')
  .transform(({ name, samples }) => summarize(name, samples.flat(), samples));

const skipped = z.object({ name: text, reason: text });

const caseResult = z.object({
  suite: text,
  name: text,
  /** Distinguishes cases of the same name. */
  variant: text.nullable(),
  what: text,
  callsPerBatch: z.int().positive(),
  /** Bytes that a call allocates or moves. */
  byteLength: count.nullable(),
  /** If true, the bytes are moved, and tables show GB/s. */
  isCopy: z.boolean(),
  clock: z.enum(['host', 'gpu']),
  /** The part of the machine that limits the bandwidth, and how often each byte passes through it. */
  limit: z.object({ by: z.enum(['link', 'memory']), times: z.number().positive() }).nullable(),
  /** What is counted, and how many, if the cases of the name differ by a number. */
  count: z.object({ of: text, value: count }).nullable(),
  contestants: z.array(contestant).min(1),
  /** Peers that were running but cannot do this. */
  skipped: z.array(skipped),
});

const resultSchema = z.object({
  version: z.literal(6),
  machine,
  driver,
  quick: z.boolean(),
  /** The most rounds of a case, over all passes. */
  rounds: z.int().positive(),
  /** Processes that ran one after the other, each with its part of the rounds. */
  passes: z.int().positive(),
  /** If true, the contestants of short calls shared one CPU, and their child processes another. */
  isPinned: z.boolean(),
  /** False if the run was interrupted: cases or rounds are missing. */
  isComplete: z.boolean(),
  unit: z.literal('ns'),
  cases: z.array(caseResult),
  /** Peers that could not run at all. */
  skipped: z.array(skipped),
});

/** A result file. */
export type Results = z.infer<typeof resultSchema>;
export type Machine = Results['machine'];
export type DriverChoice = Results['driver'];
/** One case; times are in nanoseconds per call. */
export type CaseResult = Results['cases'][number];
/** A contestant that did not take part, and why. */
export type Skipped = Results['skipped'][number];

/** Returns the name and variant of a case. */
export const titleOf = ({
  name,
  variant,
}: {
  readonly name: string;
  readonly variant?: string | null | undefined;
}): string => (variant ? `${name}, ${variant}` : name);

/** Joins the parts of a case that several passes measured, each in one list. */
export function mergeCase(parts: readonly CaseResult[]): CaseResult {
  const names = new Set(parts.flatMap(({ contestants }) => contestants.map(({ name }) => name)));
  const passesOf = (name: string): (readonly number[])[] =>
    parts.map(({ contestants }) => contestants.find((one) => one.name === name)?.samples ?? []);
  const skips = new Map(parts.flatMap((part) => part.skipped.map((one) => [one.name, one])));
  return {
    ...(parts[0] as CaseResult),
    contestants: [...names]
      .map((name) => summarize(name, passesOf(name).flat(), passesOf(name)))
      .filter(({ samples }) => samples.length > 0),
    skipped: [...skips.values()],
  };
}

/**
 * Adds the cases of a run to those of one that was interrupted, in place of its own.
 *
 * @param all the names of the cases that a complete run has
 * @throws UsageError if the runs differ in what their times depend on
 */
export function joinResults(
  interrupted: Results,
  rest: Results,
  all: readonly string[],
  keyOf: (of: CaseResult) => string,
): Results {
  for (const [what, part] of Object.entries(decisive)) {
    const [one, other] = [part(interrupted), part(rest)];
    if (one !== other) throw new UsageError(`the runs differ: ${what} ${one} and ${other}`);
  }
  const cases = new Map(
    [...interrupted.cases, ...rest.cases].map((each) => [keyOf(each), each] as const),
  );
  const commits = new Set([interrupted, rest].map(({ machine: { commit } }) => commit));
  return {
    ...interrupted,
    machine: { ...interrupted.machine, commit: [...commits].join(' and ') },
    isComplete: rest.isComplete && all.every((name) => cases.has(name)),
    cases: all.flatMap((name) => cases.get(name) ?? []),
  };
}

/** What must be equal in two runs of which one has the cases that the other lacks. */
const decisive: Readonly<Record<string, (of: Results) => unknown>> = {
  GPU: ({ machine: { gpu } }) => gpu,
  driver: ({ machine: { driverVersion } }) => driverVersion,
  CPU: ({ machine: { cpu, cpuCount } }) => `${cpuCount} x ${cpu}`,
  Node: ({ machine: { node } }) => node,
  koffi: ({ machine: { koffi } }) => koffi,
  cuffi: ({ machine: { cuffi } }) => cuffi,
  rounds: ({ rounds }) => rounds,
  processes: ({ passes }) => passes,
};

/** @throws UsageError if the file cannot be read or is not a result file */
export const readResults = (path: string): Results => readJson(path, resultSchema);

/** @throws UsageError that names the wrong field */
export function readJson<T>(path: string, schema: z.ZodType<T>): T {
  try {
    return schema.parse(JSON.parse(readFileSync(path, 'utf8')));
  } catch (error) {
    const why = error instanceof z.ZodError ? z.prettifyError(error) : (error as Error).message;
    throw new UsageError(`${path} cannot be read: ${why}`);
  }
}

/** Writes the samples of a contestant in one line for each pass, rounded to a thousandth of a nanosecond. */
export function writeResults(path: string, results: Results): void {
  const stored = {
    ...results,
    cases: results.cases.map((result) => ({
      ...result,
      contestants: result.contestants.map(({ name, passes }) => ({ name, samples: passes })),
    })),
  };
  const json = JSON.stringify(
    stored,
    (_, value) => (typeof value === 'number' ? Math.round(value * 1000) / 1000 : value),
    2,
  );
  const oneLine = (list: string): string =>
    list.replaceAll(/\s+/g, ' ').replace('[ ', '[').replace(' ]', ']');
  writeFileSync(path, `${json.replaceAll(/\[[\d\s.,e+-]+\]/g, oneLine)}\n`);
}
