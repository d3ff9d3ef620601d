/** The kinds of memory that commands share. */
import type { Device } from '../device.ts';
import type { MemoryFields } from '../ipc/descriptor.ts';
import type { IpcSupport } from '../ipc/sharing/blockers.ts';
import { legacy } from '../ipc/sharing/legacy.ts';
import type { MemoryKind } from '../ipc/sharing/memory.ts';
import { poolMemory } from '../ipc/sharing/pool.ts';
import { virtual } from '../ipc/sharing/virtual.ts';
import { MemoryPool } from '../memory/pool.ts';

/** By their names in descriptors; the first one that a device supports is the default. */
export const kinds: Readonly<Record<KindName, MemoryKind>> = { pool: poolMemory, legacy, virtual };

/** The name of a kind on the command line. */
export type KindName = MemoryFields['kind'];

export const kindNames = Object.keys(kinds) as KindName[];

/** The first kind that the device can share; otherwise plain memory. */
export const defaultKind = (device: Device, support: IpcSupport): KindName =>
  kindNames.find(
    (name) =>
      support[kinds[name].capability].supported &&
      (kinds[name] !== poolMemory || MemoryPool.supported(device, { shareable: true })),
  ) ?? 'legacy';
