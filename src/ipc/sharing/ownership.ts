import type { CUdeviceptr } from '../../../ffi/types.ts';
import type { Context } from '../../context.ts';
import type { CudaEvent } from '../../event.ts';
import { type BufferInit, DeviceBuffer, type StreamOrderedRelease } from '../../memory/buffer.ts';
import type { MemoryPool } from '../../memory/pool.ts';
import type { Stream } from '../../stream.ts';
import type { IpcMemoryDescriptor } from '../descriptor.ts';
import { setImportSource } from './import-source.ts';

/** What another process lent for one object that is open here: it is told how that ends. */
export interface ImportLease {
  /**
   * The object was closed: only work that is queued already may use it, in `stream` alone where
   * the one who closed it named that.
   */
  closed(context: Context, stream: Stream | undefined): void;
  /** Nothing here reaches it for that object any more. */
  released(): void;
}

/** The other end of the connection that a descriptor came over. */
export interface Sender {
  readonly lease: ImportLease | undefined;
  /** Whether it is a thread of this process. */
  readonly isOwnProcess: boolean;
  /** Whether this process has lent it an object, or all of a range with such access. */
  hasLeaseOn(object: DeviceBuffer | CudaEvent | MemoryPool): boolean;
}

/** How memory of another process is closed: its lender is told, and the mapping given up. */
export function releaseWithLease(
  context: Context,
  release: (onReleased?: () => void) => void,
  lease: ImportLease | undefined,
): StreamOrderedRelease {
  let lastStream: Stream | undefined;
  return {
    setStream(stream) {
      context.workTracker.addOtherContext(stream.context.workTracker);
      lastStream = stream;
    },
    release() {
      try {
        lease?.closed(context, lastStream);
      } finally {
        release(lease && (() => lease.released()));
      }
    },
  };
}

/** What an imported buffer is made of. */
interface ImportedBufferInit
  extends Pick<
    BufferInit,
    'context' | 'access' | 'resource' | 'owner' | 'isOwnerGone' | 'mappingBoundaries'
  > {
  readonly descriptor: IpcMemoryDescriptor;
  /** The address of the mapping that the descriptor's range lies in. */
  readonly base: number;
  readonly release: BufferInit['release'];
  /** The file descriptors that exporting it again needs. */
  readonly fds: () => readonly number[];
}

/** Returns the buffer of a descriptor in a mapping, with its import source. */
export function importedBuffer(init: ImportedBufferInit): DeviceBuffer {
  const { descriptor, fds } = init;
  const buffer = new DeviceBuffer({
    context: init.context,
    address: (init.base + descriptor.byteOffset) as CUdeviceptr,
    byteLength: descriptor.byteLength,
    origin: 'imported',
    resource: init.resource,
    owner: init.owner,
    release: init.release,
    isOwnerGone: init.isOwnerGone,
    mappingBoundaries: init.mappingBoundaries,
    access: init.access,
  });
  setImportSource(buffer, { descriptor, fds });
  return buffer;
}
