/** The limits of bytes a second, in words. */
import { speed } from '../format.ts';
import { limitOf } from '../limits.ts';
import type { CaseResult, Machine } from '../result-schema.ts';

/** What limits a case, and to how much; undefined where that is not known. */
export function describeLimit(result: CaseResult, machine: Machine): string | undefined {
  const most = limitOf(result, machine);
  const { limit } = result;
  if (most === undefined || !limit) return undefined;
  return `${WHAT[limit.by]}${limit.times === 2 ? ' by two, as each byte is read and written' : ''}, ${inGigabytes(most)}`;
}

/** The same in a few words, for a picture. */
export function nameLimit(result: CaseResult, machine: Machine): string | undefined {
  const most = limitOf(result, machine);
  const { limit } = result;
  if (most === undefined || !limit) return undefined;
  return `${SHORT[limit.by]}${limit.times === 2 ? ' / 2' : ''}: ${inGigabytes(most)}`;
}

const WHAT = { link: 'the bandwidth of the PCI Express link', memory: 'the memory’s bandwidth' };
const SHORT = { link: 'PCI Express', memory: 'memory' };

const inGigabytes = (bytesPerSecond: number): string => `${speed(bytesPerSecond, 1e9)} GB/s`;
