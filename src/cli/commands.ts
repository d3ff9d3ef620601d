/** The table of the commands of `cuffi`, and how a command line is run. */

import { packageVersion } from '../../ffi/package.ts';
import { didYouMean } from '../validate.ts';
import { benchCommand } from './bench-command.ts';
import {
  CannotRunError,
  type Command,
  InterruptedError,
  refuseArguments,
  UsageError,
} from './command.ts';
import { devicesCommand } from './devices-command.ts';
import { doctorCommand } from './doctor-command.ts';
import { explainCommand } from './explain-command.ts';
import { lsCommand } from './ls-command.ts';
import { print, printError, printedWidth } from './output.ts';
import { pythonCommand } from './python-command.ts';
import { roundtripCommand } from './roundtrip-command.ts';
import { type Line, refill, styled } from './text.ts';

const commands: Readonly<Record<string, Command>> = {
  roundtrip: roundtripCommand,
  bench: benchCommand,
  doctor: doctorCommand,
  devices: devicesCommand,
  ls: lsCommand,
  explain: explainCommand,
  python: pythonCommand,
  help: {
    summary: 'prints this, or the usage of a command: cuffi help roundtrip',
    usage: 'usage: cuffi help [command]',
    run: help,
  },
  version: {
    summary: 'prints the version of cuffi, as do -v and --version',
    usage: 'usage: cuffi version',
    run(argv) {
      refuseArguments('version', argv);
      print([packageVersion() ?? 'unknown']);
      return true;
    },
  },
};

/** Runs a command line, and prints what prevents it. Returns the exit code. */
export async function runCommandLine(argv: readonly string[]): Promise<number> {
  helpFor = undefined;
  try {
    return (await run(argv)) ? 0 : 1;
  } catch (error) {
    const message = error instanceof Error ? error.message : String(error);
    const isUsage = error instanceof UsageError;
    printError([
      [styled('bad', 'cuffi:'), ` ${message}`],
      ...(isUsage ? [`See cuffi help${helpFor === undefined ? '' : ` ${helpFor}`}.`] : []),
    ]);
    if (error instanceof InterruptedError) return error.exitCode;
    return isUsage || error instanceof CannotRunError ? 2 : 1;
  }
}

/** All commands, a line each. */
function overview(): string {
  const lines = Object.entries(commands).map(
    ([name, { summary }]) => `  ${name.padEnd(12)}${summary}`,
  );
  return ['usage: cuffi COMMAND [options]', '', ...lines].join('\n');
}

/** The command whose help a usage error names; undefined for that of all commands. */
let helpFor: string | undefined;

/** @throws UsageError if there is no such command */
function commandNamed(name: string): Command {
  const found = Object.hasOwn(commands, name) ? commands[name] : undefined;
  if (found) return found;
  throw new UsageError(`there is no command '${name}'${didYouMean(name, Object.keys(commands))}`);
}

function help(argv: readonly string[]): boolean {
  const [name, ...others] = argv;
  refuseArguments('help', others);
  const text = name === undefined ? overview() : commandNamed(name).usage;
  const [usage = '', ...more] = refill(text, printedWidth());
  const lines: Line[] = [[styled('heading', usage)], ...more];
  print(lines);
  return true;
}

/** Returns whether it succeeded. @throws UsageError */
async function run(argv: readonly string[]): Promise<boolean> {
  const [name, ...rest] = argv;
  if (name === undefined) throw new UsageError('no command given');
  if (name === '--help' || name === '-h') return help(rest);
  if (name === '--version' || name === '-v') return (commands['version'] as Command).run(rest);
  const command = commandNamed(name);
  if (name !== 'help') helpFor = name;
  if (rest.includes('--help') || rest.includes('-h')) return help([name]);
  return command.run(rest);
}
