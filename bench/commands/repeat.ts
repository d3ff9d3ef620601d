import { ASKED_SHARE, changesSince } from '../compare.ts';
import { describeChanges } from '../compare-text.ts';
import { duration } from '../format.ts';
import { INTERRUPTED, Interrupted, interruption, savedAtExit } from '../interrupt.ts';
import { builtCheckout } from '../programs/pass.ts';
import { readResults } from '../result-file.ts';
import { allSuites, resultPath, selectRun } from '../selection.ts';
import { Turn, Turns } from '../turns.ts';
import { UsageError } from '../usage.ts';
import { WholeRun } from '../whole-run.ts';
import { compare, INCOMPLETE } from './compare.ts';

/** The suite that a change must not make slower: what one process waits for of another. */
const HELD_SUITE = 'hand-over';

/**
 * Measures twice, the two runs in turns, lap by lap: what drifts on the machine for minutes is in
 * both, so that what they do not agree in is the harness's, or, with `--before`, what has changed
 * since the other checkout. 1 where a case failed, or where they do not agree. If it is stopped, both
 * files have what was measured by then, and the cases in both are compared.
 */
export async function repeat(args: readonly string[]): Promise<number> {
  const [paths, given] = [args.slice(0, 2), args.slice(2)];
  if (paths.length < 2 || !paths.every((path) => path.endsWith('.json')))
    throw new UsageError('repeat takes two result files (.json), then what run takes');
  const [pathA, pathB] = paths.map((path) => resultPath(path)) as [string, string];
  if (pathA === pathB) throw new UsageError('the two result files are one');
  const { folder, rest } = takeBefore(given);
  const argsB = rest.filter((arg) => arg !== '--whole');
  const isWhole = argsB.length < rest.length;
  if (isWhole && folder !== undefined)
    throw new UsageError('--whole is of two runs of one checkout: leave it out with --before');
  const argsA = isWhole ? allSuites(argsB) : argsB;
  const [ofA, ofB] = [selectRun(argsA), selectRun(argsB)];
  if (ofB.json !== undefined) throw new UsageError('repeat names its files first: no --json');

  // What one comes to is in words as it goes on; of the other the comparison tells.
  const before = folder === undefined ? undefined : builtCheckout(folder);
  const [sayA, sayB] = before === undefined ? [console.log, silent] : [silent, console.log];
  const a = { path: pathA, of: ofA, run: new WholeRun('A', ofA, argsA, sayA, before) };
  const b = { path: pathB, of: ofB, run: new WholeRun('B', ofB, argsB, sayB) };
  const turns = new Turns();
  using interrupted = interruption();
  const begin = performance.now();
  let isComplete = false;
  let areWritten = false;
  try {
    using _ = savedAtExit(() => {
      console.error(`measured in ${duration((performance.now() - begin) * 1e6)}`);
      areWritten = [a, b].map(({ path, run }) => run.write(path, true, isComplete)).every(Boolean);
    });
    for (let index = 0; index < Math.max(ofA.passes, ofB.passes); index += 1) {
      // Each is first as often as the other, or nearly: a steady drift is as much in one as in the other.
      const both = (index % 2 === 0 ? [a, b] : [b, a]).filter(({ of }) => index < of.passes);
      const ran = await Promise.all(
        both.map(({ run }) => run.pass(index, interrupted.signal, new Turn(turns))),
      );
      if (!ran.every(Boolean)) return 1;
    }
    isComplete = true;
  } catch (error) {
    if (!(error instanceof Interrupted)) throw error;
    console.error(`bench: ${error.message}`);
    if (!areWritten) return INTERRUPTED;
  }
  const succeeded = [a, b].map(({ run }) => run.conclude()).every(Boolean);
  console.log('');
  const agreed =
    before === undefined ? compare([pathA, pathB]) : compareBefore(pathA, pathB, before);
  if (!isComplete) return INTERRUPTED;
  return succeeded ? agreed : 1;
}

/** Prints what became of the hand-overs since A; 1 where too many are slower. */
function compareBefore(pathA: string, pathB: string, folder: string): number {
  const [a, b] = [readResults(pathA), readResults(pathB)];
  const commits = [a, b].map(({ machine }) => machine.commit ?? 'unknown');
  console.log(`A: ${pathA}, ${folder}, commit ${commits[0]}`);
  console.log(`B: ${pathB}, commit ${commits[1]}`);
  if (!a.isComplete || !b.isComplete) console.log(INCOMPLETE);
  const changes = changesSince(a, b, HELD_SUITE);
  console.log(describeChanges(changes, ASKED_SHARE).join('\n'));
  // What is quicker lies outside as well, and is no fault.
  const held = changes.rows - changes.slower.length;
  return changes.rows > 0 && held >= ASKED_SHARE * changes.rows ? 0 : 1;
}

/** The folder of `--before FOLDER`, and the other arguments. @throws UsageError */
function takeBefore(args: readonly string[]): { folder: string | undefined; rest: string[] } {
  const at = args.indexOf('--before');
  if (at < 0) return { folder: undefined, rest: [...args] };
  const folder = args[at + 1];
  if (folder === undefined || folder.startsWith('--'))
    throw new UsageError('--before takes the folder of another built checkout');
  return { folder, rest: args.filter((_, index) => index !== at && index !== at + 1) };
}

const silent = (): void => {};
