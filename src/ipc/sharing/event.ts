import { OUT0, readHandle } from '../../../ffi/arena.ts';
import { cu } from '../../../ffi/driver.ts';
import type { CUevent } from '../../../ffi/types.ts';
import { IpcError } from '../../errors.ts';
import { CudaEvent } from '../../event.ts';
import type { Stream } from '../../stream.ts';
import type { DescriptorFields, MemoryFields } from '../descriptor.ts';
import { checkOpened } from './blockers.ts';
import { describeExporter, factsOf, knownFacts, rememberExport } from './facts.ts';
import type { DescribedKind, OpenRequest } from './kind.ts';
import { openDescriptor } from './open.ts';

/** Events. */
export const event: DescribedKind<CudaEvent, DescriptorFields<'event'>> = {
  name: 'event',
  noun: 'event',
  opener: 'openIpcEvent',
  capability: 'events',
  isByPid: true,
  includes: (object) => object instanceof CudaEvent,
  description: 'an interprocess event, by its handle',
  deviceOf: ({ context }) => context.device,
  export: (object) => ({ descriptor: exportEvent(object), fds: [] }),
  import: (fields, ...given) => openDescriptor(event, fields, ...given),
  open: openEvent,
  nameOf,
  alias(exported, _fields, { lease, verify }) {
    if (!(exported instanceof CudaEvent)) return undefined;
    verify(exported);
    return new CudaEvent(exported.context, exported.handle, {
      timing: false,
      interprocess: true,
      imported: false,
      ipcBytes: exported.ipcBytes,
      aliasOf: exported,
      destroyed: lease && (() => lease.released()),
    });
  },
  probes: [
    {
      name: 'event',
      title: 'event',
      how: 'by its handle',
      capability: 'events',
      needsSharedMemory: true,
      make(context) {
        const object = CudaEvent.create({ context, interprocess: true });
        object.record();
        return { object, [Symbol.dispose]: () => object.close() };
      },
      async check(object, timeoutMs) {
        if (!(object instanceof CudaEvent)) return 'it arrived as another object';
        await object.synchronize({ timeoutMs });
        return '';
      },
    },
  ],
};

function nameOf({ handle }: Pick<DescriptorFields<'event'>, 'handle'>): string {
  return `event ${handle}`;
}

/** Exports an event. @throws IpcError for one that is not interprocess */
export function exportEvent(object: CudaEvent): DescriptorFields<'event'> {
  const { ipcBytes } = object;
  // Reading the handle throws for a closed event.
  const source = object.handle ? knownFacts(object)?.source : undefined;
  if (source) return source.descriptor as DescriptorFields<'event'>;
  if (!ipcBytes)
    throw new IpcError(
      'this event is not interprocess: create it with CudaEvent.create({ interprocess: true })',
    );
  const handle = Buffer.from(ipcBytes).toString('base64');
  rememberExport(nameOf({ handle }), object);
  return { kind: 'event', ...describeExporter(object.context.device), handle };
}

/** Opens an event of another process. @throws IpcError if the driver refuses it */
function openEvent(request: OpenRequest<DescriptorFields<'event'>>): CudaEvent {
  request.assertOpenable();
  const { descriptor, context, lease } = request;
  const { handle, pid } = descriptor;
  const bytes = { reserved: new Uint8Array(Buffer.from(handle, 'base64')) };
  const opened = context.run(() => {
    const status = cu.cuIpcOpenEventHandle(OUT0, bytes);
    checkOpened(status, 'cuIpcOpenEventHandle', () => `an event of process ${pid}`);
    const opening = readHandle<CUevent>(OUT0, cu.cuEventDestroy_v2);
    return new CudaEvent(context, opening, {
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
  const recorded = CudaEvent.create({ context: stream.context, interprocess: true });
  try {
    recorded.record(stream);
    return recorded;
  } catch (error) {
    recorded.close();
    throw error;
  }
}

/** Returns the descriptor of memory that may be used when the event is done. */
export const withReadyEvent = <F extends MemoryFields>(descriptor: F, ready: CudaEvent): F => ({
  ...descriptor,
  readyEvent: exportEvent(ready),
});
