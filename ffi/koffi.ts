/**
 * koffi, loaded when it is first used: it takes a quarter of the time of `import 'cuffi'` (bench case
 * `startup.import`). By `require`, because as an ES module it is six files, which are read and compiled
 * one after the other.
 */
import { createRequire } from 'node:module';

type Koffi = typeof import('koffi').default;

let loaded: Koffi | undefined;

export const koffi = (): Koffi => {
  loaded ??= createRequire(import.meta.url)('koffi') as Koffi;
  return loaded;
};
