/** The kinds of memory for a round trip. */
import type { Context } from '../context.ts';
import type { Device } from '../device.ts';
import type { IpcSupport } from '../ipc/sharing/support.ts';
import { DeviceBuffer } from '../memory/buffer.ts';
import { MemoryPool } from '../memory/pool.ts';
import { VirtualMemory } from '../memory/virtual.ts';

interface Kind {
  /** What is sent to the other process, in words. */
  readonly description: string;
  /** The capability that the device needs. */
  readonly capability: keyof IpcSupport;
  /** Allocates memory of that kind; dispose frees it. */
  allocate(byteLength: number, context: Context): SharedMemory;
}

/** Memory that can be shared, with the resources behind it. */
export interface SharedMemory extends Disposable {
  readonly buffer: DeviceBuffer;
}

/** Pools allocate from the device in steps smaller than this. */
const POOL_STEP = 64 << 20;

/** By their names in descriptors; the first one that a device supports is the default. */
export const kinds = {
  pool: {
    description: 'memory of a pool, by the file descriptor of the pool',
    capability: 'pools',
    allocate(byteLength, context) {
      const maxSize = byteLength + POOL_STEP;
      const pool = MemoryPool.create({ context, maxSize, shareable: true });
      try {
        const buffer = pool.allocate(byteLength);
        return { buffer, [Symbol.dispose]: () => pool.close({ buffers: true }) };
      } catch (error) {
        pool.close();
        throw error;
      }
    },
  },
  legacy: {
    description: 'plain memory, by its handle',
    capability: 'memory',
    allocate(byteLength, context) {
      const buffer = DeviceBuffer.allocate(byteLength, { context });
      return { buffer, [Symbol.dispose]: () => buffer.close() };
    },
  },
  virtual: {
    description: 'virtual memory, by its file descriptor',
    capability: 'virtualMemory',
    allocate(byteLength, context) {
      const memory = VirtualMemory.reserve(byteLength, { context, shareable: true });
      try {
        return { buffer: memory.grow(byteLength), [Symbol.dispose]: () => memory.close() };
      } catch (error) {
        memory.close();
        throw error;
      }
    },
  },
} as const satisfies Readonly<Record<string, Kind>>;

/** The name of a kind on the command line. */
export type KindName = keyof typeof kinds;

export const kindNames = Object.keys(kinds) as KindName[];

/** The first kind that the device can share; otherwise plain memory. */
export const defaultKind = (device: Device, support: IpcSupport): KindName =>
  kindNames.find(
    (name) =>
      support[kinds[name].capability].supported &&
      (name !== 'pool' || MemoryPool.supported(device, { shareable: true })),
  ) ?? 'legacy';
