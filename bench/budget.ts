/** What must hold of a run: bench/budget.json. */
import { fileURLToPath } from 'node:url';
import { z } from 'zod';
import type { Aim } from './cases/case.ts';
import { readJson } from './result-file.ts';

/** The suite that is no list of cases: it measures one thing, in its own way. */
export const DELAYS = 'event-loop';

const name = z.string().min(1);

const budgetedAim = z
  .strictObject({
    suite: name,
    /** The case, and which of its name: all without either. */
    case: name,
    variant: name.optional(),
    fromByteLength: z.int().positive().optional(),
    /** Default: the first of the case. */
    contestant: name.optional(),
    statistic: z.enum(['median', 'p99']).default('median'),
    /** Whose median is taken off it before it is held against a time. */
    over: name.optional(),
    /** Whose median it is held against; without one it is held against a time. */
    versus: name.optional(),
    /** The most that it may be: a multiple of the other's. */
    max: z.number().positive().optional(),
    /** The same as a time, in microseconds. */
    maxUs: z.number().positive().optional(),
  })
  .refine(
    ({ over, versus, max, maxUs }) =>
      versus === undefined
        ? max === undefined && maxUs !== undefined
        : max !== undefined && maxUs === undefined && over === undefined,
    'an aim has either versus and max, or maxUs, which may be over another',
  );

const budgetSchema = z.strictObject({ version: z.literal(1), aims: z.array(budgetedAim) });

/** One aim of the budget. */
export type BudgetedAim = z.infer<typeof budgetedAim>;

/** Reads the aims. @throws UsageError for a file that is none */
export const readBudget = (
  path: string = fileURLToPath(new URL('./budget.json', import.meta.url)),
): readonly BudgetedAim[] => readJson(path, (file) => budgetSchema.parse(file)).aims;

/** What can be held against an aim. */
export interface Budgeted {
  readonly suite: string;
  readonly name: string;
  readonly variant?: string | null | undefined;
  readonly byteLength?: number | null | undefined;
}

/** Whether an aim is one of a case. */
export const concerns = (aim: BudgetedAim, of: Budgeted): boolean =>
  aim.suite === of.suite &&
  aim.case === of.name &&
  (aim.variant === undefined || aim.variant === of.variant) &&
  (aim.fromByteLength === undefined || (of.byteLength ?? 0) >= aim.fromByteLength);

/** The ratios that the first contestant of a case is held to. */
export const aimsOf = (budget: readonly BudgetedAim[], of: Budgeted): Aim[] =>
  budget
    .filter((aim) => aim.contestant === undefined && concerns(aim, of))
    .flatMap(({ versus, max }) =>
      versus === undefined || max === undefined ? [] : [{ versus, max }],
    );

/** The most that the lateness of the event loop may be during one way of copying, in nanoseconds. */
export const delayAimOf = (
  budget: readonly BudgetedAim[],
  contestant: string,
): number | undefined => {
  const aim = budget.find((one) => one.suite === DELAYS && one.contestant === contestant);
  return aim?.maxUs && aim.maxUs * 1000;
};
