/** What a connection does with an object, without a connection. */
import type { EncodedExport, SharingSession } from '../../src/ipc/sharing/kind.ts';
import { isShareable } from '../../src/ipc/sharing/kinds.ts';
import { exportForAnyPeer, prepareForPeer } from '../../src/ipc/sharing/marshal.ts';

/** A session in which nothing was sent or received, and nobody is notified. */
export const emptySharingSession = (): SharingSession => ({
  sentPools: new Map(),
  receivedPools: new Map(),
  onPoolClosed() {},
  hasLeaseOn: () => false,
});

/**
 * Exports an object for one peer; undefined if it is not a kind that can be shared. @throws
 * IpcError
 */
export function exportForPeer(object: object, session: SharingSession): EncodedExport | undefined {
  return isShareable(object)
    ? prepareForPeer(session, object, exportForAnyPeer(object))
    : undefined;
}
