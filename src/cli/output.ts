/**
 * Prints what a command has to say: the only file that does. Files, other processes and the environment
 * may contain anything, which must neither control the terminal nor pass for a line of the command.
 */

/**
 * Prints lines. A character that controls a terminal becomes a question mark. Text of several lines is
 * indented from its second line on.
 */
export function print(lines: readonly string[]): void {
  for (const line of lines) console.log(printable(line));
}

/** Like {@link print}, on stderr. */
export function printError(lines: readonly string[]): void {
  for (const line of lines) console.error(printable(line));
}

/**
 * Shows what a command does at the moment, in a line of the terminal that the next one replaces; '' takes
 * the line away. If stderr is not a terminal, or one without control sequences, nothing is shown.
 */
export function showProgress(text: string): void {
  const { stderr } = process;
  if (!stderr.isTTY || process.env['TERM'] === 'dumb') return;
  stderr.write(`\r\u001b[K${printable(text).slice(0, (stderr.columns || 80) - 1)}`);
}

/** Prints a value as one line of JSON, in which characters that control a terminal are escaped. */
export function printJson(value: unknown): void {
  console.log(
    JSON.stringify(value).replaceAll(CONTROLS, (character) =>
      character
        .split('')
        .map((unit) => `\\u${unit.charCodeAt(0).toString(16).padStart(4, '0')}`)
        .join(''),
    ),
  );
}

/** Control and format characters, and those that begin a line or a paragraph. */
const CONTROLS = /[\p{Cc}\p{Cf}\p{Zl}\p{Zp}]/gu;

const printable = (text: string): string =>
  text
    .split('\n')
    .map((line, at) => indented(line.replaceAll(CONTROLS, '?'), at > 0))
    .join('\n');

const indented = (line: string, isContinued: boolean): string =>
  isContinued && line !== '' && !line.startsWith('  ') ? `    ${line}` : line;
