/** The identity of this process, and what it can see of other processes. */
import { readFileSync } from 'node:fs';
import { isProcessAliveCached } from '../../ffi/linux/pidfd.ts';
import {
  bootId,
  effectiveUid,
  isOtherUsersProcess,
  isProcessEnding,
  pidNamespace,
  processStartTime,
  processUser,
} from '../../ffi/linux/process.ts';
import type { IpcExporter } from './descriptor.ts';

/** This process and machine, as checks before opening anything need them. */
export interface LocalProcess {
  readonly machine: string;
  readonly pid: number;
  readonly startTime: number;
  readonly pidNamespace: number;
  readonly user: number;
  readonly isWsl: boolean;
  isAlive(pid: number, startTime: number): boolean;
  userOf(pid: number): number | undefined;
  /** Whether this process has no permission to signal that process. */
  isForeign(pid: number): boolean;
}

let cached: LocalProcess | undefined;

/** Read once: none of it changes during the life of a process. */
export const localProcess = (): LocalProcess => {
  cached ??= {
    machine: bootId(),
    pid: process.pid,
    startTime: processStartTime('self') ?? 0,
    pidNamespace: pidNamespace(),
    user: effectiveUid(),
    isWsl: isWsl(),
    isAlive: isProcessAliveCached,
    userOf: processUser,
    isForeign: isOtherUsersProcess,
  };
  return cached;
};

/** Names a process, as in an error message. Its pid is 0 if it is of another pid namespace. */
export const processName = ({ pid }: { readonly pid: number }): string =>
  pid === 0 ? 'a process of another pid namespace' : `process ${pid}`;

/** Whether this process made the descriptor. */
export const isFromThisProcess = (
  exporter: IpcExporter,
  self: LocalProcess = localProcess(),
): boolean =>
  exporter.pid === self.pid &&
  exporter.startTime === self.startTime &&
  exporter.pidNamespace === self.pidNamespace &&
  exporter.machine === self.machine;

/** Whether the process that made a descriptor has exited; false if that cannot be seen. */
export function isExporterGone({ pid, startTime, pidNamespace: namespace }: IpcExporter): boolean {
  const self = localProcess();
  return namespace === self.pidNamespace && !self.isAlive(pid, startTime);
}

/**
 * Like {@link isExporterGone}, but true as soon as the process begins to exit. Its pid exists for a
 * while after the driver has released what it shared.
 */
export const isExporterEnding = (exporter: IpcExporter): boolean =>
  isExporterGone(exporter) ||
  (exporter.pidNamespace === localProcess().pidNamespace && isProcessEnding(exporter.pid) === true);

/** @param root the folder that /proc is in, for tests */
export function isWsl(root = ''): boolean {
  try {
    return /microsoft/i.test(readFileSync(`${root}/proc/version`, 'utf8'));
  } catch {
    return false;
  }
}
