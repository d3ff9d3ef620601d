/** The bench: compares cuffi with the raw driver calls, C and Python in one run. */
import { INTERRUPTED, Interrupted } from './interrupt.ts';
import { keyOf, parse, planRun, USAGE } from './plan.ts';
import { joinResults, readResults, UsageError, writeResults } from './results.ts';

// Each command loads what it needs, so that a run does not load the drawing libraries.
const commands: Readonly<Record<string, (args: readonly string[]) => Promise<number>>> = {
  run: async (args) => (await import('./run.ts')).run(args),
  repeat: async (args) => (await import('./run.ts')).repeat(args),
  report: async (args) => {
    const { values, positionals } = parse(args, { out: { type: 'string' } });
    const [file] = takeFiles(positionals, 1);
    return (await import('./report.ts')).report(file as string, values.out);
  },
  compare: async (args) => {
    const { values, positionals } = parse(args, { threshold: { type: 'string' } });
    const [a, b] = takeFiles(positionals, 2);
    const threshold = values.threshold === undefined ? undefined : Number(values.threshold);
    if (threshold !== undefined && !(threshold >= 0 && threshold <= 1 && values.threshold?.trim()))
      throw new UsageError(`--threshold takes a part from 0 to 1, not '${values.threshold}'`);
    const { compareFiles } = await import('./compare.ts');
    return compareFiles(a as string, b as string, threshold) ? 0 : 1;
  },
  check: async (args) => {
    const { values, positionals } = parse(args, { partial: { type: 'boolean', default: false } });
    if (positionals.length === 0) throw new UsageError('it takes result files');
    return (await import('./aims.ts')).check(positionals, values.partial);
  },
  join: async (args) => {
    const [file, rest] = takeFiles(parse(args, {}).positionals, 2) as [string, string];
    const all = planRun([]).cases.map(keyOf);
    const joined = joinResults(readResults(file), readResults(rest), all, keyOf);
    writeResults(file, joined);
    console.log(`written${joined.isComplete ? '' : ', incomplete'}: ${file}`);
    return joined.isComplete ? 0 : 1;
  },
  page: async (args) => {
    takeFiles(parse(args, {}).positionals, 0);
    return (await import('./report.ts')).page();
  },
};

function takeFiles(positionals: readonly string[], count: number): readonly string[] {
  if (positionals.length === count) return positionals;
  throw new UsageError(
    count === 0
      ? `it takes no '${positionals[0]}'`
      : `it takes ${count} result ${count === 1 ? 'file' : 'files'}, not ${positionals.length}`,
  );
}

async function main(args: readonly string[]): Promise<number> {
  if (args.includes('--help')) {
    console.log(USAGE);
    return 0;
  }
  const [first = ''] = args;
  const command = Object.hasOwn(commands, first) ? first : 'run';
  return commands[command]?.(command === first ? args.slice(1) : args) ?? 1;
}

try {
  process.exitCode = await main(process.argv.slice(2));
} catch (error) {
  const isUsage = error instanceof UsageError;
  console.error(`bench: ${error instanceof Error ? error.message : String(error)}`);
  if (isUsage) console.error('See npm run bench -- --help.');
  process.exitCode = isUsage ? 2 : error instanceof Interrupted ? INTERRUPTED : 1;
}
