import { aimsOf, type BudgetedAim, delayAimOf } from './budget.ts';
import { titleOf } from './compare.ts';
import type { DriverChoice } from './driver.ts';
import { mergeCase, uniqueByName } from './passes.ts';
import type { PassBegun, PassMessage } from './programs/pass-messages.ts';
import type { CaseResult, DelayResult, Results } from './result-schema.ts';
import {
  describeCase,
  describeDelays,
  describeDriver,
  describeLeftOut,
  describeRun,
  describeSkipped,
} from './run-text.ts';
import type { Selection } from './selection.ts';

/** What the passes of a run tell, put together; says what it comes to as soon as it is known. */
export class Collection {
  readonly #selection: Selection;
  readonly #budget: readonly BudgetedAim[];
  readonly #say: (text: string) => void;
  readonly #results = new Map<number, CaseResult[]>();
  readonly #failed = new Set<number>();
  #begun: PassBegun | undefined;
  #skipped: Results['skipped'] = [];
  #delays: readonly DelayResult[] = [];

  constructor(selection: Selection, budget: readonly BudgetedAim[], say: (text: string) => void) {
    this.#selection = selection;
    this.#budget = budget;
    this.#say = say;
  }

  /** Where the run takes place; undefined before the first pass has said so. */
  get begun(): PassBegun | undefined {
    return this.#begun;
  }

  /** How many cases failed, in whichever pass. */
  get failed(): number {
    return this.#failed.size;
  }

  /** The figures of a result file. */
  get figures(): Pick<Results, 'cases' | 'delays' | 'skipped'> {
    const cases = [...this.#results.keys()].sort((a, b) => a - b).map((at) => this.#merged(at));
    return { cases, delays: [...this.#delays], skipped: this.#skipped };
  }

  hear(message: PassMessage): void {
    if (message.type === 'begun') this.#begin(message);
    else if (message.type === 'delays') this.#hearDelays(message.delays);
    else {
      const { isLast, result, error } = message;
      // By its name: another checkout may count its cases otherwise, and have others.
      const at = result ? this.#placeOf(result) : message.at;
      if (at === undefined) return;
      if (error !== undefined) this.#failed.add(at);
      if (result) this.#results.set(at, [...(this.#results.get(at) ?? []), result]);
      if (isLast) this.#tell(at);
    }
  }

  #placeOf({ suite, name, variant }: CaseResult): number | undefined {
    const at = this.#selection.cases.findIndex(
      ({ suite: ofSuite, measured }) =>
        ofSuite === suite && measured.name === name && (measured.variant ?? null) === variant,
    );
    return at < 0 ? undefined : at;
  }

  #begin(message: PassBegun): void {
    this.#skipped = uniqueByName([...this.#skipped, ...message.skipped]);
    if (this.#begun) return;
    this.#begun = message;
    const { driver, machine, skipped } = message;
    const { cases, rounds, passes } = this.#selection;
    this.#say(describeDriver(driver));
    this.#say(describeRun(machine, rounds, passes).join('\n'));
    const left = cases.filter(({ measured }) => measured.needsGpu && driver.emulated).length;
    if (left > 0) this.#say(describeLeftOut(left));
    for (const peer of skipped) this.#say(describeSkipped(peer));
  }

  #tell(at: number): void {
    const { suite, measured } = this.#selection.cases[at] as Selection['cases'][number];
    if (this.#results.has(at)) {
      const { driver, machine } = this.#begun as PassBegun;
      const aims = [...aimsOf(this.#budget, { ...measured, suite }), ...(measured.aims ?? [])];
      this.#say(`\n${describeCase(this.#merged(at), aims, driver, machine).join('\n')}`);
      return;
    }
    const title = titleOf({ name: measured.name, variant: measured.variant ?? null });
    if (!this.#failed.has(at)) this.#say(`\nleft out: ${title}: nothing here can do it`);
  }

  #hearDelays(delays: readonly DelayResult[]): void {
    this.#delays = delays;
    const aim = (name: string): number | undefined => delayAimOf(this.#budget, name);
    this.#say(`\n${describeDelays(delays, aim, this.#driver).join('\n')}`);
  }

  #merged(at: number): CaseResult {
    return mergeCase(this.#results.get(at) as CaseResult[]);
  }

  get #driver(): DriverChoice {
    return (this.#begun as PassBegun).driver;
  }
}
