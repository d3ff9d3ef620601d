/** Lays out rows in columns. */
import { type Line, MIN_ROOM, type Span, styled, textOf, withText } from './text.ts';

/** A cell is cut to this length: another process chooses some of the text. */
const MAX_CELL_LENGTH = 60;
/** The last cell of a line pads no other. */
const MAX_LAST_CELL_LENGTH = 400;

/** Options of {@link columns}. */
export interface TableOptions {
  /** Whether the cells of a column, by its number from 0, end rather than begin together. */
  readonly isRight?: (column: number) => boolean;
  /** Of the terminal: columns that do not fit continue in a further line of each row. Default: all fit. */
  readonly width?: number;
}

/**
 * Returns a line of cells for each row. Each column is as wide as its widest cell; the last cell of a
 * row is as long as it is. Longer cells end with `…`.
 */
export function columns(
  rows: readonly (readonly (string | Span)[])[],
  { isRight = () => false, width = Number.POSITIVE_INFINITY }: TableOptions = {},
): Line[] {
  const widths: number[] = [];
  // Of the last column, which is not padded and may be wrapped, a part.
  const needed: number[] = [];
  const cut = rows.map((row) =>
    row.map((cell, at) => {
      const isLast = at === row.length - 1;
      const text = truncate(textOf(cell), isLast ? MAX_LAST_CELL_LENGTH : MAX_CELL_LENGTH);
      if (!isLast || isRight(at)) widths[at] = Math.max(widths[at] ?? 0, text.length);
      needed[at] = Math.max(needed[at] ?? 0, widths[at] ?? leastRoom(text));
      return withText(cell, text);
    }),
  );
  const starts = lineStarts(needed, width);
  return cut.flatMap((row) => {
    const cells = row.map((cell, at) => {
      const text = textOf(cell);
      if (isRight(at)) return withText(cell, text.padStart(widths[at] as number));
      const isLast = at === row.length - 1;
      return withText(cell, isLast ? text : text.padEnd(widths[at] as number));
    });
    return starts
      .filter((start) => start === 0 || start < cells.length)
      .map((start, line) => {
        const own = cells.slice(start, starts[line + 1]);
        // Indented by a gap.
        return joined(start === 0 ? own : ['', ...own]);
      });
  });
}

/** How much of a line a text needs that may be wrapped: its longest word stays whole. */
const leastRoom = (text: string): number =>
  Math.max(Math.min(text.length, MIN_ROOM), ...text.split(' ').map((word) => word.length));

/** The numbers of the columns that begin a line. */
function lineStarts(widths: readonly number[], width: number): number[] {
  const starts = [0];
  let end = 0;
  for (const [at, each] of widths.entries()) {
    if (at > 0 && end + GAP.length + each > width) {
      starts.push(at);
      end = 0;
    }
    end += (at === 0 ? 0 : GAP.length) + each;
  }
  return starts;
}

/** The names of columns. */
export const heading = (...names: readonly string[]): Span[] =>
  names.map((name) => styled('heading', name));

/** Joins the cells of a row, without spaces at its end. */
function joined(cells: readonly (string | Span)[]): Line {
  const last = cells.findLastIndex((cell) => textOf(cell).trim() !== '');
  const parts = cells.slice(0, last + 1).map((cell, at) => {
    if (at < last) return cell;
    return withText(cell, textOf(cell).trimEnd());
  });
  return parts.every((part) => typeof part === 'string')
    ? parts.join(GAP)
    : parts.flatMap((part, at) => (at === 0 ? [part] : [GAP, part]));
}

/** Between two columns. */
const GAP = '  ';

/** Returns a text of at most so many characters. Longer ones end with `…`. */
function truncate(text: string, length: number): string {
  if (text.length <= length) return text;
  const start = text.slice(0, length - 1);
  // Half of a character does not stay.
  return `${start.replace(/[\ud800-\udbff]$/, '')}…`;
}

/** A number of things: `1 object`, `2 objects`. */
export const countOf = (count: number, noun: string): string =>
  `${count} ${noun}${count === 1 ? '' : 's'}`;

/** A number of bytes for a table: `64 KiB`. */
export function shortBytes(byteLength: number): string {
  const [size, unit] = inUnit(byteLength, ['B', 'KiB', 'MiB', 'GiB', 'TiB'], 1024, 4);
  // Just below a unit, it is 0.9996 of it.
  return `${unit === 'B' ? size : Math.max(1, Number(size.toPrecision(4)))} ${unit}`;
}

/** A time with three digits and its unit: `85.1 µs`. */
export function shortTime(ms: number): string {
  const [time, unit] = inUnit(ms * 1e6, ['ns', 'µs', 'ms', 's'], 1000, 3);
  return `${time >= 100 ? time.toFixed(0) : time.toPrecision(3)} ${unit}`;
}

/** Returns a value, given in the first unit, in the one that suits it; each is `factor` times the one before. */
function inUnit(
  value: number,
  [unit = '', ...larger]: readonly string[],
  factor: number,
  digits: number,
): [value: number, unit: string] {
  // As it is written: 1024 KiB is 1 MiB.
  return Number(value.toPrecision(digits)) >= factor && larger.length > 0
    ? inUnit(value / factor, larger, factor, digits)
    : [value, unit];
}

/** How long something has lasted, for a table: `5 s`, `3 min`, `2 h`, `4 d`. */
export function shortAge(ms: number): string {
  const seconds = Math.floor(ms / 1000);
  if (seconds < 60) return `${seconds} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min`;
  return seconds < 86_400 ? `${Math.floor(seconds / 3600)} h` : `${Math.floor(seconds / 86_400)} d`;
}
