import { BundledError } from '../ffi/package.ts';
import { NotSupportedError } from './errors.ts';

/** Calls a function that loads a part of the package. @throws NotSupportedError if a bundle lacks the part */
export function loadPart<T>(load: () => T): T {
  try {
    return load();
  } catch (error) {
    if (error instanceof BundledError) throw new NotSupportedError(error.message);
    throw error;
  }
}
