/** Prints rows in columns. */

/** A cell is cut to this length: another process chooses some of the text. */
const MAX_CELL_LENGTH = 60;
/** The last cell of a line pads no other. */
const MAX_LAST_CELL_LENGTH = 400;

/**
 * Returns a line of cells for each row. Each column is as wide as its widest cell; the last cell of a
 * row is as long as it is. Longer cells end with `…`.
 */
export function columns(rows: readonly (readonly string[])[]): string[] {
  const widths: number[] = [];
  const cut = rows.map((row) =>
    row.map((cell, at) => {
      const isLast = at === row.length - 1;
      const text = truncate(cell, isLast ? MAX_LAST_CELL_LENGTH : MAX_CELL_LENGTH);
      if (!isLast) widths[at] = Math.max(widths[at] ?? 0, text.length);
      return text;
    }),
  );
  return cut.map((row) =>
    row
      .map((cell, at) => (at === row.length - 1 ? cell : cell.padEnd(widths[at] as number)))
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
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];
  let [size, at] = [byteLength, 0];
  // As it is written: 1024 KiB is 1 MiB.
  while (Number(size.toPrecision(4)) >= 1024 && at < units.length - 1) {
    size /= 1024;
    at += 1;
  }
  // Just below a unit, it is 0.9996 of it.
  return `${at > 0 ? Math.max(1, Number(size.toPrecision(4))) : size} ${units[at]}`;
}

/** How long something has lasted, for a table: `5 s`, `3 min`, `2 h`, `4 d`. */
export function shortAge(ms: number): string {
  const seconds = Math.floor(ms / 1000);
  if (seconds < 60) return `${seconds} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min`;
  return seconds < 86_400 ? `${Math.floor(seconds / 3600)} h` : `${Math.floor(seconds / 86_400)} d`;
}
