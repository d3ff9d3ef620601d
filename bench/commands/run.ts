import { readBudget } from '../budget.ts';
import { Collection } from '../collect.ts';
import { duration } from '../format.ts';
import { interruption } from '../interrupt.ts';
import { runPass } from '../programs/pass.ts';
import { writeResults } from '../result-file.ts';
import { selectRun } from '../selection.ts';

/** Measures: tables on stdout, how far it is on stderr; 1 where a case failed. */
export async function run(args: readonly string[]): Promise<number> {
  const selection = selectRun(args);
  const { passes, rounds, quick, json } = selection;
  const collection = new Collection(selection, readBudget());
  using interrupted = interruption();
  const begin = performance.now();
  let died = 0;
  for (let index = 0; index < passes; index += 1) {
    const isLast = index === passes - 1;
    const how = await runPass(
      { index, of: passes },
      args,
      (message) => collection.hear(message, isLast),
      interrupted.signal,
    );
    if (how === undefined) continue;
    // Nor would the next one begin; why, it has said.
    if (!collection.begun) return 1;
    console.error(`pass ${index + 1} of ${passes} ended by ${how}`);
    died += 1;
  }
  console.error(`measured in ${duration((performance.now() - begin) * 1e6)}`);
  const { failed, begun, figures } = collection;
  if (failed > 0) console.error(`${failed} of ${selection.cases.length} cases failed`);
  if (json !== undefined && begun) {
    const { driver, machine, isPinned } = begun;
    const found = { driver, machine, isPinned, quick, rounds, passes, ...figures };
    writeResults(json, { version: 3, unit: 'ns', ...found });
    console.log(`\nwritten: ${json}`);
  }
  return failed + died > 0 ? 1 : 0;
}
