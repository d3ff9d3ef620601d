import { callCases } from './calls.ts';
import type { Case } from './case.ts';
import { handOverCases } from './hand-over.ts';

/** All cases, in the order in which they run. */
export const cases: readonly Case[] = [...callCases, ...handOverCases];
