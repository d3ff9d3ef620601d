/** A run: its passes, one process each, and the result file that they come to. */
import { readBudget } from './budget.ts';
import { Collection } from './collect.ts';
import { runPass } from './programs/pass.ts';
import { writeResults } from './result-file.ts';
import type { Selection } from './selection.ts';
import type { Turn } from './turns.ts';

/** A run that goes on pass by pass, as its owner says. */
export class WholeRun {
  readonly #name: string;
  readonly #selection: Selection;
  readonly #args: readonly string[];
  readonly #checkout: string | undefined;
  readonly #collection: Collection;
  #died = 0;

  /**
   * @param name what it is called, where there are several; else ''
   * @param args what the selection was read from
   * @param say hears what the run comes to, in words and tables
   * @param checkout another checkout that it measures; else this one
   */
  constructor(
    name: string,
    selection: Selection,
    args: readonly string[],
    say: (text: string) => void,
    checkout?: string,
  ) {
    this.#name = name;
    this.#selection = selection;
    this.#args = args;
    this.#checkout = checkout;
    this.#collection = new Collection(selection, readBudget(), say);
  }

  /**
   * Runs one of its passes, in turns where there is one. Answers whether the run has begun: if not, nor
   * would the next one.
   */
  async pass(index: number, signal: AbortSignal, turn?: Turn): Promise<boolean> {
    const { passes } = this.#selection;
    const how = await runPass(
      { index, of: passes },
      { name: this.#name, args: this.#args, signal, turn, checkout: this.#checkout },
      (message) => this.#collection.hear(message),
    );
    const hasBegun = this.#collection.begun !== undefined;
    if (how !== undefined && hasBegun) {
      console.error(`pass ${index + 1} of ${passes} ended by ${how}`);
      this.#died += 1;
    }
    return hasBegun;
  }

  /** Says how many cases failed, if any. Answers whether each case and each pass went through. */
  conclude(): boolean {
    const { failed } = this.#collection;
    if (failed > 0) console.error(`${failed} of ${this.#selection.cases.length} cases failed`);
    return failed + this.#died === 0;
  }

  /**
   * Writes the result file of what was measured, and answers whether there is anything.
   *
   * @param inTurns whether its passes took turns with those of another run
   * @param isComplete whether all was measured
   */
  write(path: string, inTurns: boolean, isComplete: boolean): boolean {
    const { begun, figures } = this.#collection;
    if (!begun) return false;
    const { driver, machine, isPinned } = begun;
    const { quick, rounds, passes } = this.#selection;
    const found = {
      driver,
      machine,
      isPinned,
      quick,
      rounds,
      passes,
      inTurns,
      isComplete,
      ...figures,
    };
    writeResults(path, { version: 4, unit: 'ns', ...found });
    console.log(`\nwritten${isComplete ? '' : ', incomplete'}: ${path}`);
    return true;
  }
}
