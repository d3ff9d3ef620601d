/** Commands, options and what is said of them. */
import { type ParseArgsConfig, parseArgs } from 'node:util';

export const USAGE = `usage: npm run bench -- [command] [options]

  run [suite ...]     measures cuffi beside the raw driver call, C and Python, in one run and on one
                      GPU: all suites, or those that are named (the default command)
    --quick           less time for each case
    --json FILE       write the result file as well
    --rounds N        how often each contestant has its turn at most (default 31)
    --passes N        over how many processes, one after the other, the rounds of each case are
                      spread (default 2; 1 with --quick)
    --case NAME       only this case; may be given several times
    --large           also what takes much of a machine: 64 consumers
  repeat A B [suite ...]
                      two runs that take turns, lap by lap, each with a result file of its own; then
                      compares them. The options are those of run, without --json
    --whole           A has all suites, B those that are named
    --before FOLDER   A measures another built checkout, by the bench there; then one line says for
                      how many hand-overs B's median lies within A's p10 to p90 (95 % asked), and
                      one each which are slower
  list                the suites and their cases
  report FILE ...     tables and pictures of result files: Markdown, SVG, one HTML page
    --out FOLDER      where (default: a folder of the first file's name, beside it)
  compare A B         which medians of one lie outside p10 to p90 of the other, and which ratios
    --threshold PART  how many must lie within (default 0.95)
  check FILE          holds a result file against bench/budget.json
    --partial         leave out what the file does not measure
  page                writes docs/benchmark.md, and its pictures, from the committed results

  --help              print this

The driver of a run is CUFFI_DRIVER's; without it cuda where there is a GPU, else emulated.`;

/** What was typed, or a file that was named, is wrong: said in a sentence. */
export class UsageError extends Error {}

/** Parses what follows a command. @throws UsageError */
export function parse<T extends NonNullable<ParseArgsConfig['options']>>(
  args: readonly string[],
  options: T,
): ReturnType<typeof parseArgs<{ args: string[]; allowPositionals: true; options: T }>> {
  try {
    return parseArgs({ args: [...args], allowPositionals: true, options });
  } catch (error) {
    // Its first sentence: the others are of how to write what nobody means.
    throw new UsageError((error as Error).message.split('. ')[0]);
  }
}
