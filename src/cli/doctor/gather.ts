/** Gathers the facts that the doctor judges, and really tries what can be tried. */

import { spawnSync } from 'node:child_process';
import { existsSync, readdirSync, readFileSync, readlinkSync } from 'node:fs';
import { release } from 'node:os';
import { join } from 'node:path';
import { BLOCK } from '../../../ffi/arena.ts';
import { cu } from '../../../ffi/driver.ts';
import { packageVersion } from '../../../ffi/package.ts';
import { readSetting } from '../../../ffi/settings.ts';
import { Context } from '../../context.ts';
import { type Device, devices } from '../../device.ts';
import { type ProbeReport, takeProbes } from '../../ipc/inspect/probes.ts';
import {
  attempt,
  deviceFacts,
  type Machine,
  ownFacts,
  thisMachine,
} from '../../ipc/inspect/process-facts.ts';
import { type ChildPeer, spawnPeer } from '../../ipc/peer/spawn.ts';
import { ipcSupport } from '../../ipc/sharing/blockers.ts';
import { compilerInUse } from '../../kernel/nvrtc.ts';
import { DeviceBuffer, type MemoryResource } from '../../memory/buffer.ts';
import { ManagedMemory } from '../../memory/managed.ts';
import { MappedMemory } from '../../memory/mapped.ts';
import { MemoryPool } from '../../memory/pool.ts';
import { childProgram } from '../child.ts';
import { tryDriver } from '../driver-choice.ts';
import { ptraceScope } from './pair.ts';
import type { DoctorDevice, LibraryFacts, MachineFacts } from './rules.ts';

/** What the doctor is asked to do. */
export interface GatherOptions {
  /** As `--driver` says. */
  readonly driver: string | undefined;
  /** The device that is tried, by its ordinal. */
  readonly device: number;
}

/** Gathers everything about this machine. Never rejects: what fails is a fact. */
export async function gatherFacts(
  { driver, device }: GatherOptions,
  machine: Machine = thisMachine,
): Promise<MachineFacts> {
  // As it was started: replacing a missing GPU changes it.
  const { environment } = ownFacts(machine);
  const chosen = tryDriver(driver);
  const all = chosen.name === undefined ? [] : (attempt(devices) ?? []);
  const tried = all[device];
  const sharing = tried
    ? await trySharing(tried, chosen.selection)
    : { probes: { results: [], reason: `there is no device ${device}` }, throughput: undefined };
  return {
    process: { ...ownFacts(machine), environment },
    versions: { cuffi: packageVersion() ?? 'unknown', node: process.version, kernel: release() },
    driver: chosen,
    devices: all.flatMap((each) => attempt(() => describeDevice(each, all)) ?? []),
    ...sharing,
    handles: tried ? legacyHandles(Context.primary(tried)) : [],
    sharedMemory: attempt(() => sharedMemorySize(machine)),
    ptraceScope: ptraceScope(machine),
    container: containerSign(machine),
    fabric: fabricFacts(machine),
    mps: mpsFacts(machine),
    libraries: [nvrtc(), ...pythonLibraries(machine), nccl(machine)],
  };
}

const read = (path: string): string => readFileSync(path, 'utf8').trim();

const describeDevice = (device: Device, all: readonly Device[]): DoctorDevice => ({
  ...deviceFacts(device, all),
  computeCapability: `${device.computeCapability.major}.${device.computeCapability.minor}`,
  totalMemory: device.totalMemory,
  support: ipcSupport(device),
});

// ---- Sharing ----

/** Large enough for the time of the call not to count. */
const LARGE_BYTE_LENGTH = 64 << 20;
const CHILD_TIMEOUT_MS = 60_000;
const LARGE_TIMEOUT_MS = 10_000;

/** Tries every kind of sharing with a second process. */
async function trySharing(
  device: Device,
  driver: string,
): Promise<Pick<MachineFacts, 'probes' | 'throughput'>> {
  const child = spawnPeer<{ buffer?: unknown }>(childProgram('doctor-child'), {
    args: [String(device.ordinal), String(LARGE_BYTE_LENGTH)],
    env: { ...process.env, CUFFI_DRIVER: driver, CUFFI_INSPECT: '0' },
    stdio: ['ignore', 'ignore', 'ignore'],
  });
  const deadline = setTimeout(() => child.process.kill('SIGKILL'), CHILD_TIMEOUT_MS);
  try {
    const probes: ProbeReport = await takeProbes(child);
    return { probes, throughput: await readLarge(child, Context.primary(device)) };
  } finally {
    clearTimeout(deadline);
    child.process.kill('SIGKILL');
    await child[Symbol.asyncDispose]();
  }
}

async function readLarge(
  child: ChildPeer<{ buffer?: unknown }>,
  context: Context,
): Promise<MachineFacts['throughput']> {
  try {
    const { buffer } = await child.receive({ timeoutMs: LARGE_TIMEOUT_MS });
    if (!(buffer instanceof DeviceBuffer)) return undefined;
    using shared = buffer;
    const { byteLength } = shared;
    using own = DeviceBuffer.allocate(byteLength, { context });
    let ms = 0;
    // The first copy also sets up what later ones use.
    for (let time = 0; time < 2; time += 1) {
      const start = performance.now();
      shared.copyTo(own);
      await context.synchronize();
      ms = performance.now() - start;
    }
    return { byteLength, ms };
  } catch {
    // The probes have said what does not work.
    return undefined;
  }
}

/** The status of the driver when it is asked for a legacy handle of memory that has none. */
function legacyHandles(context: Context): MachineFacts['handles'] {
  const resources: readonly (readonly [
    of: string,
    make: () => MemoryResource & Partial<Disposable>,
  ])[] = [
    ['of a pool', () => MemoryPool.create({ context, maxSize: 32 << 20 })],
    ['of ManagedMemory', () => ManagedMemory.create({ context })],
    ['of MappedMemory', () => MappedMemory.create({ context })],
  ];
  return resources.flatMap(
    ([of, make]) =>
      attempt(() => {
        const memory = make();
        try {
          using buffer = memory.allocate(4096);
          const { address } = buffer;
          return { of, status: context.run(() => cu.cuIpcGetMemHandle(BLOCK, address)) as number };
        } finally {
          memory[Symbol.dispose]?.();
        }
      }) ?? [],
  );
}

// ---- Container ----

function sharedMemorySize(machine: Machine): NonNullable<MachineFacts['sharedMemory']> {
  const { bsize, blocks, bavail } = machine.statfs(`${machine.root}/dev/shm`);
  return { byteLength: bsize * blocks, free: bsize * bavail };
}

function containerSign({ root, env }: Machine): string | undefined {
  const file = ['/.dockerenv', '/run/.containerenv'].find((path) => existsSync(root + path));
  if (file !== undefined) return `yes: ${file}`;
  if (env['KUBERNETES_SERVICE_HOST'] !== undefined) return 'yes: Kubernetes';
  const groups = attempt(() => read(`${root}/proc/1/cgroup`)) ?? '';
  const manager = /docker|containerd|kubepods|libpod|lxc/.exec(groups)?.[0];
  return manager === undefined ? undefined : `yes: ${manager} (cgroup of process 1)`;
}

function fabricFacts({ root }: Machine): MachineFacts['fabric'] {
  const known = attempt(() => read(`${root}/proc/devices`)) ?? '';
  const channels = attempt(() => readdirSync(`${root}/dev/nvidia-caps-imex-channels`)) ?? [];
  return { hasDriver: known.includes('nvidia-caps-imex-channels'), channels: channels.length };
}

const DEFAULT_MPS_DIRECTORY = '/tmp/nvidia-mps';

function mpsFacts({ root, env }: Machine): MachineFacts['mps'] {
  const pipeDirectory = env['CUDA_MPS_PIPE_DIRECTORY'] || DEFAULT_MPS_DIRECTORY;
  const hasControl = existsSync(join(root, pipeDirectory, 'control'));
  return {
    pipeDirectory,
    hasControl,
    daemonIpcNamespace: hasControl ? daemonIpcNamespace(`${root}/proc`) : undefined,
  };
}

function daemonIpcNamespace(proc: string): number | undefined {
  const daemon = readdirSync(proc).find(
    (pid) =>
      /^\d+$/.test(pid) &&
      // The kernel cuts names at 15 characters.
      attempt(() => read(`${proc}/${pid}/comm`)) === 'nvidia-cuda-mps-control'.slice(0, 15),
  );
  if (daemon === undefined) return undefined;
  const link = attempt(() => readlinkSync(`${proc}/${daemon}/ns/ipc`)) ?? '';
  return Number(/\d+/.exec(link)?.[0]) || undefined;
}

// ---- Libraries ----

function nvrtc(): LibraryFacts {
  const compiler = attempt(compilerInUse);
  return {
    name: 'NVRTC',
    found: compiler && `${compiler.version}, for compile()`,
    remedy:
      'Only compile() needs it: pip install nvidia-cuda-nvrtc, or the CUDA toolkit; CUFFI_NVRTC names one.',
  };
}

const PYTHON_PACKAGES = ['torch', 'cupy', 'numba', 'cuda-core', 'cuda-bindings', 'jax'];
const PYTHON_TIMEOUT_MS = 10_000;
/** Prints the version of Python, that of each package, and the folder of NCCL. Imports nothing large. */
const PYTHON_PROGRAM = `
import sys, importlib.metadata as metadata, importlib.util as util
print('python', sys.version.split()[0])
for name in sys.argv[1:]:
    for candidate in (name, name + '-cuda12x', name + '-cuda13x'):
        try:
            print(name, metadata.version(candidate))
            break
        except metadata.PackageNotFoundError:
            pass
try:
    spec = util.find_spec('nvidia.nccl')
except ModuleNotFoundError:
    spec = None
print('nccl', spec.submodule_search_locations[0] if spec else '')
`;

let ncclFolder = '';

function pythonLibraries({ env }: Machine): LibraryFacts[] {
  const python = readSetting('CUFFI_PYTHON', env) ?? 'python3';
  const { stdout, status } = spawnSync(python, ['-c', PYTHON_PROGRAM, ...PYTHON_PACKAGES], {
    encoding: 'utf8',
    timeout: PYTHON_TIMEOUT_MS,
    killSignal: 'SIGKILL',
    stdio: ['ignore', 'pipe', 'ignore'],
  });
  const found = new Map(
    (status === 0 ? stdout : '').split('\n').map((line) => line.split(/ (.*)/) as [string, string]),
  );
  ncclFolder = found.get('nccl') ?? '';
  const packages = PYTHON_PACKAGES.filter((name) => found.has(name));
  const version = found.get('python');
  return [
    {
      name: 'Python',
      found: version && `${version} (${python})`,
      remedy: 'Only spawnPython() needs it: CUFFI_PYTHON names an interpreter.',
    },
    {
      name: 'Python packages',
      found: packages.map((name) => `${name} ${found.get(name)}`).join(', ') || undefined,
      remedy: `None of ${PYTHON_PACKAGES.join(', ')} is installed for ${python}.`,
    },
  ];
}

const LIBRARY_FOLDERS = [
  '/usr/lib/x86_64-linux-gnu',
  '/usr/lib/aarch64-linux-gnu',
  '/usr/lib64',
  '/usr/local/lib',
  '/usr/local/nvidia/lib64',
  '/usr/local/cuda/lib64',
];

function nccl({ root, env }: Machine): LibraryFacts {
  const named = (env['LD_LIBRARY_PATH'] ?? '').split(':').filter(Boolean);
  const python = ncclFolder === '' ? [] : [join(ncclFolder, 'lib')];
  const folder = [...named, ...python, ...LIBRARY_FOLDERS].find((each) =>
    existsSync(join(root, each, 'libnccl.so.2')),
  );
  return {
    name: 'NCCL',
    found: folder && join(folder, 'libnccl.so.2'),
    remedy:
      'Only collectives of other libraries need it: pip install nvidia-nccl-cu13, or -cu12 for CUDA 12.',
  };
}
