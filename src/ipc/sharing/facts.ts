/** What cuffi remembers about an object that was shared, or that another process has shared. */

import { randomUint48 } from '../../crypto.ts';
import type { Device } from '../../device.ts';
import type { DescriptorFields, IpcExporter } from '../descriptor.ts';
import { localProcess } from '../identity.ts';
import type { EncodedExport, Kind } from './kind.ts';

/**
 * The descriptor and file descriptors that an object was opened with. The object keeps the file
 * descriptors open.
 */
export interface ImportSource<D extends DescriptorFields = DescriptorFields> {
  readonly descriptor: D;
  fds(): readonly number[];
}

/** All facts about one object. A class, so that all records have the same shape. */
class Facts {
  /** Its row in the list of kinds, once that was asked for. */
  kind: Kind | undefined = undefined;
  /** The number of an allocation: see `exportIdOf`. */
  exportId: number | undefined = undefined;
  /** What it was exported as, if that is the same each time. */
  encoded: EncodedExport | undefined = undefined;
  /** What it was opened with, if it belongs to another process. */
  source: ImportSource | undefined = undefined;
  /** The leases of other processes on it: see the room `lease`. */
  leases: Set<object> | undefined = undefined;
  /** The connection to its owner, if it belongs to another process: see the room `lease`. */
  owner: { moved?(to: object): void } | undefined = undefined;
}

// Stored on the object: a WeakMap with an entry for each would slow down garbage collection.
const FACTS = Symbol('facts');

interface WithFacts {
  [FACTS]?: Facts;
}

/** The record of an object, made when first needed. */
export const factsOf = (object: object): Facts => {
  const holder = object as WithFacts;
  holder[FACTS] ??= new Facts();
  return holder[FACTS];
};

/** The record of an object, if it has one. */
export const knownFacts = (object: object): Facts | undefined => (object as WithFacts)[FACTS];

// ---- The objects that this process has exported, so that its own descriptors can be resolved ----

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
  const facts = factsOf(allocation);
  if (facts.exportId !== undefined) return facts.exportId;
  let id = randomUint48();
  while (exportsByName.has(`memory ${id}`)) id = randomUint48();
  facts.exportId = id;
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

/** The objects that were exported and still exist. */
export const exportedObjects = (): object[] =>
  [...exportsByName.values()].flatMap((reference) => reference.deref() ?? []);

/** The object that was exported by that name, if it still exists. */
export const findExport = (name: string): object | undefined => exportsByName.get(name)?.deref();

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
