import type { Context } from '../../context.ts';
import { type IpcCause, IpcError } from '../../errors.ts';
import type { Access } from '../../memory/buffer.ts';
import type { DescriptorFields, IpcDescriptor } from '../descriptor.ts';
import { parseDescriptor } from '../descriptor-codec.ts';
import { isFromThisProcess, localProcess } from '../identity.ts';
import { checkOpenOptions } from './import.ts';
import type { ReceivedFds } from './imported-object.ts';
import { isPoolMemoryMapped } from './imported-pool.ts';
import { isLegacyMapped } from './legacy.ts';
import {
  contextFor,
  deviceBlocker,
  effectiveAccess,
  foreignBlocker,
  type OpenOptions,
  openBlocker,
  ownBlocker,
  sharesPidNamespace,
} from './open.ts';
import { findPool } from './open-pools.ts';
import { isVirtualMapped } from './virtual.ts';

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
  const self = localProcess();
  const isOwn = isFromThisProcess(descriptor, self);
  const byIdentity = isOwn ? ownBlocker(descriptor, checked) : foreignBlocker(descriptor, self);
  if (byIdentity) return { openable: false, ...byIdentity };
  if (isOwn) return OPENABLE;
  const context = contextFor(descriptor, checked);
  if (!context) return { openable: false, ...deviceBlocker(descriptor) };
  const fds = { numbers: checked.fds ?? [], isNameTrusted: true };
  const access = effectiveAccess(descriptor, checked.access, fds.numbers);
  if (isMapped(descriptor, context, fds, access)) return OPENABLE;
  const { allowOtherUsers = false } = checked;
  const blocked = openBlocker(descriptor, context, fds, allowOtherUsers, self);
  if (blocked) return { openable: false, ...blocked };
  if (!sharesPidNamespace(descriptor, self)) return OTHER_PID_NAMESPACE;
  return isKeptAliveByFds(descriptor) ? OPENABLE : unverified(descriptor);
}

const OPENABLE: Explanation = { openable: true, code: undefined, reason: '', hint: '' };
const OTHER_PID_NAMESPACE: Explanation = {
  openable: true,
  code: 'unverified',
  reason: 'its exporter is in another pid namespace: whether it still runs cannot be verified',
  hint: 'Run the containers in one pid namespace, or send the object over a connection.',
};

/** A handle of freed memory may name the next allocation. */
const unverified = ({ kind, pid }: DescriptorFields): Explanation => ({
  openable: true,
  code: 'unverified',
  reason: `only process ${pid} knows whether the ${kind === 'event' ? 'event' : 'memory'} still exists and is the same: that cannot be verified here`,
  hint: 'Open it with peer.open, which asks that process, or send the object over a connection.',
});

/** Whether the accompanying file descriptors keep the object alive: a pool, virtual memory. */
const isKeptAliveByFds = (descriptor: DescriptorFields): boolean =>
  descriptor.kind === 'virtual' || (descriptor.kind === 'pool' && descriptor.handle === null);

/**
 * Whether exactly this memory is already mapped in the context. Then the driver is not called, and
 * nothing can prevent opening it.
 */
function isMapped(
  descriptor: DescriptorFields,
  context: Context,
  fds: Pick<ReceivedFds, 'numbers' | 'isNameTrusted'>,
  access: Access,
): boolean {
  switch (descriptor.kind) {
    case 'legacy':
      return isLegacyMapped(context, descriptor);
    case 'pool': {
      const pool = findPool(context, descriptor, fds);
      return pool !== undefined && isPoolMemoryMapped(pool, descriptor);
    }
    case 'virtual':
      return isVirtualMapped(context, descriptor, fds.numbers, access);
    case 'event':
      return false;
  }
}
