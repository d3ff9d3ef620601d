import { readFileSync, writeFileSync } from 'node:fs';
import { z } from 'zod';
import { migrate } from './migrate.ts';
import { type Results, resultSchema } from './result-schema.ts';
import { UsageError } from './usage.ts';

/** Reads a result file. @throws UsageError where there is none, or what is there is none */
export function readResults(path: string): Results {
  return readJson(path, (file) => resultSchema.parse(migrate(file)));
}

/** Reads a file of JSON that a schema knows. @throws UsageError which says what is wrong with it */
export function readJson<T>(path: string, parse: (file: unknown) => T): T {
  try {
    return parse(JSON.parse(readFileSync(path, 'utf8')));
  } catch (error) {
    const why = error instanceof z.ZodError ? z.prettifyError(error) : (error as Error).message;
    throw new UsageError(`${path} cannot be read: ${why}`);
  }
}

/** Writes a result file: the samples of a contestant in one line. */
export function writeResults(path: string, results: Results): void {
  const json = JSON.stringify(results, rounded, 2);
  writeFileSync(path, `${json.replaceAll(/\[[\d\s.,e+-]+\]/g, oneLine)}\n`);
}

/** A thousandth of a nanosecond is far below what any clock here tells. */
const rounded = (_key: string, value: unknown): unknown =>
  typeof value === 'number' ? Math.round(value * 1000) / 1000 : value;

const oneLine = (list: string): string =>
  list.replaceAll(/\s+/g, ' ').replace('[ ', '[').replace(' ]', ']');
