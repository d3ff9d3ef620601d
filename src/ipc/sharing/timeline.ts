import { discardFds } from '../../../ffi/linux/close-fd.ts';
import type { Resource } from '../../lifetime.ts';
import type { HostFields } from '../descriptor.ts';
import { WriteEnd } from '../timeline/counter.ts';
import { Timeline, TimelineSignaler } from '../timeline/timeline.ts';
import { type Kind, type ReceivedFds, type Sender, takeFds } from './kind.ts';

/** Timelines. Every process that has one can forward it without asking its owner. */
export const timeline: Kind<Timeline, HostFields<'timeline'>> = {
  name: 'timeline',
  includes: (object) => object instanceof Timeline,
  isConstant: () => true,
  export: ({ fds }) => ({
    descriptor: { kind: 'timeline' },
    fds: [fds.memory, fds.lifeline],
  }),
  import: (fields, fds, _options, sender) => openTimeline(fields, fds, sender),
  keep: keepUntilClosed,
  probes: [
    {
      name: 'counter',
      title: 'timeline',
      how: 'a counter in host memory',
      make() {
        const object = Timeline.create();
        object.signal(1);
        return { object, [Symbol.dispose]: () => object.close() };
      },
      async check(object, timeoutMs) {
        if (!(object instanceof Timeline)) return 'it arrived as another object';
        await object.reached(1, { timeoutMs });
        return '';
      },
    },
  ],
};

/** Timelines that the receiver signals. */
export const signaler: Kind<TimelineSignaler, HostFields<'signaler'>> = {
  name: 'signaler',
  label: 'timeline',
  includes: (object) => object instanceof TimelineSignaler,
  export: ({ fds, last }) => ({ descriptor: { kind: 'signaler', last }, fds }),
  import: (fields, fds, _options, sender) => openTimeline(fields, fds, sender),
  keep(object, name) {
    const release = object.addKeepalive(name);
    // It is sent once.
    object.close();
    return release;
  },
};

/** Opens a timeline that another process has sent, to wait for it or to signal it. @throws IpcError */
function openTimeline(
  descriptor: HostFields<'timeline' | 'signaler'>,
  fds: ReceivedFds,
  sender: Sender | undefined,
): Timeline {
  const { kind } = descriptor;
  const taken = takeFds(`a ${kind}`, kind === 'signaler' ? 3 : 2, fds);
  const [memory, lifeline, writeEnd] = taken as [number, number, number?];
  const lease = sender?.lease;
  const onReleased = lease && (() => lease.released());
  if (descriptor.kind === 'timeline' || writeEnd === undefined)
    return Timeline.open({ memory, lifeline }, undefined, onReleased);
  const handover = {
    writeEnd: acceptWriteEnd(),
    last: descriptor.last,
    from: sender?.session.process,
  };
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
