import { join } from 'node:path';
import { packageFolder } from '../package.ts';

/** The folder of the companion for Python, which is a part of the package. It goes onto PYTHONPATH. */
export const companionPath = (): string => join(packageFolder(), 'src', 'python');
