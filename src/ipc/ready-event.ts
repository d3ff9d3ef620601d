/** Events that say when shared memory may be used: recorded by its exporter, awaited elsewhere. */
import { CudaEvent } from '../event.ts';
import type { Stream } from '../stream.ts';
import { type IpcMemoryDescriptor, sealDescriptor } from './descriptor.ts';
import { exportEvent } from './export-event.ts';

/** An event for other processes behind the work that is queued in a stream. */
export function recordReady(stream: Stream): CudaEvent {
  const event = CudaEvent.create({ context: stream.context, interprocess: true });
  try {
    event.record(stream);
    return event;
  } catch (error) {
    event.close();
    throw error;
  }
}

/** A descriptor of memory that may be used when the event is done. */
export const withReadyEvent = <M extends IpcMemoryDescriptor>(descriptor: M, event: CudaEvent): M =>
  sealDescriptor({ ...descriptor, readyEvent: exportEvent(event) } as never) as M;
