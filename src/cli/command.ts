/** What each command of `cuffi` has, and how it refuses its arguments. */

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

/** Invalid arguments: printed with the usage, exit code 2. */
export class UsageError extends Error {}
