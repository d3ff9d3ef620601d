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

/** Memory that can be shared with another process. Virtual memory arrives as the buffer that it is. */
export type ShareableMemory = DeviceArray | DeviceBuffer | VirtualMemory;

/** A memory pool of another process: an `ImportedPool`, whose class stands above this file. */
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

/** Whether it is anything that can be shared, well or badly made. */
export const isShareable = (object: object): object is Shareable =>
  isShareableMemory(object) ||
  object instanceof CudaEvent ||
  object instanceof MemoryPool ||
  isImportedPool(object);

/** What owns the memory of an object: it is this that must not be given back. */
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

/** A range of addresses, and what may be done with it. */
export interface AddressRange {
  readonly begin: number;
  readonly end: number;
  readonly access: Access;
}

/** Where the memory of an object lies: of an array that of its items. */
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

/** Whether another process made it. */
export const isImported = (object: object): boolean =>
  bufferOf(object)?.origin === 'imported' ||
  isImportedPool(object) ||
  (object instanceof CudaEvent && object.imported);

/** The context in whose streams an object is used; undefined for what no stream works on. */
export const contextOf = (object: object): Context | undefined => bufferOf(object)?.context;

/** The stream that an object is used in unless another one is named. */
export const defaultStreamOf = (object: object): Stream | undefined =>
  object instanceof DeviceArray && object.stream?.closed === false ? object.stream : undefined;

/** How much memory an object keeps. */
export function byteLengthOf(object: Shareable): number {
  const buffer = bufferOf(object);
  if (object instanceof VirtualMemory) return object.mappedByteLength;
  return buffer?.keepalive instanceof VirtualMemory
    ? buffer.keepalive.mappedByteLength
    : (buffer?.root.byteLength ?? 0);
}

/** What an object is, in one word. */
export function kindOf(object: Shareable): 'memory' | 'pool' | 'event' {
  if (object instanceof CudaEvent) return 'event';
  return object instanceof MemoryPool || isImportedPool(object) ? 'pool' : 'memory';
}

/**
 * Keeps what an object owns from being given back, and the pool that it is of; answers with the
 * way to end that.
 *
 * @throws ClosedError
 */
export function keepAlive(object: Shareable, name: string): () => void {
  const buffer = bufferOf(object);
  return buffer ? keepMemoryAlive(buffer, name) : ownerOf(object).addKeepalive(name);
}
