/** The identity of this process, of what it exports, and what it can see of other processes. */
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
import type { Device } from '../device.ts';
import { randomUint48 } from '../memory/random-id.ts';
import type { DescriptorFields, IpcExporter } from './descriptor.ts';

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

const exporterByDevice = new WeakMap<Device, IpcExporter>();

/** Returns the exporter fields of the descriptors of objects on a device. */
export function describeExporter(device: Device): IpcExporter {
  const known = exporterByDevice.get(device);
  if (known) return known;
  const { machine, pid, startTime, pidNamespace: namespace } = localProcess();
  const exporter = { device: device.uuid, machine, pid, startTime, pidNamespace: namespace };
  exporterByDevice.set(device, exporter);
  return exporter;
}

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

// ---- The objects that this process has exported, so that its own descriptors can be resolved ----

// Stored on the object: a WeakMap with an entry for each allocation would slow down garbage
// collection.
const EXPORT_ID = Symbol('generation');

interface WithExportId {
  [EXPORT_ID]?: number;
}

const exportsByName = new Map<string, WeakRef<object>>();
const MIN_SWEEP_THRESHOLD = 1024;
/**
 * Above this size, names of collected objects are removed. A finalizer for each would cost more.
 */
let sweepThreshold = MIN_SWEEP_THRESHOLD;

/**
 * Returns the number of an exported allocation, unique during the life of the process. It is
 * random, so that a process that was not given it cannot name the allocation.
 */
export function exportIdOf(allocation: object): number {
  const known = (allocation as WithExportId)[EXPORT_ID];
  if (known !== undefined) return known;
  let id = randomUint48();
  while (exportsByName.has(`memory ${id}`)) id = randomUint48();
  (allocation as WithExportId)[EXPORT_ID] = id;
  rememberExport(`memory ${id}`, allocation);
  return id;
}

/** Registers an exported object by name until it is collected. */
export function rememberExport(name: string, object: object): void {
  if (exportsByName.get(name)?.deref() === object) return;
  exportsByName.set(name, new WeakRef(object));
  if (exportsByName.size > sweepThreshold) sweepCollected();
}

function sweepCollected(): void {
  for (const [name, object] of exportsByName)
    if (object.deref() === undefined) exportsByName.delete(name);
  sweepThreshold = Math.max(MIN_SWEEP_THRESHOLD, 2 * exportsByName.size);
}

/** The name that the object of a descriptor of this process was registered by. */
export function nameOfExport(descriptor: DescriptorFields): string {
  if (descriptor.kind === 'event') return `event ${descriptor.handle}`;
  if (descriptor.kind === 'pool' && descriptor.handle === null) return `pool ${descriptor.pool}`;
  return `memory ${descriptor.generation}`;
}

/** The objects that were exported and still exist. */
export const exportedObjects = (): object[] =>
  [...exportsByName.values()].flatMap((reference) => reference.deref() ?? []);

/** The object that was exported by that name, if it still exists. */
export const findExport = (name: string): object | undefined => exportsByName.get(name)?.deref();
