/** What this process holds: compared before and after, so that nothing is left behind. */
import { readFileSync } from 'node:fs';
import { Context } from '../../src/context.ts';
import { openDescriptors } from './descriptors.ts';
import { onHardware } from './driver.ts';

export interface ProcessState {
  readonly descriptors: number;
  /** Mapped ranges of memfds and of the driver's devices. */
  readonly mappings: number;
  /** Free device memory, in bytes. */
  readonly free: number;
}

const isShared = (line: string): boolean => /memfd:|\/dev\/nvidia/.test(line);

/**
 * As {@link processState}, but for the memory that the driver keeps for code and graphs once it has
 * had some: on hardware the device's memory is left aside.
 */
export function stateBesideCode(): Partial<ProcessState> {
  const { free, ...rest } = processState();
  return onHardware ? rest : { ...rest, free };
}

/** The state of this process; a context is opened for it. */
export function processState(context: Context = Context.primary()): ProcessState {
  return {
    descriptors: openDescriptors(),
    mappings: readFileSync('/proc/self/maps', 'utf8').split('\n').filter(isShared).length,
    free: context.memoryInfo().free,
  };
}
