import { cu } from '../../ffi/driver.ts';
import type { CUmemoryPool } from '../../ffi/types.ts';
import { check } from '../check.ts';
import type { Context } from '../context.ts';
import type { Device } from '../device.ts';
import type { ResourceSet } from '../resource.ts';
import * as driver from './pool-driver.ts';

/** What the pool's finalizer and its buffers' know of it: never the pool itself. */
export interface PoolBooks {
  readonly buffers: ResourceSet;
  /** The bytes of the open buffers. */
  byteLength: number;
  /** The other devices that were given access. */
  readonly granted: Set<Device>;
}

/** Destroys a pool when the GPU is done with it; nothing after a reset, which has. */
export function destroyPool(
  context: Context,
  resets: number,
  handle: CUmemoryPool,
  books: PoolBooks,
): void {
  const { releases } = context;
  try {
    // None is open but after a leak: pool and buffers were collected together.
    books.buffers.closeAll('its pool was closed');
  } finally {
    releases.submit(
      () => {
        if (context.resets !== resets) return;
        // A later pool may get the same handle, and with it the access that others had to this one.
        for (const device of books.granted) driver.writeAccess(handle, device, false);
        check(cu.cuMemPoolDestroy(handle), 'cuMemPoolDestroy');
      },
      { waits: false },
    );
  }
}
