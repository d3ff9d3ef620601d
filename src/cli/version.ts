import { readFileSync } from 'node:fs';
import { extname } from 'node:path';

/** The version in package.json, from the source and from dist. */
export function packageVersion(): string {
  const isSource = extname(import.meta.filename) === '.ts';
  const file = new URL(isSource ? '../../package.json' : '../../../package.json', import.meta.url);
  return (JSON.parse(readFileSync(file, 'utf8')) as { readonly version: string }).version;
}
