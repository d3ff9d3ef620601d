/** What the facts about this machine mean for sharing: each rule is a function of the facts alone. */

import { PROBES, type ProbeReport } from '../../ipc/inspect/probes.ts';
import type { DeviceFacts, Limit, ProcessFacts } from '../../ipc/inspect/process-facts.ts';
import { EXCLUSIVE_MODES, type IpcSupport } from '../../ipc/sharing/blockers.ts';
import type { Probe } from '../../ipc/sharing/kind.ts';
import type { TriedDriver } from '../driver-choice.ts';
import { shortBytes } from '../table.ts';
import { type Finding, finding } from './finding.ts';
import { remedies } from './remedies.ts';

/** A device, and what it can share. */
export interface DoctorDevice extends DeviceFacts {
  readonly computeCapability: string;
  readonly totalMemory: number;
  readonly support: IpcSupport;
}

/** A library: where it is or which version, or why there isn't one. */
export interface LibraryFacts {
  readonly name: string;
  readonly found: string | undefined;
  readonly remedy: string;
}

/** Everything that the doctor gathers, before it judges. */
export interface MachineFacts {
  readonly process: ProcessFacts;
  /** Versions of cuffi, Node and the kernel. */
  readonly versions: { readonly cuffi: string; readonly node: string; readonly kernel: string };
  readonly driver: Omit<TriedDriver, 'selection'>;
  readonly devices: readonly DoctorDevice[];
  readonly probes: ProbeReport;
  /** The status of the driver when it is asked for a legacy handle of other memory. */
  readonly handles: readonly { readonly of: string; readonly status: number }[];
  /** Reading memory of the other process; undefined if that was not tried. */
  readonly throughput: { readonly byteLength: number; readonly ms: number } | undefined;
  readonly sharedMemory: { readonly byteLength: number; readonly free: number } | undefined;
  /** Yama's; undefined without Yama. */
  readonly ptraceScope: number | undefined;
  /** What marks a container, if this is one. */
  readonly container: string | undefined;
  readonly fabric: { readonly hasDriver: boolean; readonly channels: number };
  readonly mps: {
    readonly pipeDirectory: string;
    readonly hasControl: boolean;
    /** Of the daemon, if it is seen. */
    readonly daemonIpcNamespace: number | undefined;
  };
  readonly libraries: readonly LibraryFacts[];
}

/** All findings, in the order of the report. */
export const judge = (facts: MachineFacts): Finding[] => [
  ...driverRules(facts),
  ...deviceRules(facts),
  ...sharingRules(facts),
  ...containerRules(facts),
  ...limitRules(facts),
  ...libraryRules(facts),
  ...environmentRules(facts),
];

export const isEmulated = ({ driver }: MachineFacts): boolean => driver.name === 'emulated';

// ---- Driver and devices ----

function driverRules(facts: MachineFacts): Finding[] {
  const { name, version, reason, error } = facts.driver;
  const lines: Finding[] = [];
  if (error !== '') {
    const [first = '', ...more] = error.split('\n');
    const isMissing = error.includes('libcuda.so.1');
    lines.push(
      finding('driver', 'GPU driver', 'no', first.replace(/\. Tried:$/, ''), {
        remedy: isMissing ? remedies.driver : more.at(-1)?.trim() || remedies.driver,
      }),
    );
  }
  if (name === undefined) return lines;
  const fact = isEmulated(facts)
    ? `emulated, ${reason}: real processes and shared memory, but no GPU`
    : `${name} (${reason})`;
  lines.push(
    finding('driver', 'driver', 'ok', fact),
    finding('driver', 'CUDA', 'ok', `${version}, as the driver reports it`),
  );
  return lines;
}

const isMig = ({ uuid }: DeviceFacts): boolean => uuid.startsWith('MIG-');

function deviceRules({ devices, driver, process }: MachineFacts): Finding[] {
  if (driver.name === undefined)
    return [finding('devices', 'devices', 'unknown', 'no driver could be asked')];
  if (devices.length === 0)
    return [
      finding('devices', 'devices', 'no', 'the driver shows none', {
        remedy:
          process.environment?.['CUDA_VISIBLE_DEVICES'] === undefined
            ? remedies.driver
            : 'CUDA_VISIBLE_DEVICES hides them.',
      }),
    ];
  return devices.flatMap((device) => {
    const { ordinal, name, uuid, computeCapability, totalMemory, computeMode } = device;
    const lines = [
      finding(
        'devices',
        `device ${ordinal}`,
        'ok',
        `${name}, ${Math.round(totalMemory / 2 ** 30)} GiB, compute capability ${computeCapability}, ${uuid}`,
      ),
    ];
    if (computeMode !== 0)
      lines.push(
        finding(
          'devices',
          'compute mode',
          'no',
          `device ${ordinal}: ${EXCLUSIVE_MODES[computeMode] ?? computeMode}`,
          { remedy: remedies.computeMode },
        ),
      );
    if (isMig(device))
      lines.push(
        finding('devices', 'MIG', 'ok', `device ${ordinal} is a slice of a GPU`, {
          remedy: remedies.mig,
        }),
      );
    const unreached = devices.filter(
      (other) => other !== device && !device.peers.includes(other.uuid),
    );
    if (unreached.length > 0)
      lines.push(
        finding(
          'devices',
          'peer access',
          'no',
          `device ${ordinal} cannot access the memory of device ${unreached.map((other) => other.ordinal).join(', ')}`,
          { remedy: remedies.peerAccess, isOptional: true },
        ),
      );
    return lines;
  });
}

// ---- Sharing, as it was tried ----

/** Below this, memory was not shared but sent. */
const SLOW_BYTES_PER_SECOND = 2 ** 30;

function sharingRules(facts: MachineFacts): Finding[] {
  const { probes, handles, throughput } = facts;
  const lines = PROBES.map((probe) => {
    const { name, title, how } = probe;
    const result = probes.results.find((candidate) => candidate.name === name);
    if (!result)
      return finding('sharing', title, 'unknown', `not tried: ${probes.reason || 'no answer'}`);
    return result.ok
      ? finding('sharing', title, 'ok', `${how}: ${formatMs(result.ms)}`)
      : finding('sharing', title, 'no', firstLine(result.reason), {
          remedy: remedyFor(probe, facts),
        });
  });
  if (throughput) lines.push(throughputFinding(throughput, isEmulated(facts)));
  lines.push(...handleFindings(handles));
  return lines;
}

/** Memory of each way to allocate: only plain memory has a legacy handle. */
function handleFindings(handles: MachineFacts['handles']): Finding[] {
  const without = handles.filter(({ status }) => status !== 0);
  if (without.length === 0) return [];
  const statuses = [...new Set(without.map(({ status }) => status))].join(', ');
  const fact = `none for memory ${without.map(({ of }) => of).join(', ')} (status ${statuses}), by design`;
  return [finding('sharing', 'legacy handle', 'ok', fact, { remedy: remedies.noHandle })];
}

const formatMs = (ms: number | undefined): string =>
  ms === undefined ? 'works' : `${ms.toFixed(ms < 10 ? 1 : 0)} ms`;

const firstLine = (text: string): string => text.split('\n', 1)[0] as string;

/** What most likely prevents a kind from working, by the other facts. */
function remedyFor(
  { needsSharedMemory }: Probe,
  { process, devices, sharedMemory }: MachineFacts,
): string {
  if (process.isWsl) return remedies.wsl;
  if (devices.some(({ computeMode }) => computeMode > 1)) return remedies.computeMode;
  if (needsSharedMemory && (sharedMemory === undefined || sharedMemory.free < MIN_SHARED_MEMORY))
    return remedies.sharedMemorySize;
  return 'Other kinds that work here can be used instead: cuffi devices lists what the device supports.';
}

function throughputFinding(
  { byteLength, ms }: { readonly byteLength: number; readonly ms: number },
  emulated: boolean,
): Finding {
  const perSecond = (byteLength / ms) * 1000;
  const fact = `${shortBytes(byteLength)} of the other process read at ${(perSecond / 2 ** 30).toFixed(1)} GiB/s`;
  if (emulated) return finding('sharing', 'speed', 'ok', `${fact}, which says nothing about a GPU`);
  return perSecond < SLOW_BYTES_PER_SECOND
    ? finding('sharing', 'speed', 'no', fact, { remedy: remedies.slow })
    : finding('sharing', 'speed', 'ok', fact);
}

// ---- Container ----

const CAP_SYS_PTRACE = 19n;
/** Whether a process may take file descriptors from others of its user; undefined if unknown. */
export const mayTrace = (capabilities: string | undefined): boolean | undefined =>
  capabilities === undefined
    ? undefined
    : ((BigInt(`0x${capabilities}`) >> CAP_SYS_PTRACE) & 1n) === 1n;

/** The scope of Yama in which SYS_PTRACE does not help. */
export const YAMA_NO_ATTACH = 3;

/** The driver and NCCL need some. */
const MIN_SHARED_MEMORY = 1 << 20;

function containerRules(facts: MachineFacts): Finding[] {
  const { process, container, sharedMemory, ptraceScope, fabric, mps } = facts;
  const { namespaces, pid } = process;
  const lines = [
    finding('container', 'container', 'ok', container ?? 'no sign of one'),
    finding(
      'container',
      'namespaces',
      namespaces.pid === undefined ? 'unknown' : 'ok',
      `pid ${namespaces.pid ?? '?'}, ipc ${namespaces.ipc ?? '?'}, mnt ${namespaces.mnt ?? '?'}`,
    ),
    // Programs that start a container have pid 1, or a low one, in each of them.
    container !== undefined && pid < LOW_PID
      ? finding(
          'container',
          'own pid',
          'ok',
          `${pid}: other containers have a process of that number too`,
          {
            remedy: `Plain memory and events fail between equal numbers. ${remedies.pidNamespace}`,
          },
        )
      : finding('container', 'own pid', 'ok', String(pid)),
    sharedMemoryFinding(process, sharedMemory),
    ptraceFinding(process, ptraceScope),
  ];
  if (process.isWsl !== undefined)
    lines.push(
      process.isWsl
        ? finding('container', 'WSL', 'no', 'WSL has no CUDA IPC', { remedy: remedies.wsl })
        : finding('container', 'WSL', 'ok', 'this is not WSL'),
    );
  lines.push(fabricFinding(fabric), ...mpsFindings(mps, process));
  return lines;
}

const LOW_PID = 100;

function sharedMemoryFinding(
  { sharedMemory: device }: ProcessFacts,
  size: MachineFacts['sharedMemory'],
): Finding {
  if (device === undefined || size === undefined)
    return finding('container', '/dev/shm', 'no', 'there is none: events cannot be shared', {
      remedy: remedies.sharedMemorySize,
    });
  const fact = `device ${device}, ${shortBytes(size.free)} free of ${shortBytes(size.byteLength)}`;
  return size.free < MIN_SHARED_MEMORY
    ? finding('container', '/dev/shm', 'no', fact, { remedy: remedies.sharedMemorySize })
    : finding('container', '/dev/shm', 'ok', fact);
}

function ptraceFinding({ capabilities }: ProcessFacts, scope: number | undefined): Finding {
  const mayAlways = mayTrace(capabilities);
  const fact = `Yama ${scope ?? 'absent'}, SYS_PTRACE ${mayAlways === undefined ? 'unknown' : mayAlways ? 'held' : 'not held'}`;
  if (scope === YAMA_NO_ATTACH)
    return finding('container', 'pidfd_getfd', 'no', fact, {
      remedy: remedies.yama,
      isOptional: true,
    });
  if ((scope ?? 0) === 0 || mayAlways === true)
    return finding('container', 'pidfd_getfd', 'ok', fact);
  return finding('container', 'pidfd_getfd', mayAlways === undefined ? 'unknown' : 'no', fact, {
    remedy: remedies.ptrace,
    isOptional: true,
  });
}

function fabricFinding({ hasDriver, channels }: MachineFacts['fabric']): Finding {
  if (channels > 0)
    return finding(
      'container',
      'fabric handles',
      'ok',
      `${channels} IMEX channel${channels === 1 ? '' : 's'}`,
    );
  const fact = hasDriver ? 'the driver knows IMEX, but there is no channel' : 'no IMEX channels';
  return finding('container', 'fabric handles', 'no', fact, {
    remedy: remedies.fabric,
    isOptional: true,
  });
}

function mpsFindings(
  { pipeDirectory, hasControl, daemonIpcNamespace }: MachineFacts['mps'],
  { environment, namespaces }: ProcessFacts,
): Finding[] {
  const isAsked = environment?.['CUDA_MPS_PIPE_DIRECTORY'] !== undefined;
  if (!isAsked && !hasControl) return [];
  if (!hasControl)
    return [
      finding('container', 'MPS', 'no', `${pipeDirectory} has no control pipe`, {
        remedy: remedies.mps,
      }),
    ];
  if (daemonIpcNamespace === undefined)
    return [
      finding('container', 'MPS', 'unknown', `${pipeDirectory}; its daemon is not seen here`, {
        remedy: remedies.mps,
      }),
    ];
  return daemonIpcNamespace === namespaces.ipc
    ? [finding('container', 'MPS', 'ok', `${pipeDirectory}, in this ipc namespace`)]
    : [
        finding('container', 'MPS', 'no', 'its daemon is in another ipc namespace', {
          remedy: remedies.mps,
        }),
      ];
}

// ---- Limits ----

const MIN_DESCRIPTORS = 1024;
const MAX_SHARE_IN_USE = 0.8;

function limitRules({ process: { limits, openDescriptors } }: MachineFacts): Finding[] {
  const { descriptors, lockedMemory } = limits;
  return [
    descriptorFinding(descriptors, openDescriptors),
    lockedMemory === undefined
      ? finding('limits', 'locked memory', 'unknown', 'it could not be read')
      : finding(
          'limits',
          'locked memory',
          'ok',
          lockedMemory.soft === null ? 'unlimited' : shortBytes(lockedMemory.soft),
          lockedMemory.soft === null
            ? {}
            : { remedy: "CUDA's pinned memory is not counted; RDMA is (ulimit -l unlimited)." },
        ),
  ];
}

function descriptorFinding(limit: Limit | undefined, open: number | undefined): Finding {
  if (limit === undefined)
    return finding('limits', 'descriptors', 'unknown', 'the limit could not be read');
  const { soft, hard } = limit;
  const fact = `${open ?? '?'} open, at most ${soft ?? 'unlimited'} (hard limit ${hard ?? 'none'})`;
  const isTight =
    soft !== null && (soft < MIN_DESCRIPTORS || (open ?? 0) > soft * MAX_SHARE_IN_USE);
  return isTight
    ? finding('limits', 'descriptors', 'no', fact, {
        remedy: 'Raise it (ulimit -n 65536): pools, virtual memory and connections need some each.',
      })
    : finding('limits', 'descriptors', 'ok', fact);
}

// ---- Libraries ----

const libraryRules = ({ libraries }: MachineFacts): Finding[] =>
  libraries.map(({ name, found, remedy }) =>
    found === undefined
      ? finding('libraries', name, 'no', 'not found', { remedy, isOptional: true })
      : finding('libraries', name, 'ok', found),
  );

// ---- Environment ----

/** What a variable does, if its value matters. */
function environmentRules({ process: { environment } }: Pick<MachineFacts, 'process'>): Finding[] {
  const set = Object.entries(environment ?? {}).sort(([a], [b]) => (a < b ? -1 : 1));
  return set.map(([name, value]) => {
    const effect = effectOf(name, value);
    return finding('environment', name, effect.status ?? 'ok', value === '' ? '(empty)' : value, {
      ...(effect.remedy && { remedy: effect.remedy }),
      isOptional: effect.isOptional ?? false,
    });
  });
}

interface Effect {
  readonly status?: 'no';
  readonly remedy?: string;
  readonly isOptional?: boolean;
}

export const hasExpandableSegments = (environment: ProcessFacts['environment']): boolean =>
  ['PYTORCH_CUDA_ALLOC_CONF', 'PYTORCH_ALLOC_CONF'].some((name) =>
    /expandable_segments:\s*true/i.test(environment?.[name] ?? ''),
  );

function effectOf(name: string, value: string): Effect {
  if (name === 'CUDA_VISIBLE_DEVICES') {
    if (/^\s*(-1.*|none|void)?\s*$/i.test(value))
      return { status: 'no', remedy: 'It hides every GPU: unset it, or name devices.' };
    return { remedy: 'Ordinals are counted in this list: compare UUIDs with the other process.' };
  }
  if (name.startsWith('PYTORCH') && hasExpandableSegments({ [name]: value }))
    return {
      status: 'no',
      remedy: `Tensors of such memory have no legacy handle (status 1). ${remedies.expandableSegments}`,
    };
  if (name === 'CUDA_DEVICE_MAX_CONNECTIONS')
    return { remedy: 'Streams share that many queues: work of one may wait for that of another.' };
  if (name === 'CUDA_LAUNCH_BLOCKING' && value !== '0')
    return { remedy: 'Each launch waits for its kernel: for finding faults only.' };
  if (name === 'CUFFI_INSPECT' && value === '0')
    return {
      remedy: 'cuffi ls and cuffi doctor --with cannot ask processes started like this one.',
    };
  if (name === 'NCCL_P2P_DISABLE' && value !== '0')
    return { remedy: 'NCCL copies through the host.', isOptional: true };
  return {};
}
