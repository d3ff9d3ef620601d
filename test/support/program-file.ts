import { existsSync } from 'node:fs';
import { join, relative } from 'node:path';
import { fileURLToPath } from 'node:url';

const root = fileURLToPath(new URL('../..', import.meta.url));

/** The environment variable that names the folder of what the suite has compiled. */
export const COMPILED = 'CUFFI_TEST_COMPILED';

/** How node starts a program of the tests: as the suite has compiled it, else through tsx. */
export function programFile(url: URL): { readonly path: string; readonly execArgv: string[] } {
  const path = fileURLToPath(url);
  const folder = process.env[COMPILED];
  const compiled = folder && join(folder, relative(root, path).replace(/\.ts$/, '.mjs'));
  return compiled && existsSync(compiled)
    ? { path: compiled, execArgv: [] }
    : { path, execArgv: ['--import', 'tsx'] };
}
