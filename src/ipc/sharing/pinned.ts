import { Context } from '../../context.ts';
import { IpcError } from '../../errors.ts';
import { PinnedBuffer } from '../../memory/pinned.ts';
import type { AnyExported, HostFields } from '../descriptor.ts';
import { type Kind, type OpenOptions, type ReceivedFds, type Sender, takeFds } from './kind.ts';
import { keepUntilClosed } from './timeline.ts';

/** Page-locked memory. */
export const pinned: Kind<PinnedBuffer, HostFields<'pinned'>> = {
  name: 'pinned',
  includes: (object) => object instanceof PinnedBuffer,
  isConstant: () => true,
  contextOf: ({ context }) => context,
  byteLengthOf: ({ byteLength }) => byteLength,
  deviceOf: () => undefined,
  export: exportPinned,
  import: openPinned,
  keep: keepUntilClosed,
};

/** Exports page-locked memory. @throws IpcError for memory that was not made for it, ClosedError */
function exportPinned({ fd, byteLength }: PinnedBuffer): AnyExported {
  if (fd === undefined)
    throw new IpcError(
      'this PinnedBuffer cannot be shared: allocate it with PinnedBuffer.allocate(byteLength, ' +
        '{ shareable: true })',
      undefined,
      'not-supported',
    );
  return { descriptor: { kind: 'pinned', byteLength }, fds: [fd] };
}

/** Opens page-locked memory of another process. @throws IpcError */
function openPinned(
  { byteLength }: HostFields<'pinned'>,
  fds: ReceivedFds,
  _options: OpenOptions,
  sender?: Sender,
): PinnedBuffer {
  const place = Context.resolve({});
  const lease = sender?.lease;
  const [fd] = takeFds('page-locked memory', 1, fds) as [number];
  try {
    return PinnedBuffer.open(place, fd, byteLength, {
      before: () => lease?.closed(place, undefined),
      after: () => lease?.released(),
    });
  } catch (error) {
    throw new IpcError('page-locked memory of another process could not be opened', error as Error);
  }
}
