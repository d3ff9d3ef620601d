/** Text of the command with styles, before it is known where it is printed. */

/** What a style says: the colours are those of output.ts. */
export type Style = 'good' | 'bad' | 'unsure' | 'faint' | 'heading';

/** A part of a line. */
export interface Span {
  readonly text: string;
  readonly style: Style;
  /** What a terminal shows instead, of the same length. */
  readonly onTerminal?: string;
}

/** A line, or one with styles in it. */
export type Line = string | readonly (string | Span)[];

export const styled = (style: Style, text: string): Span => ({ text, style });

/** The marks of results on a terminal. */
const MARKS: Readonly<Partial<Record<Style, string>>> = { good: '✓', bad: '✗', unsure: '?' };

/** The indentation of a line about a result: two spaces, in which a terminal shows a mark. */
export const mark = (style: Style): Span => ({
  text: '  ',
  style,
  onTerminal: `${MARKS[style] ?? ' '} `,
});

export const textOf = (part: string | Span): string =>
  typeof part === 'string' ? part : part.text;

/** A part of the same style with another text. */
export const withText = (part: string | Span, text: string): string | Span =>
  typeof part === 'string' ? text : { ...part, text };

/** A row of a wrapped text: its characters from `begin` to `end`, behind spaces. */
export interface Row {
  readonly indent: number;
  readonly begin: number;
  readonly end: number;
}

/** A continued line has at least so many characters; an indentation that leaves less is not kept. */
export const MIN_ROOM = 24;
/** The indentation of a continued line that has no columns. */
const CONTINUED = 4;

/**
 * Breaks a line between words into rows of a width. They continue under its last column, which begins after
 * two spaces or more. Words that are longer than a row stay whole.
 */
export function wrap(text: string, width: number): Row[] {
  const leading = text.length - text.trimStart().length;
  const hang = hangOf(text, width, leading);
  const rows: Row[] = [];
  let begin = 0;
  let indent = 0;
  while (indent + text.length - begin > width) {
    const least = rows.length === 0 ? Math.max(hang, leading) : begin;
    const latest = text.lastIndexOf(' ', begin + width - indent);
    const end = latest > least ? latest : text.indexOf(' ', begin + width - indent);
    if (end < 0) break;
    rows.push({ indent, begin, end });
    begin = end + 1;
    indent = hang;
  }
  return [...rows, { indent, begin, end: text.length }];
}

/**
 * Fits text that was broken for a wider terminal: paragraphs are broken anew, and a row of two columns, such
 * as an option, becomes one line, which {@link wrap} continues under its second column. Text that fits
 * stays as it is, with its first paragraph.
 */
export function refill(text: string, width: number): string[] {
  const lines = text.split('\n');
  if (lines.every((line) => line.length <= width)) return lines;
  const first = lines.indexOf('') + 1;
  const joined: string[] = [];
  for (const line of lines.slice(first)) {
    const last = joined.at(-1) ?? '';
    const isContinuation = SECOND_COLUMN.test(line)
      ? /^ {2}\S/.test(last)
      : /^\S/.test(line) && /^\S/.test(last);
    if (isContinuation) joined[joined.length - 1] = `${last} ${line.trim()}`;
    else joined.push(line);
  }
  const filled = joined.flatMap((line) => (/^\S/.test(line) ? fill(line, width) : [line]));
  return [...lines.slice(0, first), ...filled];
}

/** A line that continues the second column of the one before. */
const SECOND_COLUMN = /^ {10,}\S/;

/** Breaks a paragraph between words. */
function fill(text: string, width: number): string[] {
  const lines: string[] = [];
  for (const word of text.split(' ')) {
    const longer = `${lines.at(-1)} ${word}`;
    if (lines.length > 0 && longer.length <= width) lines[lines.length - 1] = longer;
    else lines.push(word);
  }
  return lines;
}

/** Where the rows of a text continue. */
function hangOf(text: string, width: number, leading: number): number {
  const columns = [...text.matchAll(/(?<=\S) {2,}(?:→ )?(?=\S)|^ {2,}→ /g)]
    .map(({ index, 0: gap }) => index + gap.length)
    .filter((column) => column + MIN_ROOM <= width);
  const hang = columns.at(-1) ?? leading + CONTINUED;
  return hang + MIN_ROOM <= width ? hang : 0;
}
