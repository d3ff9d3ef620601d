/** What each command of `cuffi` has, and how it refuses its arguments. */
import { constants } from 'node:os';
import { type ParseArgsConfig, parseArgs } from 'node:util';
import { isDriverChoice } from '../../ffi/driver.ts';
import { didYouMean } from '../validate.ts';

/** A row of the table of commands. */
export interface Command {
  /** What it does, in a line of the overview. */
  readonly summary: string;
  /** What `--help` prints. */
  readonly usage: string;
  /**
   * Runs it. Returns whether it succeeded.
   *
   * @param argv what follows its name, without `--help`
   * @throws UsageError
   */
  run(argv: readonly string[]): boolean | Promise<boolean>;
}

/** Invalid arguments: printed with where help is, exit code 2. */
export class UsageError extends Error {}

/** A command that could not do its work: exit code 2. */
export class CannotRunError extends Error {}

/** A command that a signal ended: all that it had started and opened is gone. */
export class InterruptedError extends Error {
  readonly exitCode: number;

  constructor(signal: NodeJS.Signals) {
    super('interrupted');
    this.exitCode = 128 + constants.signals[signal];
  }
}

/** Parses the arguments of a command. @throws UsageError, with the nearest option */
export function parseCommand<O extends NonNullable<ParseArgsConfig['options']>>(
  argv: readonly string[],
  options: O,
): ReturnType<typeof parseArgs<{ readonly options: O; readonly allowPositionals: true }>> {
  try {
    return parseArgs({ args: [...argv], allowPositionals: true as const, options });
  } catch (error) {
    const { message, code } = error as NodeJS.ErrnoException;
    const unknown = /'(-[^'=]+)/.exec(message)?.[1];
    if (code !== 'ERR_PARSE_ARGS_UNKNOWN_OPTION' || unknown === undefined)
      throw new UsageError(message);
    const known = [...Object.keys(options), 'help'].map((name) => `--${name}`);
    throw new UsageError(`unknown option '${unknown}'${didYouMean(unknown, known)}`);
  }
}

/** The one argument of a command, if it has one. @throws UsageError for more */
export function singleArgument(name: string, positionals: readonly string[]): string | undefined {
  const [argument, ...others] = positionals;
  if (others.length > 0) throw new UsageError(`${name} takes no '${others.join(' ')}'`);
  return argument;
}

/** @throws UsageError for any argument */
export function refuseArguments(name: string, positionals: readonly string[]): void {
  if (positionals.length > 0) throw new UsageError(`${name} takes no '${positionals.join(' ')}'`);
}

/**
 * An integer of the command line.
 *
 * @param pattern what its text must match
 * @throws UsageError for anything else, and out of range
 */
export function integerOption(
  text: string,
  name: string,
  min: number,
  max: number,
  pattern = /\S/,
): number {
  const value = pattern.test(text) ? Number(text) : Number.NaN;
  if (!Number.isSafeInteger(value) || value < min || value > max)
    throw new UsageError(
      `${name} must be an integer from ${min} to ${max}, not ${JSON.stringify(text)}`,
    );
  return value;
}

const MAX_DEVICE = 1023;

/** The ordinal of `--device`, in digits only. @throws UsageError */
export const deviceOption = (text: string): number =>
  integerOption(text, '--device', 0, MAX_DEVICE, /^\d+$/);

/** The driver of `--driver`, if given. @throws UsageError */
export function driverOption(text: string | undefined): string | undefined {
  if (text !== undefined && !isDriverChoice(text))
    throw new UsageError(
      `--driver must be cuda, emulated, or the path of a libcuda, not ${JSON.stringify(text)}`,
    );
  return text;
}
