import { isBundled, loadModule } from '../../ffi/package.ts';
import { loadPart } from '../package.ts';

type Zod = typeof import('./zod.ts');

/** In dist this is `require`, which bundlers see: the build replaces the name, and nothing else. */
declare function requireInBundle(path: string): unknown;

/**
 * Loads zod for the first answer of another process that is checked, always through this function. Users have no types of
 * zod: no declaration that they reach names them.
 */
export function loadZod(): Zod {
  if (isBundled())
    try {
      const found = requireInBundle('./zod.js') as Partial<Zod>;
      // It could be a file of the program beside its bundle.
      if (found.strictObject && found.partialRecord) return found as Zod;
    } catch {
      // The bundler has left it out.
    }
  return loadPart(
    () => loadModule('../src/ipc/zod', 'the part of cuffi that checks JSON', './zod') as Zod,
  );
}
