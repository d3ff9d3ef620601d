/** The bench: what cuffi costs beside others in the same run, and reports of it. */
import { INTERRUPTED, Interrupted } from './interrupt.ts';
import { USAGE, UsageError } from './usage.ts';

type Command = (args: readonly string[]) => number | Promise<number>;

// Each loads what it needs: nothing that draws is there while something is measured.
const commands: Readonly<Record<string, () => Promise<Command>>> = {
  run: async () => (await import('./commands/run.ts')).run,
  repeat: async () => (await import('./commands/repeat.ts')).repeat,
  list: async () => (await import('./commands/list.ts')).list,
  report: async () => (await import('./commands/report.ts')).report,
  compare: async () => (await import('./commands/compare.ts')).compare,
  check: async () => (await import('./commands/check.ts')).check,
  page: async () => (await import('./commands/page.ts')).page,
};

async function main(args: readonly string[]): Promise<number> {
  if (args.includes('--help')) {
    console.log(USAGE);
    return 0;
  }
  const [first = ''] = args;
  const isCommand = Object.hasOwn(commands, first);
  const load = commands[isCommand ? first : 'run'] as () => Promise<Command>;
  return (await load())(isCommand ? args.slice(1) : args);
}

try {
  process.exitCode = await main(process.argv.slice(2));
} catch (error) {
  const isUsage = error instanceof UsageError;
  console.error(`bench: ${error instanceof Error ? error.message : String(error)}`);
  if (isUsage) console.error('npm run bench -- --help tells of the commands.');
  process.exitCode = isUsage ? 2 : error instanceof Interrupted ? INTERRUPTED : 1;
}
