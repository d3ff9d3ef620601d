/** The aims of bench/aims.json, and whether a run meets them. */
import { fileURLToPath } from 'node:url';
import { z } from 'zod';
import { duration, EMULATED, multiple } from './format.ts';
import {
  type CaseResult,
  differenceOf,
  type Results,
  ratioOf,
  readJson,
  readResults,
  titleOf,
  UsageError,
} from './results.ts';

const name = z.string().min(1);

const aim = z
  .strictObject({
    suite: name,
    case: name,
    variant: name.optional(),
    fromByteLength: z.int().positive().optional(),
    /** Default: the first contestant of the case. */
    contestant: name.optional(),
    statistic: z.enum(['median', 'p99']).default('median'),
    /** The median of this contestant is subtracted first. */
    over: name.optional(),
    /** The ratio to this contestant counts. */
    versus: name.optional(),
    /** The largest ratio. */
    max: z.number().positive().optional(),
    /** The longest time, in microseconds. */
    maxUs: z.number().positive().optional(),
    /** What is accepted until the aim is met, for the reason given below: a ratio or microseconds. */
    accepted: z.number().positive().optional(),
  })
  .refine(
    ({ over, versus, max, maxUs }) =>
      versus === undefined
        ? max === undefined && maxUs !== undefined
        : max !== undefined && maxUs === undefined && over === undefined,
    'an aim has either versus and max, or maxUs, with which over is allowed',
  )
  .refine(
    ({ accepted, max, maxUs = max }) => accepted === undefined || accepted > Number(maxUs),
    'what is accepted is above the aim',
  );

const schema = z.strictObject({
  version: z.literal(1),
  aims: z.array(aim),
  /** By case: why its aims are not met, in one line. */
  reasons: z.record(name, name),
});

export type Aim = z.infer<typeof aim>;

const FILE = fileURLToPath(new URL('./aims.json', import.meta.url));
let file: z.infer<typeof schema> | undefined;
const read = (): z.infer<typeof schema> => {
  file ??= readJson(FILE, schema);
  return file;
};

export const readAims = (): readonly Aim[] => read().aims;
/** Why the aims of a case are not met; by the name of the case. */
export const readReasons = (): Readonly<Record<string, string>> => read().reasons;

/** True if an aim applies to a case. */
export const appliesTo = (
  of: Aim,
  result: Pick<CaseResult, 'suite' | 'name' | 'variant' | 'byteLength'>,
): boolean =>
  of.suite === result.suite &&
  of.case === result.name &&
  (of.variant === undefined || of.variant === result.variant) &&
  (of.fromByteLength === undefined || (result.byteLength ?? 0) >= of.fromByteLength);

/** An aim and what was measured. */
export interface Judgement {
  readonly aim: Aim;
  /** The aim in words. */
  readonly text: string;
  /** The figures in words. */
  readonly figure: string;
  /** The measured value as a multiple of the aim's limit. Undefined if it was not measured. */
  readonly part: number | undefined;
  /** Undefined if it was not measured. */
  readonly met: boolean | undefined;
  /** Whether it is no worse than what is accepted until the aim is met. */
  readonly isAccepted: boolean;
}

/** Returns one judgement for each case that an aim applies to, or one that says "not measured". */
export const judge = (results: Results, aims: readonly Aim[] = readAims()): Judgement[] =>
  aims.flatMap((of) => {
    const cases = results.cases.filter((result) => appliesTo(of, result));
    if (cases.length === 0) return [judgement(of, of.case, 'not measured', undefined)];
    return cases.map((result) => judgeCase(result, of));
  });

/** Judges one case. */
export function judgeCase(result: CaseResult, of: Aim): Judgement {
  const { contestant, over, versus, max = Number.NaN, maxUs = Number.NaN, statistic } = of;
  const find = (wanted: string | undefined) =>
    result.contestants.find((one) => one.name === wanted);
  const own = contestant === undefined ? result.contestants[0] : find(contestant);
  const other = find(over ?? versus);
  const title = titleOf(result);
  if (!own || ((over ?? versus) !== undefined && !other))
    return judgement(of, title, 'not measured', undefined);
  const ns = own[statistic];
  const figure = `${own.name} ${duration(ns)}${other ? `, ${other.name} ${duration(other.median)}` : ''}`;
  if (versus !== undefined && other) {
    const ratio = ratioOf(own, other);
    return judgement(of, title, `${figure}: ${multiple(ratio)}`, ratio / max);
  }
  if (over === undefined || !other) return judgement(of, title, figure, ns / (maxUs * 1000));
  const difference = differenceOf(own, other);
  return judgement(of, title, `${figure}: ${duration(difference)}`, difference / (maxUs * 1000));
}

function judgement(of: Aim, title: string, figure: string, part: number | undefined): Judgement {
  const { suite, contestant, over, versus, max, maxUs = 0, statistic, accepted } = of;
  const limit = versus === undefined ? duration(maxUs * 1000) : `${max} times ${versus}`;
  const whose = contestant === undefined ? '' : `, ${contestant}`;
  const than = over === undefined ? '' : ` over ${over}`;
  return {
    aim: of,
    text: `${suite}: ${title}${whose}: ${statistic} at most ${limit}${than}`,
    figure,
    part,
    met: part === undefined ? undefined : part <= 1,
    isAccepted: part !== undefined && part <= (accepted ?? 0) / (max ?? maxUs),
  };
}

export const verdict = ({ met, isAccepted }: Judgement): string => {
  if (met === undefined) return 'not measured';
  return met ? 'met' : isAccepted ? 'accepted' : 'missed';
};

/** `check`: prints each aim; returns 1 unless all are met, or no worse than accepted. @throws UsageError */
export function check(path: string, isPartial: boolean): number {
  const results = readResults(path);
  if (results.driver.emulated) throw new UsageError(`${path}: ${EMULATED}`);
  const judged = judge(results).filter(({ met }) => met !== undefined || !isPartial);
  const verdicts = judged.map(verdict);
  for (const [at, { text, figure }] of judged.entries())
    console.log(`${verdicts[at]?.padEnd(12)}  ${text}: ${figure}`);
  const count = (word: string): number => verdicts.filter((each) => each === word).length;
  const words = ['met', 'accepted', 'missed', 'not measured'];
  console.log(words.map((word) => `${count(word)} ${word}`).join(', '));
  return count('met') + count('accepted') === judged.length && judged.length > 0 ? 0 : 1;
}
