/** Prints rows in columns. */

/** Lines of cells, each column as wide as its widest cell; the last one as long as it is. */
export function columns(rows: readonly (readonly string[])[]): string[] {
  const count = Math.max(0, ...rows.map((row) => row.length));
  const widths = Array.from({ length: count }, (_, at) =>
    Math.max(...rows.map((row) => (row[at] ?? '').length)),
  );
  return rows.map((row) =>
    row
      .map((cell, at) => (at === row.length - 1 ? cell : cell.padEnd(widths[at] as number)))
      .join('  ')
      .trimEnd(),
  );
}

/** A number of bytes for a table: `64 KiB`. */
export function shortBytes(byteLength: number): string {
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];
  let [size, at] = [byteLength, 0];
  while (size >= 1024 && at < units.length - 1) {
    size /= 1024;
    at += 1;
  }
  return `${Number(size.toPrecision(4))} ${units[at]}`;
}

/** How long something has lasted, for a table: `5 s`, `3 min`, `2 h`, `4 d`. */
export function shortAge(ms: number): string {
  const seconds = Math.floor(ms / 1000);
  if (seconds < 60) return `${seconds} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min`;
  return seconds < 86_400 ? `${Math.floor(seconds / 3600)} h` : `${Math.floor(seconds / 86_400)} d`;
}
