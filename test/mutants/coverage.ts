/** Which tests run which lines: recorded once for a tree, so that a fault meets the right tests first. */
import { existsSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { basename, dirname, join, relative, resolve } from 'node:path';
import { fileURLToPath } from 'node:url';

/** What a test file did in a run. */
export interface TestRecord {
  readonly isGreen: boolean;
  readonly seconds: number;
  /** Lines of TypeScript and first lines of Python functions, by file. */
  readonly lines: Readonly<Record<string, readonly number[]>>;
}

/** By test file. */
export type Coverage = Readonly<Record<string, TestRecord>>;

/** The tests that run a line, those first that run most of its file for the time that they take. */
export function testsThatRun(coverage: Coverage, file: string, line: number): string[] {
  const worth = ({ lines, seconds }: TestRecord): number =>
    (lines[file]?.length ?? 0) / (seconds + 2);
  return Object.entries(coverage)
    .filter(([, { lines }]) => lines[file]?.includes(line) === true)
    .sort(([, a], [, b]) => worth(b) - worth(a))
    .map(([test]) => test);
}

/** As in-group.sh records it: how each test file of a run ended. Those that it could not end are missing. */
export function readEnds(
  folder: string,
): Map<string, { readonly isGreen: boolean; readonly seconds: number }> {
  const names = existsSync(folder)
    ? readdirSync(folder, { recursive: true, encoding: 'utf8' })
    : [];
  return new Map(
    names
      .filter((name) => basename(name) === 'ended')
      .map((name) => {
        const [status, begin = 0, end = 0] = readFileSync(join(folder, name), 'utf8')
          .trim()
          .split(' ')
          .map(Number);
        const test = dirname(name).replace(/\.mjs$/, '.ts');
        const seconds = Math.round((end - begin) * 10) / 10;
        return [test, { isGreen: status === 0, seconds }];
      }),
  );
}

/** Collects the records of a run while it goes on: those of all processes would fill a disk. */
export class CoverageReader {
  readonly #root: string;
  readonly #folder: string;
  /** By test file, then by file, the lines. */
  readonly #lines = new Map<string, Map<string, Set<number>>>();
  readonly #scripts = new Map<string, Script | undefined>();

  /**
   * @param root the tree that runs
   * @param folder where in-group.sh records
   */
  constructor(root: string, folder: string) {
    this.#root = root;
    this.#folder = folder;
  }

  /** Reads and removes what processes that have exited have left. */
  collect(): void {
    if (!existsSync(this.#folder)) return;
    for (const name of readdirSync(this.#folder, { recursive: true, encoding: 'utf8' })) {
      if (!/^coverage-.*\.json$/.test(basename(name))) continue;
      const path = join(this.#folder, name);
      const text = readFileSync(path, 'utf8');
      // The last of a process that is still written.
      if (!text.trimEnd().endsWith('}')) continue;
      this.#add(testOf(name), JSON.parse(text) as V8Coverage);
      rmSync(path);
    }
  }

  /** All that was collected, with how the test files ended. */
  result(): Coverage {
    const ends = readEnds(this.#folder);
    for (const test of ends.keys()) this.#addPython(test);
    return Object.fromEntries(
      [...ends].map(([test, end]) => {
        const lines = [...(this.#lines.get(test) ?? [])].map(([file, found]) => [
          file,
          [...found].sort((a, b) => a - b),
        ]);
        return [test, { ...end, lines: Object.fromEntries(lines) }];
      }),
    );
  }

  #addPython(test: string): void {
    const path = join(this.#folder, test.replace(/\.ts$/, '.mjs'), 'python');
    if (!existsSync(path)) return;
    for (const line of readFileSync(path, 'utf8').split('\n')) {
      const [name, first] = line.split(':');
      if (!first) continue;
      const found = this.#linesOf(test, `src/python/cuffi/${name}`);
      found.add(Number(first));
      // What stands outside all functions.
      found.add(0);
    }
  }

  #add(test: string, { result, 'source-map-cache': maps }: V8Coverage): void {
    for (const { url, functions } of result) {
      const script = this.#script(url, maps?.[url]);
      if (script === undefined) continue;
      // Ranges are nested: the innermost that contains a place counts.
      const counts = new Uint8Array(script.offsets.length);
      const ranges = functions.flatMap(({ ranges }) => ranges);
      ranges.sort((a, b) => a.startOffset - b.startOffset || b.endOffset - a.endOffset);
      for (const { startOffset, endOffset, count } of ranges)
        counts.fill(
          Math.min(count, 1),
          firstAtLeast(script.offsets, startOffset),
          firstAtLeast(script.offsets, endOffset),
        );
      for (const [at, count] of counts.entries())
        if (count > 0) {
          const file = script.files[script.sources[at] as number];
          if (file !== undefined) this.#linesOf(test, file).add(script.lines[at] as number);
        }
    }
  }

  #linesOf(test: string, file: string): Set<number> {
    const files = this.#lines.get(test) ?? new Map<string, Set<number>>();
    this.#lines.set(test, files);
    const lines = files.get(file) ?? new Set<number>();
    files.set(file, lines);
    return lines;
  }

  #script(url: string, map: SourceMap | undefined): Script | undefined {
    if (!url.startsWith('file:') || url.includes('/node_modules/')) return undefined;
    if (!this.#scripts.has(url) && map?.data) this.#scripts.set(url, this.#read(url, map));
    return this.#scripts.get(url);
  }

  #read(url: string, { lineLengths, data }: SourceMap): Script {
    const folder = dirname(fileURLToPath(url));
    const files = (data?.sources ?? []).map((source) => {
      const path = source.startsWith('file:') ? fileURLToPath(source) : resolve(folder, source);
      const file = relative(this.#root, path);
      return /^(src|ffi)\//.test(file) ? file : undefined;
    });
    const places = [...decodeMappings(data?.mappings ?? '', lineLengths)];
    return {
      files,
      offsets: Uint32Array.from(places, ([offset]) => offset),
      sources: Uint32Array.from(places, ([, source]) => source),
      lines: Uint32Array.from(places, ([, , line]) => line),
    };
  }
}

const testOf = (name: string): string => dirname(name).replace(/\.mjs$/, '.ts');

/** What node writes for each process. */
interface V8Coverage {
  readonly result: readonly {
    readonly url: string;
    readonly functions: readonly {
      readonly ranges: readonly {
        readonly startOffset: number;
        readonly endOffset: number;
        readonly count: number;
      }[];
    }[];
  }[];
  readonly 'source-map-cache'?: Readonly<Record<string, SourceMap>>;
}

interface SourceMap {
  readonly lineLengths: readonly number[];
  readonly data: { readonly sources: readonly string[]; readonly mappings: string } | null;
}

/** The places of a compiled script that come from a source, in order. */
interface Script {
  readonly files: readonly (string | undefined)[];
  readonly offsets: Uint32Array;
  readonly sources: Uint32Array;
  readonly lines: Uint32Array;
}

/** The first index whose value is at least `wanted`. */
function firstAtLeast(values: Uint32Array, wanted: number): number {
  let low = 0;
  let high = values.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if ((values[middle] as number) < wanted) low = middle + 1;
    else high = middle;
  }
  return low;
}

const DIGITS = 'ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/';

/** Offset, source and line (from 1) of each place. Node's class for source maps does not list them. */
export function* decodeMappings(
  mappings: string,
  lineLengths: readonly number[],
): Generator<[offset: number, source: number, line: number]> {
  let begin = 0;
  let source = 0;
  let line = 0;
  for (const [at, row] of mappings.split(';').entries()) {
    let column = 0;
    for (const segment of row.split(',')) {
      const [columns, sources, lines] = decodeNumbers(segment);
      if (columns === undefined) continue;
      column += columns;
      if (sources === undefined) continue;
      source += sources;
      line += lines ?? 0;
      yield [begin + column, source, line + 1];
    }
    begin += (lineLengths[at] ?? 0) + 1;
  }
}

/** Numbers in the format of source maps: digits of 5 bits, the lowest first, the sign in the last bit. */
function decodeNumbers(text: string): number[] {
  const numbers: number[] = [];
  let value = 0;
  let shift = 0;
  for (const digit of text) {
    const bits = DIGITS.indexOf(digit);
    value |= (bits & 31) << shift;
    shift += 5;
    if (bits & 32) continue;
    numbers.push(value & 1 ? -(value >> 1) : value >> 1);
    value = 0;
    shift = 0;
  }
  return numbers;
}

export function readCoverage(file: string): Coverage | undefined {
  return existsSync(file) ? (JSON.parse(readFileSync(file, 'utf8')) as Coverage) : undefined;
}

export const writeCoverage = (file: string, coverage: Coverage): void =>
  writeFileSync(file, JSON.stringify(coverage));
