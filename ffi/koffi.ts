/**
 * koffi, by `require`: as an ES module it is six files, which are read and compiled one after the
 * other, and took a quarter of the time of `import 'cuffi'` (bench case `startup`).
 */
import { createRequire } from 'node:module';

export const koffi = createRequire(import.meta.url)('koffi') as typeof import('koffi').default;
