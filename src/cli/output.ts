/**
 * Prints what a command has to say: the only file that does. Files, other processes and the environment
 * may contain anything, which must neither control the terminal nor pass for a line of the command.
 */

import type { WriteStream } from 'node:tty';
import { styleText } from 'node:util';
import { type Line, type Style, textOf, wrap } from './text.ts';

/**
 * Prints lines. A character that controls a terminal becomes a question mark. Text of several lines is
 * indented from its second line on. A terminal gets lines of its width, and colours unless NO_COLOR is set;
 * FORCE_COLOR asks for colours elsewhere, too.
 */
export function print(lines: readonly Line[]): void {
  for (const line of lines) console.log(rendered(line, process.stdout));
}

/** Like {@link print}, on stderr. */
export function printError(lines: readonly Line[]): void {
  for (const line of lines) console.error(rendered(line, process.stderr));
}

/** The width of the terminal that {@link print} writes to; elsewhere, a line has any width. */
export const printedWidth = (): number =>
  (isTerminal(process.stdout) && process.stdout.columns) || Number.POSITIVE_INFINITY;

/**
 * Prints lines in place of what the terminal shows, as many as it has room for. Elsewhere they follow what was
 * printed before, and an empty line.
 */
export function printAgain(lines: readonly Line[]): void {
  const { stdout } = process;
  if (!isTerminal(stdout)) {
    print([...lines, '']);
    return;
  }
  const rows = lines.flatMap((line) => rendered(line, stdout).split('\n'));
  const room = Math.max(1, (stdout.rows || 24) - 1);
  const shown = rows.length > room ? [...rows.slice(0, room - 1), '…'] : rows;
  console.log(`\u001b[H\u001b[J${shown.join('\n')}`);
}

/**
 * Shows what a command does at the moment, in a line of the terminal that the next one replaces; '' takes
 * the line away. If stderr is not a terminal, or one without control sequences, nothing is shown.
 */
export function showProgress(text: string): void {
  const { stderr } = process;
  if (!isTerminal(stderr)) return;
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

const printable = (text: string): string => text.replaceAll(CONTROLS, '?');

type Output = Pick<WriteStream, 'isTTY' | 'columns'>;

/** Whether a stream is a terminal, and one with control sequences. */
const isTerminal = ({ isTTY }: Output): boolean => isTTY && process.env['TERM'] !== 'dumb';

const FORMATS = {
  good: 'green',
  bad: 'red',
  unsure: 'yellow',
  faint: 'dim',
  heading: 'bold',
} as const satisfies Readonly<Record<Style, Parameters<typeof styleText>[0]>>;

/** A part of the text of a line, from one character on. */
interface Painted {
  readonly begin: number;
  readonly end: number;
  readonly style: Style | undefined;
}

/** Returns a line as a stream shows it: several rows if it is a terminal, and the line is longer. */
function rendered(line: Line, stream: NodeJS.WriteStream): string {
  const isOnTerminal = isTerminal(stream);
  let text = '';
  const parts: Painted[] = (typeof line === 'string' ? [line] : line).map((part) => {
    const style = typeof part === 'string' ? undefined : part.style;
    const shown =
      isOnTerminal && typeof part !== 'string' ? (part.onTerminal ?? part.text) : textOf(part);
    const begin = text.length;
    text += shown.split('\n').map(printable).join('\n');
    return { begin, end: text.length, style };
  });
  const paint = (from: number, to: number): string =>
    parts
      .map(({ begin, end, style }) => {
        const piece = text.slice(Math.max(begin, from), Math.max(from, Math.min(end, to)));
        return style === undefined || piece.trim() === ''
          ? piece
          : styleText(FORMATS[style], piece, { stream });
      })
      .join('');
  const width = (isOnTerminal && stream.columns) || Number.POSITIVE_INFINITY;
  let at = 0;
  const rows = text.split('\n').flatMap((row, number) => {
    const isIndented = number > 0 && row !== '' && !row.startsWith('  ');
    const before = isIndented ? ' '.repeat(INDENT) : '';
    const start = at;
    at += row.length + 1;
    return wrap(row, width - before.length).map(
      ({ indent, begin, end }) => before + ' '.repeat(indent) + paint(start + begin, start + end),
    );
  });
  return rows.join('\n');
}

/** Of a text's second line on. */
const INDENT = 4;
