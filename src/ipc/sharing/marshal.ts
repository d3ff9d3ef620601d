/** Exports objects for a connection, and imports those that it receives. */

import { assertNotCapturing } from '../../graph-capture.ts';
import type { AnyFields } from '../descriptor.ts';
import { encodeFields } from './descriptor-codec.ts';
import { factsOf, knownFacts } from './facts.ts';
import {
  type EncodedExport,
  type ImportLease,
  isOwnProcess,
  type Kind,
  OwnedFds,
  type SharingSession,
} from './kind.ts';
import { kindOf, kindOfFields, type Shareable } from './kinds.ts';

/** Exports an object for any process. May call a memory manager. @throws IpcError, ClosedError */
export function exportForAnyPeer(object: Shareable): EncodedExport {
  // Also checked for what was exported before: queued work must come before it.
  assertNotCapturing('sharing');
  const known = knownFacts(object)?.encoded;
  if (known && !object.closed) return known;
  const kind = kindOf(object) as Kind;
  const { descriptor, fds } = kind.export(object);
  const encoded = { descriptor, fds, bytes: encodeFields(descriptor) };
  if (kind.isConstant?.(object)) factsOf(object).encoded = encoded;
  return encoded;
}

/**
 * Prepares an exported object for one peer, and remembers that the peer has its pool. The result
 * must be sent before anything else is exported.
 */
export function prepareForPeer(
  session: SharingSession,
  object: Shareable,
  encoded: EncodedExport,
): EncodedExport {
  const kind = kindOf(object) as Kind;
  if (isOwnProcess(session)) kind.publish?.(object, encoded.descriptor);
  return kind.forPeer?.(object, encoded, session) ?? encoded;
}

/**
 * Imports an object that another process exported. Takes ownership of `fds` in every case, and
 * closes those that it does not keep.
 *
 * An object that returns to the process that made it is an alias of the original, if the peer has a
 * lease on it.
 *
 * @throws IpcError
 */
export function importFromPeer(
  descriptor: AnyFields,
  fds: readonly number[],
  session: SharingSession,
  lease?: ImportLease,
): object {
  const owned = new OwnedFds(fds, false);
  try {
    // The connection has checked the credentials of its other end.
    const options = { allowOtherUsers: true, sameProcess: 'alias' } as const;
    const sender = { lease, session };
    const kind = kindOfFields(descriptor);
    if (!kind.fromPeer) return kind.import(descriptor, owned, options, sender);
    return kind.fromPeer(descriptor, owned, session, (given) =>
      kind.import(descriptor, given, options, sender),
    );
  } finally {
    owned[Symbol.dispose]();
  }
}
