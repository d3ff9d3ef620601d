import { mkdirSync, writeFileSync } from 'node:fs';
import { basename, join, resolve } from 'node:path';
import { fileURLToPath } from 'node:url';
import { html, markdown } from '../report/blocks.ts';
import { drawAll } from '../report/pictures.ts';
import { reportBlocks } from '../report/report.ts';
import { readResults } from '../result-file.ts';
import { parse, UsageError } from '../usage.ts';

const RESULTS = fileURLToPath(new URL('../results', import.meta.url));

/** Writes a folder of tables and pictures: report.md, index.html and the SVG files. */
export async function report(args: readonly string[]): Promise<number> {
  const { values, positionals: paths } = parse(args, { out: { type: 'string' } });
  if (paths.length === 0) throw new UsageError('report takes at least one result file');
  const files = paths.map((path) => ({
    name: basename(path, '.json'),
    results: readResults(path),
  }));
  if (new Set(files.map(({ results }) => results.driver.emulated)).size > 1)
    throw new UsageError('runs of the emulated driver and of a GPU make no common report');
  if (new Set(files.map(({ name }) => name)).size < files.length)
    throw new UsageError('two of the files have the same name');

  const folder = resolve(values.out ?? join(RESULTS, files[0]?.name ?? ''));
  const title = files.map(({ name }) => name).join(', ');
  const pictures = new Map<string, string>();
  const blocks = [];
  for (const { name, results } of files) {
    // Each run's pictures by its name, where there are several.
    const prefix = files.length > 1 ? `${name}.` : '';
    for (const [file, svg] of await drawAll(results)) pictures.set(`${prefix}${file}`, svg);
    blocks.push(...reportBlocks(name, results, prefix));
  }
  mkdirSync(folder, { recursive: true });
  for (const [file, svg] of pictures) writeFileSync(join(folder, file), svg);
  writeFileSync(join(folder, 'report.md'), `${markdown(blocks)}\n`);
  writeFileSync(join(folder, 'index.html'), html(title, blocks, pictures));
  console.log(`written: ${folder}: report.md, index.html, pictures: ${pictures.size}`);
  return 0;
}
