import { OUT0, readHandle } from '../../../ffi/arena.ts';
import { cu } from '../../../ffi/driver.ts';
import type { CUevent } from '../../../ffi/types.ts';
import { cudaError } from '../../check.ts';
import { IpcError } from '../../errors.ts';
import { CudaEvent } from '../../event.ts';
import type { Stream } from '../../stream.ts';
import type { DescriptorFields, MemoryFields } from '../descriptor.ts';
import { describeExporter } from '../identity.ts';
import { rememberExport } from './exported.ts';
import { factsOf, knownFacts } from './facts.ts';
import type { OpenRequest } from './imported-object.ts';

/** Exports an event. @throws IpcError for one that is not interprocess */
export function exportEvent(event: CudaEvent): DescriptorFields<'event'> {
  const { ipcBytes } = event;
  // Reading the handle throws for a closed event.
  const source = event.handle ? knownFacts(event)?.source : undefined;
  if (source) return source.descriptor as DescriptorFields<'event'>;
  if (!ipcBytes)
    throw new IpcError(
      'this event is not interprocess: create it with CudaEvent.create({ interprocess: true })',
    );
  const handle = Buffer.from(ipcBytes).toString('base64');
  rememberExport(`event ${handle}`, event);
  return { kind: 'event', ...describeExporter(event.context.device), handle };
}

/** Opens an event of another process. @throws IpcError if the driver refuses it */
export function openEvent(request: OpenRequest<'event'>): CudaEvent {
  request.assertOpenable();
  const { descriptor, context, lease } = request;
  const { handle, pid } = descriptor;
  const bytes = { reserved: new Uint8Array(Buffer.from(handle, 'base64')) };
  const opened = context.run(() => {
    const status = cu.cuIpcOpenEventHandle(OUT0, bytes);
    if (status !== 0)
      throw new IpcError(
        `an event of process ${pid} could not be opened`,
        cudaError(status, 'cuIpcOpenEventHandle'),
      );
    const event = readHandle<CUevent>(OUT0, cu.cuEventDestroy_v2);
    return new CudaEvent(context, event, {
      timing: false,
      interprocess: true,
      imported: true,
      destroyed: lease && (() => lease.released()),
    });
  });
  factsOf(opened).source = { descriptor, fds: () => [] };
  return opened;
}

/** Records an interprocess event behind the work that is queued in a stream. */
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

/** Returns the descriptor of memory that may be used when the event is done. */
export const withReadyEvent = <F extends MemoryFields>(descriptor: F, event: CudaEvent): F => ({
  ...descriptor,
  readyEvent: exportEvent(event),
});
