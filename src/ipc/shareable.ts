import { DeviceArray } from '../array/device-array.ts';
import { layoutExtents } from '../array/layout.ts';
import type { Context } from '../context.ts';
import { CudaEvent } from '../event.ts';
import { Resource } from '../lifetime.ts';
import { type Access, DeviceBuffer } from '../memory/buffer.ts';
import { keepMemoryAlive } from '../memory/keep-alive.ts';
import { MemoryPool } from '../memory/pool.ts';
import { VirtualMemory } from '../memory/virtual.ts';
import type { Stream } from '../stream.ts';

/** Memory that can be shared with another process. Virtual memory arrives as a buffer. */
export type ShareableMemory = DeviceArray | DeviceBuffer | VirtualMemory;

/** A memory pool of another process: an `ImportedPool`, whose class this file must not import. */
interface PoolOfOtherProcess extends Resource {
  readonly isMapped: true;
  allocate(): never;
}

/** What can be shared with another process. */
export type Shareable = ShareableMemory | CudaEvent | MemoryPool | PoolOfOtherProcess;

export const isShareableMemory = (object: object): object is ShareableMemory =>
  object instanceof DeviceBuffer ||
  object instanceof DeviceArray ||
  object instanceof VirtualMemory;

const isImportedPool = (object: object): object is PoolOfOtherProcess =>
  Resource.is(object, 'ImportedPool');

/** Whether the object is of a kind that can be shared. It may still be refused. */
export const isShareable = (object: object): object is Shareable =>
  isShareableMemory(object) ||
  object instanceof CudaEvent ||
  object instanceof MemoryPool ||
  isImportedPool(object);

/**
 * The resource that owns the memory of an object, which must not be freed while the object is
 * shared.
 */
export function ownerOf(object: Shareable): Resource {
  const buffer = bufferOf(object);
  if (!buffer) return object;
  return buffer.keepalive instanceof VirtualMemory ? buffer.keepalive : buffer.root;
}

/** The buffer that an object is, or lies in. */
export function bufferOf(object: object): DeviceBuffer | undefined {
  if (object instanceof DeviceBuffer) return object;
  if (object instanceof DeviceArray) return object.buffer;
  return object instanceof VirtualMemory ? object.buffer : undefined;
}

/** A range of addresses and its access. */
export interface AddressRange {
  readonly begin: number;
  readonly end: number;
  readonly access: Access;
}

/** The address range of an object; for an array, that of its items. */
export function rangeOf(object: Shareable): AddressRange | undefined {
  const buffer = bufferOf(object);
  if (!buffer) return undefined;
  const { address, byteLength, access } = buffer;
  if (!(object instanceof DeviceArray))
    return { begin: address, end: address + byteLength, access };
  const { low, high } = layoutExtents(object.layout);
  return {
    begin: address + low,
    end: address + high,
    access: object.readOnly ? 'read' : access,
  };
}

/** Whether another process made the object. */
export const isImported = (object: object): boolean =>
  bufferOf(object)?.origin === 'imported' ||
  isImportedPool(object) ||
  (object instanceof CudaEvent && object.imported);

/** The context whose streams use an object; undefined for objects that no stream uses. */
export const contextOf = (object: object): Context | undefined => bufferOf(object)?.context;

/** The stream that uses an object by default. */
export const defaultStreamOf = (object: object): Stream | undefined =>
  object instanceof DeviceArray && object.stream?.closed === false ? object.stream : undefined;

/** How many bytes of memory an object keeps allocated. */
export function byteLengthOf(object: Shareable): number {
  const buffer = bufferOf(object);
  if (object instanceof VirtualMemory) return object.mappedByteLength;
  return buffer?.keepalive instanceof VirtualMemory
    ? buffer.keepalive.mappedByteLength
    : (buffer?.root.byteLength ?? 0);
}

/** The kind of an object, in one word. */
export function kindOf(object: Shareable): 'memory' | 'pool' | 'event' {
  if (object instanceof CudaEvent) return 'event';
  return object instanceof MemoryPool || isImportedPool(object) ? 'pool' : 'memory';
}

/**
 * Keeps what an object owns, and its pool, from being freed. Returns a function that ends this.
 *
 * @throws ClosedError
 */
export function keepAlive(object: Shareable, name: string): () => void {
  const buffer = bufferOf(object);
  return buffer ? keepMemoryAlive(buffer, name) : ownerOf(object).addKeepalive(name);
}
