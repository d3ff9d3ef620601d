import {
  CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT,
  CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH,
  CU_MEMPOOL_ATTR_USED_MEM_CURRENT,
  CU_MEMPOOL_ATTR_USED_MEM_HIGH,
} from '../../ffi/constants.ts';
import { cu } from '../../ffi/driver.ts';
import type { CUmemoryPool } from '../../ffi/types.ts';
import { checkBoolean, checkInteger, checkOptions } from '../arguments.ts';
import { check } from '../check.ts';
import { Resource, type ResourceInit } from '../resource.ts';
import * as driver from './pool-driver.ts';

/** A pool as the driver keeps its accounts: what it uses, holds and gives out again. */
export abstract class PoolState extends Resource {
  readonly #handle: CUmemoryPool;

  protected constructor(handle: CUmemoryPool, init: ResourceInit) {
    super('MemoryPool', init);
    this.#handle = handle;
  }

  /** The driver's handle. @throws ClosedError */
  get handle(): CUmemoryPool {
    this.requireOpen();
    return this.#handle;
  }

  /** The bytes that allocations use now, of other libraries too where the pool is borrowed. */
  get used(): number {
    return driver.readByteCount(this.handle, CU_MEMPOOL_ATTR_USED_MEM_CURRENT);
  }

  /** The most that {@link used} was since the pool was made, or since {@link resetHighWater}. */
  get usedHigh(): number {
    return driver.readByteCount(this.handle, CU_MEMPOOL_ATTR_USED_MEM_HIGH);
  }

  /** The bytes that the pool has taken from the device, in use or kept. */
  get reserved(): number {
    return driver.readByteCount(this.handle, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT);
  }

  /** The most that {@link reserved} was, as {@link usedHigh}. */
  get reservedHigh(): number {
    return driver.readByteCount(this.handle, CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH);
  }

  /** Lets {@link usedHigh} and {@link reservedHigh} begin again with what is used and reserved now. */
  resetHighWater(): void {
    driver.clearByteCount(this.handle, CU_MEMPOOL_ATTR_USED_MEM_HIGH);
    driver.clearByteCount(this.handle, CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH);
  }

  /** How many unused bytes are kept; Infinity: all. See {@link PoolOptions.releaseThreshold}. */
  get releaseThreshold(): number {
    return driver.readThreshold(this.handle);
  }

  set releaseThreshold(byteLength: number) {
    checkThreshold(byteLength);
    driver.writeThreshold(this.handle, byteLength);
  }

  /** When freed memory is given out again; what is set need not name all. */
  get reuse(): driver.PoolReuse {
    const pool = this.handle;
    return {
      followEventDependencies: driver.readReuse(pool, 'followEventDependencies'),
      allowOpportunistic: driver.readReuse(pool, 'allowOpportunistic'),
      allowInternalDependencies: driver.readReuse(pool, 'allowInternalDependencies'),
    };
  }

  set reuse(wanted: Partial<driver.PoolReuse>) {
    const checked = checkReuse(wanted);
    for (const name of driver.reuseNames) {
      const value = checked[name];
      if (value !== undefined) driver.writeReuse(this.handle, name, value);
    }
  }

  /** Gives unused memory back to the device until no more than `minBytesToKeep` are reserved. */
  trim(minBytesToKeep = 0): void {
    checkInteger(minBytesToKeep, 'minBytesToKeep');
    check(
      cu.cuMemPoolTrimTo(this.handle, minBytesToKeep),
      'cuMemPoolTrimTo',
      () => `trimming a memory pool to ${minBytesToKeep} bytes`,
    );
  }
}

export function checkThreshold(byteLength: unknown): void {
  if (byteLength !== Number.POSITIVE_INFINITY) checkInteger(byteLength, 'releaseThreshold');
}

export function checkReuse(
  reuse: Partial<driver.PoolReuse> | undefined,
): Partial<driver.PoolReuse> {
  const checked = checkOptions(reuse, driver.reuseNames, 'reuse');
  for (const name of driver.reuseNames) checkBoolean(checked[name], name, true);
  return checked;
}
