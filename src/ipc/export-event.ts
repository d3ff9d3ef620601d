import { IpcError } from '../errors.ts';
import type { CudaEvent } from '../event.ts';
import { type IpcEventDescriptor, sealDescriptor } from './descriptor.ts';
import { rememberExport } from './exports.ts';
import { exporter } from './here.ts';
import { originOf } from './origin.ts';

/** An event as another process opens it. @throws IpcError for one that is not for others */
export function exportEvent(event: CudaEvent): IpcEventDescriptor {
  const { ipcBytes } = event;
  // Asking for the handle says whether it is closed.
  const origin = event.handle ? originOf(event) : undefined;
  if (origin) return origin.descriptor as IpcEventDescriptor;
  if (!ipcBytes)
    throw new IpcError(
      'this event is not for other processes: make it with CudaEvent.create({ interprocess: true })',
    );
  const handle = Buffer.from(ipcBytes).toString('base64');
  rememberExport(`event ${handle}`, event);
  return sealDescriptor<'event'>({
    kind: 'event',
    ...exporter(event.context.device.uuid),
    handle,
  });
}
