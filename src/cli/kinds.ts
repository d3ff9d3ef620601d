/** The kinds of memory that a round trip can be made with. */
import type { Context } from '../context.ts';
import type { Device } from '../device.ts';
import type { IpcSupport } from '../ipc/sharing/support.ts';
import { DeviceBuffer } from '../memory/buffer.ts';
import { MemoryPool } from '../memory/pool.ts';
import { VirtualMemory } from '../memory/virtual.ts';

interface Kind {
  /** What goes to the other process, in words. */
  readonly description: string;
  /** Which way of sharing it needs. */
  readonly capability: keyof IpcSupport;
  /** Memory of that kind; dispose frees it. */
  allocate(byteLength: number, context: Context): SharedMemory;
}

/** Memory that can be shared, and all that it is of. */
export interface SharedMemory extends Disposable {
  readonly buffer: DeviceBuffer;
}

/** Pools take memory from the device in steps, which are smaller than this. */
const POOL_STEP = 64 << 20;

/** By their names in descriptors, the default first where a device has all. */
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

/** As it is typed. */
export type KindName = keyof typeof kinds;

export const kindNames = Object.keys(kinds) as KindName[];

/** What is taken without a wish: the first that the device can share; plain memory if none. */
export const defaultKind = (device: Device, support: IpcSupport): KindName =>
  kindNames.find(
    (name) =>
      support[kinds[name].capability].supported &&
      (name !== 'pool' || MemoryPool.supported(device, { shareable: true })),
  ) ?? 'legacy';
