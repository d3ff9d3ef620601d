import { createRequire } from 'node:module';

/**
 * zod takes longer to load than all of cuffi: it is loaded when the first message is checked, and
 * through this one function, so that it is loaded once.
 */
export const loadZod = (): typeof import('zod') =>
  createRequire(import.meta.url)('zod') as typeof import('zod');
