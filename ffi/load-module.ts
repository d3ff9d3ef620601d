import { createRequire } from 'node:module';
import { extname } from 'node:path';

/**
 * Loads a module of cuffi when it is first used, synchronously: from source (.ts) or from dist (.js).
 *
 * @param from the `import.meta.url` of the caller
 * @param path relative to the caller, without the extension
 */
export const loadModule = (from: string, path: string): unknown =>
  createRequire(from)(`${path}${extname(new URL(from).pathname)}`);
