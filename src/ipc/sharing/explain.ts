import { mayBeDriverMemory } from '../../../ffi/fd-kind.ts';
import { Context } from '../../context.ts';
import { Device, devices } from '../../device.ts';
import { type IpcCause, IpcError } from '../../errors.ts';
import type { Access } from '../../memory/buffer.ts';
import type { IpcDescriptor, IpcKind } from '../descriptor.ts';
import { parseDescriptor } from '../descriptor-codec.ts';
import { isFromThisProcess, type LocalProcess, localProcess } from '../identity.ts';
import { accessBlocker, effectiveAccess } from './access.ts';
import { findExport, nameOfExport } from './export-id.ts';
import { isPoolMemoryMapped } from './imported-pool.ts';
import { isLegacyMapped } from './legacy.ts';
import { checkOpenOptions, type OpenOptions } from './open-options.ts';
import { findPool } from './open-pools.ts';
import { poolBlocker } from './pool.ts';
import type { ReceivedFds } from './received-fds.ts';
import {
  capabilityBlocker,
  type IpcSupport,
  type OpenBlocker,
  throwIfBlocked,
  wslBlocker,
} from './support.ts';
import { isVirtualMapped } from './virtual.ts';
import { exportGoneBlocker, isFromOtherThread } from './worker-exports.ts';

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
    return { openable: false, code: error.code, reason: error.message, hint };
  }
  const self = localProcess();
  const byIdentity = identityBlocker(descriptor, checked, self);
  if (byIdentity) return { openable: false, ...byIdentity };
  if (isFromThisProcess(descriptor, self)) return OPENABLE;
  const byDevice = deviceBlocker(descriptor, checked);
  if (byDevice) return { openable: false, ...byDevice };
  const context = contextFor(descriptor, checked);
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
const unverified = ({ kind, pid }: IpcDescriptor): Explanation => ({
  openable: true,
  code: 'unverified',
  reason: `only process ${pid} knows whether the ${kind === 'event' ? 'event' : 'memory'} still exists and is the same: that cannot be verified here`,
  hint: 'Open it with peer.open, which asks that process, or send the object over a connection.',
});

/** Whether the accompanying file descriptors keep the object alive: a pool, virtual memory. */
const isKeptAliveByFds = (descriptor: IpcDescriptor): boolean =>
  descriptor.kind === 'virtual' || (descriptor.kind === 'pool' && descriptor.handle === null);

// ---- What a function that opens a descriptor asks first ----

/** @throws IpcError for what prevents opening it on any GPU */
export const assertIdentity = (descriptor: IpcDescriptor, options: OpenOptions): void =>
  throwIfBlocked(identityBlocker(descriptor, options));

/** Returns where and with what access to open a descriptor. @throws IpcError if no device here can */
export function placeFor(
  descriptor: IpcDescriptor,
  fds: ReceivedFds,
  options: OpenOptions,
): { readonly context: Context; readonly access: Access } {
  throwIfBlocked(deviceBlocker(descriptor, options));
  const context = contextFor(descriptor, options);
  const access = effectiveAccess(descriptor, options.access, fds.numbers);
  return { context, access };
}

/** @throws IpcError for what prevents opening it in that place, unless it is already mapped there */
export function assertOpenable(
  descriptor: IpcDescriptor,
  context: Context,
  fds: ReceivedFds,
  access: Access,
  { allowOtherUsers = false }: OpenOptions,
): void {
  if (!isMapped(descriptor, context, fds, access))
    throwIfBlocked(openBlocker(descriptor, context, fds, allowOtherUsers));
}

// ---- What prevents opening a descriptor ----

/** Returns what prevents opening it on any GPU, without a driver call. */
function identityBlocker(
  descriptor: IpcDescriptor,
  { sameProcess }: Pick<OpenOptions, 'sameProcess'>,
  self: LocalProcess = localProcess(),
): OpenBlocker | undefined {
  const { kind, machine, pid, pidNamespace } = descriptor;
  if (machine !== self.machine)
    return {
      code: 'other-machine',
      reason:
        'the descriptor was made on another machine, or before the last boot of this one ' +
        `(boot id ${machine}, here ${self.machine})`,
      hint: 'Device memory can only be shared within one machine: copy the data.',
    };
  if (isFromThisProcess(descriptor, self)) {
    const isHere = findExport(nameOfExport(descriptor)) !== undefined;
    if (!isHere) return isFromOtherThread(descriptor) ? undefined : exportGoneBlocker;
    return sameProcess === 'alias'
      ? undefined
      : {
          code: 'same-process',
          reason: `this descriptor was made by this very process (pid ${pid})`,
          hint:
            "Use the object that it names, or open an alias of it with { sameProcess: 'alias' }: " +
            'CUDA does not open handles of its own process.',
        };
  }
  if (self.isWsl) return wslBlocker;
  const isByPid = kind === 'legacy' || kind === 'event';
  if (isByPid && pid === self.pid && pidNamespace !== self.pidNamespace)
    return {
      code: 'same-pid',
      reason: `its exporter has this process's pid number, ${pid}, in another pid namespace`,
      hint:
        'The driver mistakes it for this process: run the containers in one pid namespace, or with ' +
        'different pid numbers, or share memory of a pool over a connection.',
    };
  return accessBlocker(descriptor);
}

/** Returns why no device here can open it. */
function deviceBlocker(
  { device: uuid }: IpcDescriptor,
  { context, device }: OpenOptions,
): OpenBlocker | undefined {
  if (context || device !== undefined || deviceOf(uuid)) return undefined;
  const visible = devices().map((candidate) => candidate.uuid);
  const reason = `the descriptor is of GPU ${uuid}, which this process does not see; it sees ${visible.join(', ')}`;
  if (uuid.startsWith('MIG-') || visible.every((seen) => seen.startsWith('MIG-')))
    return {
      code: 'mig',
      reason,
      hint: 'A MIG slice cannot share memory with another: run both processes on the same slice.',
    };
  return {
    code: 'device-not-visible',
    reason,
    hint: 'Make it visible (CUDA_VISIBLE_DEVICES), or name a device with peer access to it in the options.',
  };
}

/** The context to open it in: see {@link deviceBlocker}. */
const contextFor = ({ device: uuid }: IpcDescriptor, place: OpenOptions): Context => {
  const { context, device } = place;
  if (context) return Context.resolve({ context, ...(device === undefined ? {} : { device }) });
  return Context.primary(device ?? deviceOf(uuid));
};

function deviceOf(uuid: string): Device | undefined {
  const { count } = Device;
  for (let ordinal = 0; ordinal < count; ordinal += 1) {
    const device = Device.get(ordinal);
    if (device.uuid === uuid) return device;
  }
  return undefined;
}

const CAPABILITIES: Readonly<Record<IpcKind, keyof IpcSupport>> = {
  legacy: 'memory',
  pool: 'pools',
  virtual: 'virtualMemory',
  event: 'events',
};

/** Capabilities that were seen to work. A device does not lose them. */
const supportedByDevice = new WeakMap<Device, Set<keyof IpcSupport>>();

/** Returns what prevents opening an object that is not yet mapped here. */
export function openBlocker(
  descriptor: IpcDescriptor,
  context: Context,
  fds: Pick<ReceivedFds, 'numbers' | 'isNameTrusted'>,
  allowOtherUsers: boolean,
  self: LocalProcess = localProcess(),
): OpenBlocker | undefined {
  const capability = CAPABILITIES[descriptor.kind];
  const { device } = context;
  const supported = supportedByDevice.get(device) ?? new Set();
  if (!supported.has(capability)) {
    const blocker = capabilityBlocker(device, capability, self.isWsl);
    if (blocker) return blocker;
    supportedByDevice.set(device, supported.add(capability));
  }
  return (
    exporterBlocker(descriptor, allowOtherUsers, self) ??
    poolBlocker(descriptor) ??
    fdBlocker(descriptor, context, fds)
  );
}

/** Whether this process is in the exporter's pid namespace, so that the pid means the same here. */
export const sharesPidNamespace = ({ pidNamespace }: IpcDescriptor, self: LocalProcess): boolean =>
  pidNamespace !== 0 && pidNamespace === self.pidNamespace;

function exporterBlocker(
  descriptor: IpcDescriptor,
  allowOtherUsers: boolean,
  self: LocalProcess,
): OpenBlocker | undefined {
  if (!sharesPidNamespace(descriptor, self)) return undefined;
  const { kind, pid, startTime } = descriptor;
  // The file descriptors of virtual memory keep the memory alive themselves.
  if (!self.isAlive(pid, startTime))
    return kind === 'virtual'
      ? undefined
      : {
          code: 'exporter-gone',
          reason: `process ${pid}, which shared it, has exited`,
          hint: 'It must run until the other process has opened what it shares: share it again.',
        };
  // Reading /proc takes longer than opening the memory.
  if (allowOtherUsers) return undefined;
  const user = self.userOf(pid);
  // Some systems hide the processes of other users.
  const isHidden = user === undefined && self.isForeign(pid);
  if (user === self.user || (user === undefined && !isHidden)) return undefined;
  return {
    code: 'other-user',
    reason: `process ${pid}, which shared it, runs as ${isHidden ? 'a hidden user' : `user ${user}`}, and this one as user ${self.user}`,
    hint: 'Run both as one user; or, if that user is trusted, open it with { allowOtherUsers: true }.',
  };
}

function fdBlocker(
  descriptor: IpcDescriptor,
  context: Context,
  fds: Pick<ReceivedFds, 'numbers' | 'isNameTrusted'>,
): OpenBlocker | undefined {
  if (descriptor.kind === 'pool' && findPool(context, descriptor, fds)) return undefined;
  const { numbers } = fds;
  const expected =
    descriptor.kind === 'pool' ? 1 : descriptor.kind === 'virtual' ? descriptor.pieces.length : 0;
  const isComplete = numbers.length === expected;
  if (expected === 0 || (isComplete && numbers.every(mayBeDriverMemory))) return undefined;
  const what = descriptor.kind === 'pool' ? 'a pool' : 'virtual memory';
  return {
    code: 'no-file-descriptor',
    reason: isComplete
      ? `a file descriptor that came with a descriptor of ${what} is not one of the driver's`
      : `a descriptor of ${what} needs ${expected} file descriptors, but ${numbers.length} came with it`,
    hint: 'Send it over a connection, or together with them through a Unix socket.',
  };
}

/**
 * Whether exactly this memory is already mapped in the context. Then the driver is not called, and
 * nothing can prevent opening it.
 */
function isMapped(
  descriptor: IpcDescriptor,
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
