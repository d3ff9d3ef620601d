import { type IpcCause, IpcError } from '../../errors.ts';
import type { IpcDescriptor } from '../descriptor.ts';
import { isFromThisProcess, localProcess } from '../identity.ts';
import { parseDescriptor } from './descriptor-codec.ts';
import { checkOpenOptions } from './import.ts';
import type { OpenOptions } from './kind.ts';
import { kindOfFields } from './kinds.ts';
import {
  contextFor,
  deviceBlocker,
  effectiveAccess,
  foreignBlocker,
  openBlocker,
  ownBlocker,
  sharesPidNamespace,
} from './open.ts';

/** The result of {@link explain}. */
export interface Explanation {
  readonly openable: boolean;
  /**
   * Why not, as {@link IpcError.code}. `unverified` if nothing is known against it and only its
   * exporter knows more; undefined if it can be opened.
   */
  readonly code: IpcCause | 'unverified' | undefined;
  /** Why not, or what cannot be verified, in words; empty if it can be opened. */
  readonly reason: string;
  /** What to do about it. */
  readonly hint: string;
}

/**
 * Returns whether a descriptor can be opened in this process, and if not, why and what to do.
 * Nothing is opened, and no file descriptor is taken or closed. The functions that open descriptors
 * check the same first.
 *
 * Unless a file descriptor keeps the memory alive, only the exporter knows whether it is still the
 * memory that it exported. The code is `unverified` then; `peer.open` asks the exporter.
 *
 * @param message the message from the other process
 * @param options the options that `openIpc` would get
 * @example
 * const { openable, reason, hint } = explain(message);
 * if (!openable) console.error(`${reason}. ${hint}`);
 */
export function explain(message: unknown, options?: OpenOptions): Explanation {
  const checked = checkOpenOptions(options, 'explain');
  let descriptor: IpcDescriptor;
  try {
    descriptor = parseDescriptor(message);
  } catch (error) {
    if (!(error instanceof IpcError) || error.code === 'ipc-failed') throw error;
    const hint =
      'Send all that getIpcHandle or exportIpc returned, between equal versions of cuffi.';
    return { openable: false, code: error.code as IpcCause, reason: error.message, hint };
  }
  const kind = kindOfFields(descriptor);
  const self = localProcess();
  const isOwn = isFromThisProcess(descriptor, self);
  const byIdentity = isOwn
    ? ownBlocker(kind, descriptor, checked)
    : foreignBlocker(kind, descriptor, self);
  if (byIdentity) return { openable: false, ...byIdentity };
  if (isOwn) return OPENABLE;
  const context = contextFor(descriptor, checked);
  if (!context) return { openable: false, ...deviceBlocker(descriptor) };
  const fds = { numbers: checked.fds ?? [], isNameTrusted: true };
  const access = effectiveAccess(kind, descriptor, checked.access, fds.numbers);
  if (kind.isMapped?.(descriptor, context, fds, access)) return OPENABLE;
  const { allowOtherUsers = false } = checked;
  const blocked = openBlocker(kind, descriptor, context, fds, allowOtherUsers, self);
  if (blocked) return { openable: false, ...blocked };
  if (!sharesPidNamespace(descriptor, self)) return OTHER_PID_NAMESPACE;
  if (kind.isKeptByFds?.(descriptor)) return OPENABLE;
  // A handle of freed memory may name the next allocation.
  return {
    openable: true,
    code: 'unverified',
    reason: `only process ${descriptor.pid} knows whether the ${kind.noun} still exists and is the same: that cannot be verified here`,
    hint: 'Open it with peer.open, which asks that process, or send the object over a connection.',
  };
}

const OPENABLE: Explanation = { openable: true, code: undefined, reason: '', hint: '' };
const OTHER_PID_NAMESPACE: Explanation = {
  openable: true,
  code: 'unverified',
  reason: 'its exporter is in another pid namespace: whether it still runs cannot be verified',
  hint: 'Run the containers in one pid namespace, or send the object over a connection.',
};
