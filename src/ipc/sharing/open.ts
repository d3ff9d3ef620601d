/** Opens descriptors: what prevents it, where it happens, and then the opening itself. */

import { selectionCount } from '../../../ffi/driver.ts';
import { CUresult } from '../../../ffi/results.ts';
import { Context, type PlaceOptions } from '../../context.ts';
import { type Device, devices } from '../../device.ts';
import { ClosedError, CudaError, IpcError } from '../../errors.ts';
import { assertNotCapturing } from '../../graph-capture.ts';
import type { Access } from '../../memory/buffer.ts';
import { type DescriptorFields, isMemoryFields } from '../descriptor.ts';
import {
  isExporterEnding,
  isFromThisProcess,
  type LocalProcess,
  localProcess,
} from '../identity.ts';
import {
  blockedError,
  capabilityBlocker,
  type IpcSupport,
  type OpenBlocker,
  remedies,
  wslBlocker,
} from './blockers.ts';
import { findExport } from './facts.ts';
import {
  type DescribedKind,
  isOwnProcess,
  type OpenOptions,
  type ReceivedFds,
  type Sender,
} from './kind.ts';
import { openThreadMemory } from './memory.ts';
import { exportGoneBlocker, isFromOtherThread } from './worker-exports.ts';

/**
 * Opens a valid descriptor. The caller keeps the file descriptors that are not taken.
 *
 * @param sender the other end of the connection that it came over
 * @throws IpcError
 */
export function openDescriptor<F extends DescriptorFields>(
  kind: DescribedKind<object, F>,
  descriptor: F,
  fds: ReceivedFds,
  options: Omit<OpenOptions, 'fds'>,
  sender?: Sender,
): object {
  assertNotCapturing('opening what another process shared');
  if (isFromThisProcess(descriptor)) return openOwn(kind, descriptor, fds, options, sender);
  const blocker = foreignBlocker(kind, descriptor, localProcess(), sender);
  if (blocker) throw blockedError(blocker);
  const { context, access } = placeFor(kind, descriptor, fds, options, sender);
  const { allowOtherUsers = false } = options;
  try {
    return kind.open({
      descriptor,
      context,
      access,
      fds,
      lease: sender?.lease,
      assertOpenable() {
        const blocked = openBlocker(kind, descriptor, context, fds, allowOtherUsers);
        if (blocked) throw blockedError(blocked);
      },
    });
  } catch (error) {
    throw goneMeanwhile(kind, descriptor, error) ?? error;
  }
}

// ---- What this very process made ----

function openOwn<F extends DescriptorFields>(
  kind: DescribedKind<object, F>,
  descriptor: F,
  fds: ReceivedFds,
  options: Omit<OpenOptions, 'fds'>,
  sender: Sender | undefined,
): object {
  // A sender learns nothing about this process's own objects but that they are refused.
  const blocker = sender ? undefined : ownBlocker(kind, descriptor, options);
  if (blocker) throw blockedError(blocker);
  if (!isFromOtherThread(descriptor)) return openAlias(kind, descriptor, options.access, sender);
  if (sender && !isOwnProcess(sender.session)) throw notExportedToSender();
  const place = placeFor(kind, descriptor, fds, options, sender);
  return openThreadMemory({ descriptor, ...place, fds, lease: sender?.lease }, !kind.isByPid);
}

/**
 * Opens a descriptor that this process made, as a view with its own `close()`. A pool is returned
 * itself.
 *
 * @param sender the sender, if it came over a connection: only what was exported to it may be
 * opened
 * @throws IpcError if the object no longer exists, ClosedError if it is closed
 */
export function openAlias<F extends DescriptorFields>(
  kind: DescribedKind<object, F>,
  descriptor: F,
  access: Access = 'read-write',
  sender?: Sender,
): object {
  const name = kind.nameOf(descriptor);
  const alias = kind.alias(name === undefined ? undefined : findExport(name), descriptor, {
    access,
    lease: sender?.lease,
    verify(object) {
      if (sender && !sender.session.hasLeaseOn(object)) throw notExportedToSender();
    },
  });
  if (alias) return alias;
  // An object is collected some time after it was closed, which must not change the error.
  if (name !== undefined && sender?.session.hasLeaseOnCollected?.(name))
    throw new ClosedError('it was closed, and then collected');
  throw sender && !isOwnProcess(sender.session)
    ? notExportedToSender()
    : blockedError(exportGoneBlocker);
}

/** Also thrown for what does not exist, so that a sender cannot find out what does. */
const notExportedToSender = (): IpcError =>
  new IpcError(
    'a peer sent a descriptor of memory, a pool or an event of this very process that it holds no lease ' +
      'on: send the object to it over a connection first',
    undefined,
    'same-process',
  );

// ---- Where to open it ----

/** Returns where to open a descriptor and with what access. @throws IpcError if no device can */
function placeFor(
  kind: DescribedKind,
  descriptor: DescriptorFields,
  fds: ReceivedFds,
  options: OpenOptions,
  sender: Sender | undefined,
): { readonly context: Context; readonly access: Access } {
  const context = contextFor(descriptor, options);
  if (context)
    return { context, access: effectiveAccess(kind, descriptor, options.access, fds.numbers) };
  throw blockedError(deviceBlocker(descriptor, sender));
}

/**
 * Returns the access that memory is mapped with: the least of what the options, the descriptor and
 * its file descriptors allow.
 *
 * @param requested the access that the caller asks for
 * @param fds open file descriptors
 */
export function effectiveAccess(
  kind: DescribedKind,
  descriptor: DescriptorFields,
  requested: Access | undefined,
  fds: readonly number[],
): Access {
  if (requested === 'read') return 'read';
  if (isMemoryFields(descriptor) && descriptor.access === 'read') return 'read';
  return kind.isReadOnly?.(fds) ? 'read' : 'read-write';
}

/** Returns the context to open it in; undefined if this process does not see its device. */
export function contextFor(
  { device: uuid }: DescriptorFields,
  { context, device }: PlaceOptions,
): Context | undefined {
  if (!context && device === undefined) return primaryContextOf(uuid);
  return Context.resolve({ ...(context && { context }), ...(device !== undefined && { device }) });
}

/** The primary contexts by the UUID of their device, of the driver that was selected for them. */
let primaryContexts = { selection: -1, byUuid: new Map<string, Context>() };

function primaryContextOf(uuid: string): Context | undefined {
  const selection = selectionCount();
  if (primaryContexts.selection !== selection) primaryContexts = { selection, byUuid: new Map() };
  const { byUuid } = primaryContexts;
  const known = byUuid.get(uuid);
  if (known) return known;
  const device = devices().find((candidate) => candidate.uuid === uuid);
  if (!device) return undefined;
  const context = Context.primary(device);
  byUuid.set(uuid, context);
  return context;
}

// ---- What prevents opening a descriptor ----

/** Returns what prevents opening an object of this process, without a driver call. */
export function ownBlocker(
  kind: DescribedKind,
  descriptor: DescriptorFields,
  { sameProcess }: Pick<OpenOptions, 'sameProcess'>,
): OpenBlocker | undefined {
  const name = kind.nameOf(descriptor);
  if (name === undefined || !findExport(name))
    return isFromOtherThread(descriptor) ? undefined : exportGoneBlocker;
  return sameProcess === 'alias'
    ? undefined
    : {
        code: 'same-process',
        reason: `this descriptor was made by this very process (pid ${descriptor.pid})`,
        hint:
          "Use the object that it names, or open an alias of it with { sameProcess: 'alias' }: " +
          'CUDA does not open handles of its own process.',
      };
}

/** Returns what prevents opening an object of another process on any GPU, without a driver call. */
export function foreignBlocker(
  kind: DescribedKind,
  descriptor: DescriptorFields,
  self: LocalProcess,
  sender?: Sender,
): OpenBlocker | undefined {
  const { machine, pid, pidNamespace } = descriptor;
  if (machine !== self.machine)
    return {
      code: 'other-machine',
      reason:
        'the descriptor was made on another machine, or before the last boot of this one ' +
        `(boot id ${machine}, here ${self.machine})`,
      hint: remedies.otherMachine,
    };
  if (self.isWsl) return wslBlocker;
  if (kind.isByPid && pid === self.pid && pidNamespace !== self.pidNamespace)
    return {
      code: 'same-pid',
      reason: `its exporter has the same pid as this process, ${pid}, in another pid namespace`,
      hint:
        'The driver mistakes it for this process: run the containers in one pid namespace, or with ' +
        'different pid numbers, or share memory of a pool over a connection.',
    };
  const { alwaysWritable } = kind;
  if (!alwaysWritable || !isMemoryFields(descriptor) || descriptor.access !== 'read')
    return undefined;
  return {
    code: 'not-supported',
    reason: `process ${pid} shared ${alwaysWritable} read-only, but the driver maps it for writing as well`,
    hint:
      'Ask that process to share virtual memory, a copy, or the memory for reading and writing' +
      (sender
        ? '.'
        : "; { access: 'read' } keeps cuffi's own copies and fills from writing to it."),
  };
}

/**
 * Describes why no device here can open it.
 *
 * @param sender the other end of the connection that it came over: receiving has no option for a device
 */
export function deviceBlocker({ device: uuid }: DescriptorFields, sender?: Sender): OpenBlocker {
  const visible = devices().map((candidate) => candidate.uuid);
  const reason = `the descriptor names GPU ${uuid}, which this process does not see; it sees ${visible.join(', ')}`;
  if (uuid.startsWith('MIG-') || visible.every((seen) => seen.startsWith('MIG-')))
    return {
      code: 'mig',
      reason,
      hint: remedies.mig,
    };
  return {
    code: 'device-not-visible',
    reason,
    hint: sender
      ? 'Make it visible (CUDA_VISIBLE_DEVICES), or have the other process send a copy in the memory of a device that both see: receive() opens memory where it is.'
      : 'Make it visible (CUDA_VISIBLE_DEVICES). Plain memory also opens on a device with peer access to it: { device }.',
  };
}

/** Capabilities that were seen to work. A device does not lose them. */
const supportedByDevice = new WeakMap<Device, Set<keyof IpcSupport>>();

/** Returns what prevents opening an object that is not yet mapped here. */
export function openBlocker(
  kind: DescribedKind,
  descriptor: DescriptorFields,
  context: Context,
  fds: Pick<ReceivedFds, 'numbers' | 'isNameTrusted'>,
  allowOtherUsers: boolean,
  self: LocalProcess = localProcess(),
): OpenBlocker | undefined {
  const { capability } = kind;
  const { device } = context;
  const supported = supportedByDevice.get(device) ?? new Set();
  if (!supported.has(capability)) {
    const blocker = capabilityBlocker(device, capability, self.isWsl);
    if (blocker) return blocker;
    supportedByDevice.set(device, supported.add(capability));
  }
  return (
    exporterBlocker(kind, descriptor, allowOtherUsers, self) ??
    kind.blocker?.(descriptor, context, fds)
  );
}

/** Whether this process is in the exporter's pid namespace, so that the pid means the same here. */
export const sharesPidNamespace = (
  { pidNamespace }: DescriptorFields,
  self: LocalProcess,
): boolean => pidNamespace !== 0 && pidNamespace === self.pidNamespace;

function exporterBlocker(
  kind: DescribedKind,
  descriptor: DescriptorFields,
  allowOtherUsers: boolean,
  self: LocalProcess,
): OpenBlocker | undefined {
  if (!sharesPidNamespace(descriptor, self)) return undefined;
  const { pid, startTime } = descriptor;
  if (!self.isAlive(pid, startTime)) return goneBlocker(kind, descriptor);
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

const goneBlocker = (kind: DescribedKind, { pid }: DescriptorFields): OpenBlocker | undefined =>
  kind.outlivesExporter
    ? undefined
    : {
        code: 'exporter-gone',
        reason: `process ${pid}, which shared it, has exited`,
        hint: 'It must run until the other process has opened what it shares: share it again.',
      };

/**
 * Returns the error of an exporter that has ended since it was checked, which makes the driver refuse
 * what it shared. Undefined for any other error.
 */
function goneMeanwhile(
  kind: DescribedKind,
  descriptor: DescriptorFields,
  error: unknown,
): IpcError | undefined {
  const refusal = error instanceof IpcError ? error.cause : error;
  if (!(refusal instanceof CudaError) || refusal.sticky) return undefined;
  // The end of another process frees memory: the driver does not lack it for that.
  if (refusal.status === CUresult.CUDA_ERROR_OUT_OF_MEMORY) return undefined;
  const blocker = isExporterEnding(descriptor) ? goneBlocker(kind, descriptor) : undefined;
  return blocker && Object.assign(blockedError(blocker), { cause: refusal });
}
