import { mkdirSync, readdirSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { makePage, PAGE, PICTURES, RUN } from '../report/page.ts';
import { drawAll } from '../report/pictures.ts';
import { readResults } from '../result-file.ts';
import { parse, UsageError } from '../usage.ts';

/** Writes docs/benchmark.md and its pictures from the committed results. */
export async function page(args: readonly string[]): Promise<number> {
  const { positionals } = parse(args, {});
  if (positionals.length > 0) throw new UsageError(`page takes no '${positionals[0]}'`);
  const pictures = await drawAll(readResults(RUN));
  writeFileSync(PAGE, makePage());
  // What an earlier run had and this one has not would stay.
  mkdirSync(PICTURES, { recursive: true });
  for (const file of readdirSync(PICTURES)) if (file.endsWith('.svg')) rmSync(join(PICTURES, file));
  for (const [file, svg] of pictures) writeFileSync(join(PICTURES, file), svg);
  console.log(`written: ${PAGE}, pictures: ${pictures.size}`);
  return 0;
}
