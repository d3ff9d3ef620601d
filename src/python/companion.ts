import { join } from 'node:path';
import { packageFolder } from '../package.ts';

/** The path of the companion for Python, which is a part of the package. */
export const companionFile = (): string => join(packageFolder(), 'src', 'python', 'cuffi.py');
