/** What this process holds: compared before and after, so that nothing is left behind. */
import { readdirSync, readFileSync } from 'node:fs';
import { Context } from '../../src/context.ts';

export interface ProcessState {
  /** Open descriptors, other than epoll's and the like that Node opens when it likes. */
  readonly descriptors: number;
  /** Mapped ranges of memfds and of the driver's devices. */
  readonly mappings: number;
  /** Free device memory, in bytes. */
  readonly free: number;
}

const isShared = (line: string): boolean => /memfd:|\/dev\/nvidia/.test(line);

/** The state of this process; a context is opened for it. */
export function processState(context: Context = Context.primary()): ProcessState {
  return {
    descriptors: readdirSync('/proc/self/fd').length,
    mappings: readFileSync('/proc/self/maps', 'utf8').split('\n').filter(isShared).length,
    free: context.memoryInfo().free,
  };
}
