/** Where the time of a case goes that does not meet its aim: bench/shortfalls.json. */
import { fileURLToPath } from 'node:url';
import { z } from 'zod';
import { readJson } from './result-file.ts';

const text = z.string().min(1);

const shortfall = z.strictObject({
  suite: text,
  case: text,
  /** Where the time goes. */
  where: text,
  /** What was done about it. */
  tried: text,
  /** What may be done next. */
  next: text,
});

const shortfallSchema = z.strictObject({ version: z.literal(1), shortfalls: z.array(shortfall) });

/** What is known of a case that falls short. */
export type Shortfall = z.infer<typeof shortfall>;

/** Reads what is known. @throws UsageError for a file that is none */
export const readShortfalls = (
  path: string = fileURLToPath(new URL('./shortfalls.json', import.meta.url)),
): readonly Shortfall[] => readJson(path, (file) => shortfallSchema.parse(file)).shortfalls;
