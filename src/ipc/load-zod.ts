import { loadModule } from '../../ffi/load-module.ts';

/**
 * Loads zod for the first message that is checked, always through this function. In dist it lies beside
 * the file that has this module. Users have no types of zod: no declaration that they reach names them.
 */
export const loadZod = (): typeof import('./zod.ts') =>
  loadModule(import.meta.url, './zod') as typeof import('./zod.ts');
