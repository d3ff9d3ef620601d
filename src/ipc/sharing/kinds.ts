/** The kinds of objects that processes can share. Each has a file of its own with its row. */

import type { DeviceArray } from '../../array/device-array.ts';
import type { Context } from '../../context.ts';
import type { Device } from '../../device.ts';
import type { CudaEvent } from '../../event.ts';
import type { Resource } from '../../lifetime.ts';
import type { DeviceBuffer } from '../../memory/buffer.ts';
import type { PinnedBuffer } from '../../memory/pinned.ts';
import type { MemoryPool } from '../../memory/pool.ts';
import type { Channel } from '../channel/channel.ts';
import type { AnyFields, DescriptorFields } from '../descriptor.ts';
import type { Timeline, TimelineSignaler } from '../timeline/timeline.ts';
import { channel } from './channel.ts';
import { event } from './event.ts';
import { factsOf, knownFacts } from './facts.ts';
import type { ImportedPool } from './imported-pool.ts';
import type { AddressRange, DescribedKind, Kind } from './kind.ts';
import { legacy } from './legacy.ts';
import type { ShareableMemory } from './memory.ts';
import { pinned } from './pinned.ts';
import { pool, poolMemory } from './pool.ts';
import { signaler, timeline } from './timeline.ts';
import { virtual } from './virtual.ts';

/** What can be shared with another process. */
export type Shareable =
  | ShareableMemory
  | CudaEvent
  | MemoryPool
  | ImportedPool
  | Timeline
  | TimelineSignaler
  | PinnedBuffer
  | Channel;

/**
 * What a descriptor may open as. It is a MemoryPool only for an alias of this process's own pool.
 */
export type Opened = DeviceArray | DeviceBuffer | CudaEvent | ImportedPool | MemoryPool;

/** The list. An object is of one kind only. */
export const kinds: Kind[] = [
  legacy,
  poolMemory,
  virtual,
  pool,
  event,
  timeline,
  signaler,
  pinned,
  channel,
];

/** The kind of an object; undefined if it can't be shared. */
export function kindOf(object: object): Kind | undefined {
  const known = knownFacts(object)?.kind;
  if (known) return known;
  const kind = kinds.find((each) => each.includes(object));
  if (kind) factsOf(object).kind = kind;
  return kind;
}

/** The kind that fields describe an object of. */
export function kindOfFields(fields: DescriptorFields): DescribedKind;
export function kindOfFields(fields: AnyFields): Kind;
export function kindOfFields(fields: AnyFields): Kind {
  return kinds.find(
    (kind) => kind.name === fields.kind && (kind.describes?.(fields) ?? true),
  ) as Kind;
}

// ---- What a row leaves out ----

/** Whether the object is of a kind that can be shared. It may still be refused. */
export const isShareable = (object: object): object is Shareable => kindOf(object) !== undefined;

/** What an object is, in one word. */
export const labelOf = ({ label, name }: Kind): string => label ?? name;

/** The buffer that an object is, or lies in. */
export const bufferOf = (object: object): DeviceBuffer | undefined =>
  kindOf(object)?.bufferOf?.(object);

/** The resource that owns the memory of an object. */
export const ownerOf = (object: Shareable): Resource => kindOf(object)?.ownerOf?.(object) ?? object;

/** How many bytes of memory an object keeps allocated. */
export const byteLengthOf = (object: Shareable): number =>
  kindOf(object)?.byteLengthOf?.(object) ?? 0;

/** Whether an object came over a connection, from the process that owns it. */
export const isImported = (object: Shareable): boolean =>
  knownFacts(ownerOf(object))?.owner !== undefined;

/** The addresses of an object. */
export const rangeOf = (object: Shareable): AddressRange | undefined =>
  kindOf(object)?.rangeOf?.(object);

/** The context whose streams use an object. */
export const contextOf = (object: object): Context | undefined =>
  kindOf(object)?.contextOf?.(object);

/** The device that an object is on; undefined for one in host memory only. */
export function deviceOf(object: Shareable): Device | undefined {
  const kind = kindOf(object);
  return kind?.deviceOf ? kind.deviceOf(object) : contextOf(object)?.device;
}

/** Closes an imported object that nobody received. */
export function discardImported(object: object): void {
  const kind = kindOf(object);
  if (kind?.discard) kind.discard(object);
  else (object as Resource).close();
}
