import { existsSync } from 'node:fs';
import { join } from 'node:path';
import { packageFolder } from '../../ffi/package.ts';

/**
 * The path of the companion for Python, which is a part of the package. Undefined in a bundle that has no
 * cuffi installed beside it.
 */
export function companionFile(): string | undefined {
  const folder = packageFolder();
  const file = folder === undefined ? undefined : join(folder, 'src', 'python', 'cuffi.py');
  return file !== undefined && existsSync(file) ? file : undefined;
}
