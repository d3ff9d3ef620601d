/** Prints rows in columns. */

/** A cell is cut to this length: another process chooses some of the text. */
const MAX_CELL_LENGTH = 60;
/** The last cell of a line pads no other. */
const MAX_LAST_CELL_LENGTH = 400;

/**
 * Returns a line of cells for each row. Each column is as wide as its widest cell; the last cell of a
 * row is as long as it is. Longer cells end with `…`.
 *
 * @param isRight whether the cells of a column, by its number from 0, end rather than begin together
 */
export function columns(
  rows: readonly (readonly string[])[],
  isRight: (column: number) => boolean = () => false,
): string[] {
  const widths: number[] = [];
  const cut = rows.map((row) =>
    row.map((cell, at) => {
      const isLast = at === row.length - 1;
      const text = truncate(cell, isLast ? MAX_LAST_CELL_LENGTH : MAX_CELL_LENGTH);
      if (!isLast || isRight(at)) widths[at] = Math.max(widths[at] ?? 0, text.length);
      return text;
    }),
  );
  return cut.map((row) =>
    row
      .map((cell, at) => {
        if (isRight(at)) return cell.padStart(widths[at] as number);
        return at === row.length - 1 ? cell : cell.padEnd(widths[at] as number);
      })
      .join('  ')
      .trimEnd(),
  );
}

/** Returns a text of at most so many characters. Longer ones end with `…`. */
function truncate(text: string, length: number): string {
  if (text.length <= length) return text;
  const start = text.slice(0, length - 1);
  // Half of a character does not stay.
  return `${start.replace(/[\ud800-\udbff]$/, '')}…`;
}

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
