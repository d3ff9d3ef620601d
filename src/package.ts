/** The package that this code is a part of. */
import { readFileSync } from 'node:fs';
import { dirname, join } from 'node:path';

/** The folder of the package. @throws Error if this code was bundled into another one */
export function packageFolder(): string {
  // The source and the bundles lie at different depths.
  for (let folder = import.meta.dirname; ; folder = dirname(folder)) {
    if (manifestIn(folder)?.name === 'cuffi') return folder;
    if (dirname(folder) === folder) throw new Error('the package.json of cuffi is missing');
  }
}

/** The version in package.json. @throws Error as {@link packageFolder} */
export const packageVersion = (): string => manifestIn(packageFolder())?.version as string;

/** Names the package, its version and its folder in an error message, as far as they are known. */
export function packageName(): string {
  cachedName ??= findName();
  return cachedName;
}

let cachedName: string | undefined;

function findName(): string {
  try {
    return `cuffi ${packageVersion()} in ${packageFolder()}`;
  } catch {
    return `cuffi in ${import.meta.dirname}`;
  }
}

interface Manifest {
  readonly name: string;
  readonly version: string;
}

function manifestIn(folder: string): Manifest | undefined {
  try {
    return JSON.parse(readFileSync(join(folder, 'package.json'), 'utf8')) as Manifest;
  } catch {
    return undefined;
  }
}
