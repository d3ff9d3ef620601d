/** Opens descriptors: what prevents it, where it happens, and then the opening itself. */

import { selectionCount } from '../../../ffi/driver.ts';
import { isMarkedReadOnly, mayBeDriverMemory } from '../../../ffi/fd-kind.ts';
import { CUresult } from '../../../ffi/results.ts';
import type { DeviceArray } from '../../array/device-array.ts';
import { Context, type PlaceOptions } from '../../context.ts';
import { type Device, devices } from '../../device.ts';
import { CudaError, IpcError } from '../../errors.ts';
import type { CudaEvent } from '../../event.ts';
import { assertNotCapturing } from '../../graph-capture.ts';
import type { Access, DeviceBuffer } from '../../memory/buffer.ts';
import type { MemoryPool } from '../../memory/pool.ts';
import { ALWAYS_WRITABLE, type DescriptorFields, type IpcKind } from '../descriptor.ts';
import {
  isExporterEnding,
  isFromThisProcess,
  type LocalProcess,
  localProcess,
} from '../identity.ts';
import { notExportedToSender, openAlias } from './alias.ts';
import { asArray } from './array.ts';
import { openEvent } from './event.ts';
import { findExport, nameOfExport } from './exported.ts';
import type { ReceivedFds, Sender } from './imported-object.ts';
import type { ImportedPool } from './imported-pool.ts';
import { openLegacy } from './legacy.ts';
import { findPool, openPool } from './open-pools.ts';
import { poolBlocker } from './pool.ts';
import {
  blockedError,
  capabilityBlocker,
  type IpcSupport,
  type OpenBlocker,
  wslBlocker,
} from './support.ts';
import { openVirtual } from './virtual.ts';
import { exportGoneBlocker, isFromOtherThread, openThreadMemory } from './worker-exports.ts';

/**
 * Options of the functions that open a descriptor. By default they open it in the primary context
 * of its GPU.
 */
export interface OpenOptions extends PlaceOptions {
  /**
   * The file descriptors that came with it. cuffi owns them from now on. It closes them when they
   * are no longer needed, or if the object cannot be opened.
   */
  readonly fds?: readonly number[];
  /**
   * The access to the memory: at most what the exporter allows. `'read'` maps virtual memory
   * without write access. For other kinds, it only keeps cuffi's own copies and fills from writing.
   */
  readonly access?: Access;
  /**
   * What happens to a descriptor of this very thread of this process. Default `'refuse'`. `'alias'`
   * opens it as a view of the object that it names, with its own `close()`; closing that object
   * closes the view.
   */
  readonly sameProcess?: 'refuse' | 'alias';
  /** Whether memory of other users' processes may be opened. Default false. */
  readonly allowOtherUsers?: boolean;
}

type OpenedBytes = DeviceBuffer | CudaEvent | ImportedPool | MemoryPool;

/**
 * What a descriptor may open as. It is a MemoryPool only for an alias of this process's own pool.
 */
export type Opened = DeviceArray | OpenedBytes;

/** Like {@link openDescriptor}; returns an array if the descriptor describes one. */
export function openObject(
  descriptor: DescriptorFields,
  fds: ReceivedFds,
  options: Omit<OpenOptions, 'fds'>,
  sender?: Sender,
): Opened {
  const opened = openDescriptor(descriptor, fds, options, sender);
  return 'layout' in descriptor ? asArray(opened, descriptor) : opened;
}

/**
 * Opens a valid descriptor. The caller keeps the file descriptors that are not taken.
 *
 * @param sender the other end of the connection that it came over
 * @throws IpcError
 */
export function openDescriptor(
  descriptor: DescriptorFields,
  fds: ReceivedFds,
  options: Omit<OpenOptions, 'fds'>,
  sender?: Sender,
): OpenedBytes {
  assertNotCapturing('opening what another process shared');
  if (isFromThisProcess(descriptor)) return openOwn(descriptor, fds, options, sender);
  const blocker = foreignBlocker(descriptor, localProcess(), sender);
  if (blocker) throw blockedError(blocker);
  const { context, access } = placeFor(descriptor, fds, options, sender);
  const { allowOtherUsers = false } = options;
  const request = {
    context,
    access,
    fds,
    lease: sender?.lease,
    assertOpenable() {
      const blocked = openBlocker(descriptor, context, fds, allowOtherUsers);
      if (blocked) throw blockedError(blocked);
    },
  };
  try {
    switch (descriptor.kind) {
      case 'legacy':
        return openLegacy({ descriptor, ...request });
      case 'pool':
        return openPool({ descriptor, ...request });
      case 'virtual':
        return openVirtual({ descriptor, ...request });
      case 'event':
        return openEvent({ descriptor, ...request });
    }
  } catch (error) {
    throw goneMeanwhile(error, descriptor) ?? error;
  }
}

/** Opens a descriptor that this process made. */
function openOwn(
  descriptor: DescriptorFields,
  fds: ReceivedFds,
  options: Omit<OpenOptions, 'fds'>,
  sender: Sender | undefined,
): OpenedBytes {
  // A sender learns nothing about this process's own objects but that they are refused.
  const blocker = sender ? undefined : ownBlocker(descriptor, options);
  if (blocker) throw blockedError(blocker);
  if (descriptor.kind === 'event' || !isFromOtherThread(descriptor))
    return openAlias(descriptor, options.access, sender);
  if (sender && !sender.isOwnProcess) throw notExportedToSender();
  const place = placeFor(descriptor, fds, options, sender);
  return openThreadMemory({ descriptor, ...place, fds, lease: sender?.lease });
}

// ---- Where to open it ----

/** Returns where to open a descriptor and with what access. @throws IpcError if no device can */
function placeFor(
  descriptor: DescriptorFields,
  fds: ReceivedFds,
  options: OpenOptions,
  sender: Sender | undefined,
): { readonly context: Context; readonly access: Access } {
  const context = contextFor(descriptor, options);
  if (context) return { context, access: effectiveAccess(descriptor, options.access, fds.numbers) };
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
  descriptor: DescriptorFields,
  requested: Access | undefined,
  fds: readonly number[],
): Access {
  if (requested === 'read') return 'read';
  if (descriptor.kind !== 'event' && descriptor.access === 'read') return 'read';
  return descriptor.kind === 'virtual' && fds.some(isMarkedReadOnly) ? 'read' : 'read-write';
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
  descriptor: DescriptorFields,
  { sameProcess }: Pick<OpenOptions, 'sameProcess'>,
): OpenBlocker | undefined {
  const isHere = findExport(nameOfExport(descriptor)) !== undefined;
  if (!isHere) return isFromOtherThread(descriptor) ? undefined : exportGoneBlocker;
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
  descriptor: DescriptorFields,
  self: LocalProcess,
  sender?: Sender,
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
  const alwaysWritable = ALWAYS_WRITABLE[kind];
  if (!alwaysWritable || kind === 'event' || descriptor.access !== 'read') return undefined;
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
    hint: sender
      ? 'Make it visible (CUDA_VISIBLE_DEVICES), or have the other process send a copy in the memory of a device that both see: receive() opens memory where it is.'
      : 'Make it visible (CUDA_VISIBLE_DEVICES). Plain memory also opens on a device with peer access to it: { device }.',
  };
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
  descriptor: DescriptorFields,
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
export const sharesPidNamespace = (
  { pidNamespace }: DescriptorFields,
  self: LocalProcess,
): boolean => pidNamespace !== 0 && pidNamespace === self.pidNamespace;

function exporterBlocker(
  descriptor: DescriptorFields,
  allowOtherUsers: boolean,
  self: LocalProcess,
): OpenBlocker | undefined {
  if (!sharesPidNamespace(descriptor, self)) return undefined;
  const { pid, startTime } = descriptor;
  if (!self.isAlive(pid, startTime)) return goneBlocker(descriptor);
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

/** The file descriptors of virtual memory keep the memory alive themselves. */
const goneBlocker = ({ kind, pid }: DescriptorFields): OpenBlocker | undefined =>
  kind === 'virtual'
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
function goneMeanwhile(error: unknown, descriptor: DescriptorFields): IpcError | undefined {
  const refusal = error instanceof IpcError ? error.cause : error;
  if (!(refusal instanceof CudaError) || refusal.sticky) return undefined;
  // The end of another process frees memory: the driver does not lack it for that.
  if (refusal.status === CUresult.CUDA_ERROR_OUT_OF_MEMORY) return undefined;
  const blocker = isExporterEnding(descriptor) ? goneBlocker(descriptor) : undefined;
  return blocker && Object.assign(blockedError(blocker), { cause: refusal });
}

function fdBlocker(
  descriptor: DescriptorFields,
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
