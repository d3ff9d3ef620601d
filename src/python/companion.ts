import { existsSync } from 'node:fs';
import { join } from 'node:path';
import { packageFolder } from '../../ffi/package.ts';

/**
 * The folder of the companion for Python, which is a part of the package. It goes onto PYTHONPATH.
 * Undefined in a bundle that has no cuffi installed beside it.
 */
export function companionPath(): string | undefined {
  const folder = packageFolder();
  const path = folder === undefined ? undefined : join(folder, 'src', 'python');
  return path !== undefined && existsSync(join(path, 'cuffi', '__init__.py')) ? path : undefined;
}
