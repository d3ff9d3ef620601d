/**
 * koffi, loaded when it is first used: it takes a quarter of the time of `import 'cuffi'` (bench case
 * `startup.import`). By `require`, because as an ES module it is six files, which are read and compiled
 * one after the other.
 */
import { loadDependency } from './package.ts';

type Koffi = typeof import('koffi').default;

/** That of package.json. */
const VERSION = '3.3.4';

let loaded: Koffi | undefined;

/** @throws BundledError in a bundle that finds none */
export const koffi = (): Koffi => {
  loaded ??= loadDependency('koffi', VERSION) as Koffi;
  return loaded;
};
