/** The cases of a run as a report shows them. */
import { groupBy } from '../group.ts';
import type { CaseResult, Results } from '../result-schema.ts';

/** The cases of one name: one, or several that differ by a size or a number. */
export interface Group {
  readonly suite: string;
  readonly name: string;
  readonly what: string;
  readonly cases: readonly CaseResult[];
  /** By what they differ, and each one's value of it; undefined where they differ otherwise. */
  readonly axis: Axis | undefined;
}

/** What the cases of a group differ by. */
export interface Axis {
  /** `bytes`, or what is counted. */
  readonly of: string;
  readonly valueOf: (result: CaseResult) => number;
}

/** The groups of a run, in the order in which they ran. */
export const groupsOf = ({ cases }: Results): Group[] =>
  [...groupBy(cases, ({ suite, name }) => JSON.stringify([suite, name])).values()].map(toGroup);

function toGroup(cases: readonly CaseResult[]): Group {
  const { suite, name, what } = cases[0] as CaseResult;
  return { suite, name, what, cases, axis: axisOf(cases) };
}

function axisOf(cases: readonly CaseResult[]): Axis | undefined {
  const of = cases[0]?.count?.of;
  const bytes: Axis = { of: 'bytes', valueOf: ({ byteLength }) => byteLength ?? 0 };
  const numbers: Axis = { of: of ?? '', valueOf: ({ count }) => count?.value ?? 0 };
  const axis = of === undefined ? bytes : numbers;
  const values = new Set(cases.map(axis.valueOf));
  return values.size > 1 && values.size === cases.length && !values.has(0) ? axis : undefined;
}

/** Who takes part in any of them, each once. */
export const contestantsIn = (cases: readonly CaseResult[]): string[] => [
  ...new Set(cases.flatMap(({ contestants }) => contestants.map(({ name }) => name))),
];

/** What others are held against: C where it takes part. */
export const baselineOf = ({ contestants }: CaseResult): string | undefined =>
  contestants.find(({ name }) => name === 'C' || name.startsWith('C, '))?.name;
