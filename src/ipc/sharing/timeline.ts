import { discardFds } from '../../../ffi/linux/close-fd.ts';
import { IpcError } from '../../errors.ts';
import type { Resource } from '../../lifetime.ts';
import type { HostFields } from '../descriptor.ts';
import { WriteEnd } from '../timeline/counter.ts';
import { Timeline } from '../timeline/timeline.ts';
import type { ReceivedFds, Sender } from './imported-object.ts';

/** Opens a timeline that another process has sent, to wait for it or to signal it. @throws IpcError */
export function openTimeline(
  descriptor: HostFields<'timeline' | 'signaler'>,
  fds: ReceivedFds,
  sender: Sender | undefined,
): Timeline {
  const expected = descriptor.kind === 'signaler' ? 3 : 2;
  if (fds.numbers.length !== expected)
    throw new IpcError(
      `a ${descriptor.kind} needs ${expected} file descriptors, but ${fds.numbers.length} came with it`,
      undefined,
      'no-file-descriptor',
    );
  const [memory, lifeline, writeEnd] = fds.take() as [number, number, number?];
  const lease = sender?.lease;
  const onReleased = lease && (() => lease.released());
  if (descriptor.kind === 'timeline' || writeEnd === undefined)
    return Timeline.open({ memory, lifeline }, undefined, onReleased);
  const handover = { writeEnd: acceptWriteEnd(), last: descriptor.last, from: sender?.process };
  return Timeline.open({ memory, lifeline }, handover, onReleased);

  function acceptWriteEnd(): WriteEnd {
    try {
      return WriteEnd.accept(writeEnd as number);
    } catch (error) {
      discardFds([memory, lifeline]);
      throw error;
    }
  }
}

/**
 * Keeps an object whose file descriptors are all that another process needs. Closing it here is not
 * postponed.
 */
export function keepUntilClosed(object: Resource, name: string): () => void {
  const release = object.addKeepalive(name, () => release());
  return release;
}
