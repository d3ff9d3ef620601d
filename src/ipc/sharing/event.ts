import { IpcError } from '../../errors.ts';
import { CudaEvent } from '../../event.ts';
import type { Stream } from '../../stream.ts';
import { type IpcEventDescriptor, type IpcMemoryDescriptor, withChecksum } from '../descriptor.ts';
import { describeExporter } from '../identity.ts';
import { rememberExport } from './export-id.ts';
import { importSourceOf } from './import-source.ts';

/** An event as another process opens it. @throws IpcError for one that is not for others */
export function exportEvent(event: CudaEvent): IpcEventDescriptor {
  const { ipcBytes } = event;
  // Asking for the handle says whether it is closed.
  const source = event.handle ? importSourceOf(event) : undefined;
  if (source) return source.descriptor as IpcEventDescriptor;
  if (!ipcBytes)
    throw new IpcError(
      'this event is not for other processes: make it with CudaEvent.create({ interprocess: true })',
    );
  const handle = Buffer.from(ipcBytes).toString('base64');
  rememberExport(`event ${handle}`, event);
  return withChecksum<'event'>({
    kind: 'event',
    ...describeExporter(event.context.device.uuid),
    handle,
  });
}

/** Events that say when shared memory may be used: recorded by its exporter, awaited elsewhere. */

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
  withChecksum({ ...descriptor, readyEvent: exportEvent(event) } as never) as M;
