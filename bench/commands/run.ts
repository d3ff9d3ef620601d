import { duration } from '../format.ts';
import { interruption, savedAtExit } from '../interrupt.ts';
import { selectRun } from '../selection.ts';
import { WholeRun } from '../whole-run.ts';

/** Measures: tables on stdout, how far it is on stderr; 1 where a case failed. */
export async function run(args: readonly string[]): Promise<number> {
  const selection = selectRun(args);
  const measured = new WholeRun('', selection, args, console.log);
  using interrupted = interruption();
  const begin = performance.now();
  let isComplete = false;
  {
    // Of one that is interrupted, what there is: a long run is worth having in part.
    using _ = savedAtExit(() => {
      console.error(`measured in ${duration((performance.now() - begin) * 1e6)}`);
      if (selection.json !== undefined) measured.write(selection.json, false, isComplete);
    });
    for (let index = 0; index < selection.passes; index += 1)
      if (!(await measured.pass(index, interrupted.signal))) return 1;
    isComplete = true;
  }
  return measured.conclude() ? 0 : 1;
}
