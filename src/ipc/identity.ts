/** This process as its descriptors say it, and what it can see of others. */
import { readFileSync } from 'node:fs';
import { isStillAlive } from '../../ffi/linux/pidfd.ts';
import {
  bootId,
  isProcessForeign,
  pidNamespace,
  processStartTime,
  processUser,
} from '../../ffi/linux/process.ts';
import type { IpcExporter } from './descriptor.ts';

/** What is asked about this process and machine before anything is opened. */
export interface Here {
  readonly machine: string;
  readonly pid: number;
  readonly startTime: number;
  readonly pidNamespace: number;
  readonly user: number;
  readonly isWsl: boolean;
  isAlive(pid: number, startTime: number): boolean;
  userOf(pid: number): number | undefined;
  /** Whether this process may not even signal it. */
  isForeign(pid: number): boolean;
}

let known: Here | undefined;

/** Read once: none of it changes while a process lives. */
export const here = (): Here => {
  known ??= {
    machine: bootId(),
    pid: process.pid,
    startTime: processStartTime('self') ?? 0,
    pidNamespace: pidNamespace(),
    user: process.geteuid?.() ?? 0,
    isWsl: isWsl(),
    isAlive: isStillAlive,
    userOf: processUser,
    isForeign: isProcessForeign,
  };
  return known;
};

/** What a descriptor of an object on this GPU says of its exporter. */
export const exporter = (device: string): IpcExporter => {
  const { machine, pid, startTime, pidNamespace: namespace } = here();
  return { device, machine, pid, startTime, pidNamespace: namespace };
};

/** Whether this very process made the descriptor. */
export const isOwn = (made: IpcExporter, by: Here = here()): boolean =>
  made.pid === by.pid &&
  made.startTime === by.startTime &&
  made.pidNamespace === by.pidNamespace &&
  made.machine === by.machine;

/** Whether the process that made a descriptor has ended; false where that cannot be seen. */
export function exporterIsGone({ pid, startTime, pidNamespace: namespace }: IpcExporter): boolean {
  const by = here();
  return namespace === by.pidNamespace && !by.isAlive(pid, startTime);
}

function isWsl(): boolean {
  try {
    return /microsoft/i.test(readFileSync('/proc/version', 'utf8'));
  } catch {
    return false;
  }
}
