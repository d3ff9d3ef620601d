import { existsSync } from 'node:fs';
import { dirname, join } from 'node:path';

/** The path of the companion for Python, which is a part of the package. */
export function companionFile(): string {
  // The source and the bundles lie at different depths.
  for (let folder = import.meta.dirname; ; folder = dirname(folder)) {
    const file = join(folder, 'src', 'python', 'cuffi.py');
    if (existsSync(file)) return file;
    if (dirname(folder) === folder) throw new Error('src/python/cuffi.py is missing from cuffi');
  }
}
