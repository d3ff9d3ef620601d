import { requireMade } from '../arguments.ts';
import { CudaEvent } from '../event.ts';
import { Resource } from '../resource.ts';
import type { IpcMemoryDescriptor } from './descriptor.ts';
import type { Parcel } from './parcel.ts';
import { withReadyEvent } from './ready-event.ts';

/**
 * What `exportIpc` gives with a stream: memory, and an event that says when it may be used. The
 * other process waits for that with `ready`; `close()` takes the event away, and leaves the memory.
 */
export class ReadyParcel extends Resource implements Parcel {
  readonly descriptor: IpcMemoryDescriptor;
  readonly fds: readonly number[];

  /** @internal */
  constructor(descriptor: IpcMemoryDescriptor, fds: readonly number[], event: CudaEvent) {
    requireMade(event, CudaEvent, 'ReadyParcel', 'exportIpc');
    super('ReadyParcel', { owner: event.context.resources, release: () => event.close() });
    this.descriptor = withReadyEvent(descriptor, event);
    this.fds = fds;
  }
}
