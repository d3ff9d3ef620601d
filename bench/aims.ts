/**
 * The aims and goals of bench/aims.json, and whether runs meet them. An aim is a ratio to another
 * contestant of the same run, such as C or a floor of the platform. Each process of a run gives one
 * figure, and the best one counts: a host that is slow for some minutes makes none better.
 */
import { fileURLToPath } from 'node:url';
import { z } from 'zod';
import { duration, EMULATED, groupBy, multiple } from './format.ts';
import {
  type CaseResult,
  differenceOf,
  type Results,
  ratioOf,
  readJson,
  readResults,
  type Samples,
  summarize,
  titleOf,
  UsageError,
} from './results.ts';

const name = z.string().min(1);

const subject = {
  suite: name,
  case: name,
  variant: name.optional(),
  fromByteLength: z.int().positive().optional(),
  /** Default: the first contestant of the case. */
  contestant: name.optional(),
  statistic: z.enum(['median', 'p99']).default('median'),
};

const ratio = z.strictObject({
  ...subject,
  /** The contestant that it is compared with, by the same statistic. */
  versus: name,
  /** The largest ratio. */
  max: z.number().positive(),
  /** The median of this contestant is subtracted from both first: what both must spend. */
  beyond: name.optional(),
});

const time = z.strictObject({
  ...subject,
  /** The longest time, in microseconds. */
  maxUs: z.number().positive(),
  /** The median of this contestant is subtracted first. */
  over: name.optional(),
  /** The contestant whose time stands beside it: what the platform takes there. */
  floor: name,
});

const schema = z.strictObject({
  version: z.literal(2),
  aims: z.array(ratio),
  /** What would be better than the aims. It is shown and not checked, and may be a time. */
  goals: z.array(z.union([ratio, time])),
  /** By case: why its aims are not met, in one line. */
  reasons: z.record(name, name),
});

export type Aim = z.infer<typeof ratio>;
export type Goal = Aim | z.infer<typeof time>;

const FILE = fileURLToPath(new URL('./aims.json', import.meta.url));
let file: z.infer<typeof schema> | undefined;
const read = (): z.infer<typeof schema> => {
  file ??= readJson(FILE, schema);
  return file;
};

export const readAims = (): readonly Aim[] => read().aims;
export const readGoals = (): readonly Goal[] => read().goals;
/** Why the aims of a case are not met; by the name of the case. */
export const readReasons = (): Readonly<Record<string, string>> => read().reasons;

/** True if an aim applies to a case. */
export const appliesTo = (
  of: Goal,
  result: Pick<CaseResult, 'suite' | 'name' | 'variant' | 'byteLength'>,
): boolean =>
  of.suite === result.suite &&
  of.case === result.name &&
  (of.variant === undefined || of.variant === result.variant) &&
  (of.fromByteLength === undefined || (result.byteLength ?? 0) >= of.fromByteLength);

/** An aim or goal and what was measured. */
export interface Judgement {
  readonly aim: Goal;
  /** The aim in words. */
  readonly text: string;
  /** The figures in words: those of the best process, and in brackets the ratios or times of the others. */
  readonly figure: string;
  /** A ratio, or nanoseconds: that of the best process. Undefined if it was not measured. */
  readonly value: number | undefined;
  /** What it is compared with, in nanoseconds, in the same process. */
  readonly floorNs: number | undefined;
  /** The value as a multiple of the aim's limit. */
  readonly part: number | undefined;
  /** Undefined if it was not measured. */
  readonly met: boolean | undefined;
}

/**
 * Returns one judgement for each case that an aim applies to, or one that says "not measured".
 *
 * @param runs the best process of all of them counts
 */
export function judge(runs: readonly Results[], aims: readonly Goal[] = readAims()): Judgement[] {
  const cases = runs.flatMap((run) => run.cases);
  return aims.flatMap((of) => {
    const alike = groupBy(
      cases.filter((result) => appliesTo(of, result)),
      titleOf,
    );
    if (alike.size === 0) return [judgement(of, of.case, [])];
    return [...alike.values()].map((ofTitle) => judgeCase(ofTitle, of));
  });
}

/** Judges one case, of one or several runs. */
export const judgeCase = (results: readonly CaseResult[], of: Goal): Judgement =>
  judgement(
    of,
    titleOf(results[0] as CaseResult),
    results.flatMap((result) => figuresOf(result, of)),
  );

/** What one process measured. */
interface Figure {
  /** The times in words. */
  readonly times: string;
  /** A ratio, or nanoseconds. */
  readonly value: number;
  readonly floorNs: number;
}

/** The figures of all processes that measured all contestants of an aim. */
function figuresOf({ contestants }: CaseResult, of: Goal): Figure[] {
  const names =
    'versus' in of
      ? [of.versus, of.beyond]
      : [of.floor, of.over === of.floor ? undefined : of.over];
  const wanted = [of.contestant ?? contestants[0]?.name, ...names].filter(
    (each) => each !== undefined,
  );
  const found = wanted.map((each) => contestants.find((one) => one.name === each));
  const all = found.filter((each) => each !== undefined);
  if (all.length < wanted.length) return [];
  const passes = Math.min(...all.map((each) => each.passes.length));
  return Array.from({ length: passes }, (_, at) =>
    all.map((each) => summarize(each.name, each.passes[at] ?? [])),
  )
    .filter((ofPass) => ofPass.every(({ samples }) => samples.length > 0))
    .map((ofPass) => {
      const statistics = ofPass.map(
        (each, at) => `${each.name} ${duration(at < 2 ? each[of.statistic] : each.median)}`,
      );
      const [own, other, base] = ofPass as [Samples, Samples, Samples | undefined];
      return {
        times: statistics.join(', '),
        value: ratioOrTime(of, [own, other, base]),
        floorNs: other[of.statistic],
      };
    });
}

/** @param ofPass the contestant, the one that it is compared with, and the one that is subtracted */
function ratioOrTime(
  of: Goal,
  [own, other, base = other]: readonly [Samples, Samples, Samples | undefined],
): number {
  if (!('versus' in of)) return of.over === undefined ? own[of.statistic] : differenceOf(own, base);
  if (of.beyond !== undefined) return differenceOf(own, base) / differenceOf(other, base);
  return of.statistic === 'median' ? ratioOf(own, other) : own.p99 / other.p99;
}

function judgement(of: Goal, title: string, figures: readonly Figure[]): Judgement {
  const { suite, contestant, statistic } = of;
  const isRatio = 'versus' in of;
  const limit = isRatio ? of.max : of.maxUs * 1000;
  const inWords = inWordsOf(of);
  const [best, ...others] = [...figures].sort((a, b) => a.value - b.value);
  const rest = others.map(({ value }) => inWords(value)).join(', ');
  return {
    aim: of,
    text: `${suite}: ${title}${contestant === undefined ? '' : `, ${contestant}`}: ${statistic} at most ${limitOf(of)}`,
    figure: best ? `${best.times}: ${inWords(best.value)}${rest && ` (${rest})`}` : 'not measured',
    value: best?.value,
    floorNs: best?.floorNs,
    part: best && best.value / limit,
    met: best && best.value <= limit,
  };
}

/** How the values of an aim are written. */
export const inWordsOf = (of: Goal): ((value: number) => string) =>
  'versus' in of ? multiple : duration;

/** The limit of an aim in words. */
export function limitOf(of: Goal): string {
  if ('versus' in of)
    return `${of.max} times ${of.versus}${of.beyond === undefined ? '' : ` beyond ${of.beyond}`}`;
  return `${duration(of.maxUs * 1000)}${of.over === undefined ? '' : ` over ${of.over}`}`;
}

export const verdict = ({ met }: Judgement): string =>
  met === undefined ? 'not measured' : met ? 'met' : 'missed';

/** `check`: prints each aim; returns 1 unless all are met by one of the files. @throws UsageError */
export function check(paths: readonly string[], isPartial: boolean): number {
  const runs = paths.map((path) => {
    const results = readResults(path);
    if (results.driver.emulated) throw new UsageError(`${path}: ${EMULATED}`);
    return results;
  });
  const judged = judge(runs).filter(({ met }) => met !== undefined || !isPartial);
  for (const each of judged)
    console.log(`${verdict(each).padEnd(12)}  ${each.text}: ${each.figure}`);
  const count = (word: string): number => judged.filter((each) => verdict(each) === word).length;
  const words = ['met', 'missed', 'not measured'];
  console.log(words.map((word) => `${count(word)} ${word}`).join(', '));
  return count('met') === judged.length && judged.length > 0 ? 0 : 1;
}
