import type { CUdeviceptr } from '../../../ffi/types.ts';
import type { Context } from '../../context.ts';
import type { CudaEvent } from '../../event.ts';
import { type BufferInit, DeviceBuffer, type StreamOrderedRelease } from '../../memory/buffer.ts';
import type { MemoryPool } from '../../memory/pool.ts';
import type { Stream } from '../../stream.ts';
import type { IpcMemoryDescriptor } from '../descriptor.ts';
import { setImportSource } from './import-source.ts';

/**
 * The lease on one object that another process exported and that is open here. It notifies that
 * process.
 */
export interface ImportLease {
  /**
   * The object was closed. Only work that is already queued may use it, and only in `stream` if the
   * closer named one.
   */
  closed(context: Context, stream: Stream | undefined): void;
  /** Nothing here can reach the object by this lease any longer. */
  released(): void;
}

/** The other end of the connection that a descriptor came over. */
export interface Sender {
  readonly lease: ImportLease | undefined;
  /** Whether it is a thread of this process. */
  readonly isOwnProcess: boolean;
  /**
   * Whether this process has exported the object to it: an object, or all of a range with that
   * access.
   */
  hasLeaseOn(object: DeviceBuffer | CudaEvent | MemoryPool): boolean;
}

/** Returns how imported memory is closed: its exporter is notified, and the mapping is released. */
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

/** @internal What an imported buffer is made of. */
interface ImportedBufferInit
  extends Pick<
    BufferInit,
    'context' | 'access' | 'resource' | 'owner' | 'isOwnerGone' | 'mappingBoundaries'
  > {
  readonly descriptor: IpcMemoryDescriptor;
  /** The address of the mapping that contains the descriptor's range. */
  readonly base: number;
  readonly release: BufferInit['release'];
  /** The file descriptors that exporting it again needs. */
  readonly fds: () => readonly number[];
}

/** @internal Returns the buffer for the range of a descriptor in a mapping, and sets its import source. */
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
