import { duration } from '../format.ts';
import { interruption } from '../interrupt.ts';
import { allSuites, resultPath, selectRun } from '../selection.ts';
import { Turn, Turns } from '../turns.ts';
import { UsageError } from '../usage.ts';
import { WholeRun } from '../whole-run.ts';
import { compare } from './compare.ts';

/**
 * Measures twice, the two runs in turns, lap by lap: what drifts on the machine for minutes is in
 * both, so that what they do not agree in is the harness's. 1 where a case failed, or where they do
 * not agree.
 */
export async function repeat(args: readonly string[]): Promise<number> {
  const [paths, rest] = [args.slice(0, 2), args.slice(2)];
  if (paths.length < 2 || !paths.every((path) => path.endsWith('.json')))
    throw new UsageError('repeat takes two result files (.json), then what run takes');
  const [pathA, pathB] = paths.map((path) => resultPath(path)) as [string, string];
  if (pathA === pathB) throw new UsageError('the two result files are one');
  const argsB = rest.filter((arg) => arg !== '--whole');
  const argsA = argsB.length < rest.length ? allSuites(argsB) : argsB;
  const [ofA, ofB] = [selectRun(argsA), selectRun(argsB)];
  if (ofB.json !== undefined) throw new UsageError('repeat names its files first: no --json');

  // What one comes to is in words as it goes on; of the other the comparison tells.
  const a = { path: pathA, of: ofA, run: new WholeRun('A', ofA, argsA, console.log) };
  const b = { path: pathB, of: ofB, run: new WholeRun('B', ofB, argsB, () => {}) };
  const turns = new Turns();
  using interrupted = interruption();
  const begin = performance.now();
  try {
    for (let index = 0; index < Math.max(ofA.passes, ofB.passes); index += 1) {
      // Each is first as often as the other, or nearly: a steady drift is as much in one as in the other.
      const both = (index % 2 === 0 ? [a, b] : [b, a]).filter(({ of }) => index < of.passes);
      const ran = await Promise.all(
        both.map(({ run }) => run.pass(index, interrupted.signal, new Turn(turns))),
      );
      if (!ran.every(Boolean)) return 1;
    }
  } finally {
    console.error(`measured in ${duration((performance.now() - begin) * 1e6)}`);
    for (const { path, run } of [a, b]) run.write(path, true);
  }
  const succeeded = [a, b].map(({ run }) => run.conclude()).every(Boolean);
  console.log('');
  const agreed = compare([pathA, pathB]);
  return succeeded ? agreed : 1;
}
