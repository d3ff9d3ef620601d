import { existsSync } from 'node:fs';
import { join, relative } from 'node:path';
import { fileURLToPath } from 'node:url';

const root = fileURLToPath(new URL('../..', import.meta.url));

/** The environment variable that names the folder of what the suite has compiled. */
export const COMPILED = 'CUFFI_TEST_COMPILED';

/** How node starts a program of the project: as the suite or the build has compiled it, else by tsx. */
export function programFile(url: URL): { readonly path: string; readonly execArgv: string[] } {
  const path = fileURLToPath(url);
  const compiled = compiledFile(relative(root, path).replace(/\.ts$/, ''));
  return compiled === undefined
    ? { path, execArgv: ['--import', 'tsx'] }
    : { path: compiled, execArgv: [] };
}

/** The build is only relied on where the suite runs, which has made it anew. */
function compiledFile(name: string): string | undefined {
  const folder = process.env[COMPILED];
  if (!folder) return undefined;
  return [join(folder, `${name}.mjs`), join(root, 'dist', `${name}.js`)].find(existsSync);
}
