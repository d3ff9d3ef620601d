/** What decides whether two processes can share memory: read from /proc, and from the driver. */
import { readdirSync, readFileSync, readlinkSync, statfsSync, statSync } from 'node:fs';
import { driverName } from '../../../ffi/driver.ts';
import { bootId, processStartTime, processUser } from '../../../ffi/linux/process.ts';
import { type Device, devices } from '../../device.ts';
import { driverVersion, isInitialized } from '../../driver.ts';
import { isWsl } from '../identity.ts';

/** The namespaces that matter, as the kernel calls them. */
export const NAMESPACES = ['pid', 'ipc', 'mnt', 'net', 'user'] as const;
export type Namespace = (typeof NAMESPACES)[number];

/** A device as a process sees it. */
export interface DeviceFacts {
  readonly ordinal: number;
  readonly uuid: string;
  readonly name: string;
  /** As of the driver's attribute: 0 default, 2 prohibited, 3 exclusive to one process. */
  readonly computeMode: number;
  /** The UUIDs of the other visible devices whose memory it can access. */
  readonly peers: readonly string[];
}

/** The driver in use in a process. */
export interface DriverFacts {
  /** `emulated`, or the path of the library. */
  readonly name: string;
  /** E.g. `13.0`. */
  readonly version: string;
}

/** A limit of `ulimit`. Infinity is null in JSON. */
export interface Limit {
  readonly soft: number | null;
  readonly hard: number | null;
}

/** The facts about one process. A fact that could not be read is undefined. */
export interface ProcessFacts {
  /** As the process itself sees it. */
  readonly pid: number;
  /** In clock ticks since boot. */
  readonly startTime?: number | undefined;
  /** The script or program, without arguments. */
  readonly program?: string | undefined;
  readonly user?: number | undefined;
  /** Linux's boot id. */
  readonly machine?: string | undefined;
  /** The inode numbers of its namespaces. */
  readonly namespaces: { readonly [N in Namespace]?: number | undefined };
  /** The effective capabilities: 64 bits in hexadecimal. */
  readonly capabilities?: string | undefined;
  /** Its /dev/shm: the device number of the file system. */
  readonly sharedMemory?: number | undefined;
  readonly isWsl?: boolean | undefined;
  readonly openDescriptors?: number | undefined;
  readonly limits: {
    readonly descriptors?: Limit | undefined;
    readonly lockedMemory?: Limit | undefined;
  };
  /** Those of {@link WATCHED_VARIABLES} that are set. */
  readonly environment?: Readonly<Record<string, string>> | undefined;
  readonly driver?: DriverFacts | undefined;
  readonly devices?: readonly DeviceFacts[] | undefined;
}

/** The variables that change what works. */
const WATCHED_VARIABLES =
  /^(CUDA_VISIBLE_DEVICES|CUDA_DEVICE_ORDER|CUDA_DEVICE_MAX_CONNECTIONS|CUDA_LAUNCH_BLOCKING|CUDA_MODULE_LOADING|CUDA_MPS_[A-Z_]+|NVIDIA_VISIBLE_DEVICES|NVIDIA_DRIVER_CAPABILITIES|PYTORCH_CUDA_ALLOC_CONF|PYTORCH_ALLOC_CONF|NCCL_[A-Z0-9_]+|CUFFI_[A-Z_]+)$/;
/** A longer value is cut. */
const MAX_VALUE_LENGTH = 200;

/** What facts are read from: tests make one. */
export interface Machine {
  /** Precedes each path. */
  readonly root: string;
  readonly env: NodeJS.ProcessEnv;
  stat(path: string): { readonly dev: number };
  /** Sizes in blocks. */
  statfs(path: string): {
    readonly bsize: number;
    readonly blocks: number;
    readonly bavail: number;
  };
}

export const thisMachine: Machine = {
  root: '',
  env: process.env,
  stat: (path) => statSync(path),
  statfs: (path) => statfsSync(path),
};

/** Facts about this process, including its driver if it is initialized. */
export const ownFacts = (machine: Machine = thisMachine): ProcessFacts => ({
  ...readProcess('self', machine),
  environment: watchedVariables(machine.env),
  ...(isInitialized() && driverFacts()),
});

/**
 * What /proc tells about another process: nothing about its driver and its devices.
 *
 * @returns undefined if there is no such process
 */
export function factsFromProc(
  pid: number,
  machine: Machine = thisMachine,
): ProcessFacts | undefined {
  const facts = readProcess(pid, machine);
  return facts.startTime === undefined ? undefined : facts;
}

/** The facts about a device that this process sees. */
export const deviceFacts = (device: Device, all: readonly Device[]): DeviceFacts => ({
  ordinal: device.ordinal,
  uuid: device.uuid,
  name: device.name,
  computeMode: device.attribute('computeMode'),
  peers: all.filter((other) => other !== device && device.canAccessPeer(other)).map(uuidOf),
});

const uuidOf = ({ uuid }: Device): string => uuid;

function driverFacts(): Pick<ProcessFacts, 'driver' | 'devices'> {
  try {
    const { major, minor } = driverVersion();
    const all = devices();
    return {
      driver: { name: driverName(), version: `${major}.${minor}` },
      devices: all.map((device) => deviceFacts(device, all)),
    };
  } catch {
    // A context that is lost makes every call fail.
    return {};
  }
}

/** Returns what `read` returns; undefined if it throws. */
export function attempt<T>(read: () => T): T | undefined {
  try {
    return read();
  } catch {
    return undefined;
  }
}

// ---- /proc ----

function readProcess(process: number | 'self', machine: Machine): ProcessFacts {
  const { root } = machine;
  const folder = `${root}/proc/${process}`;
  const readText = (file: string): string | undefined =>
    attempt(() => readFileSync(`${folder}/${file}`, 'latin1'));
  const status = readText('status') ?? '';
  const environment = process === 'self' ? undefined : readText('environ');
  return {
    pid: ownPid(status, process),
    startTime: processStartTime(process, root),
    program: programOf(readText('cmdline')),
    user: processUser(process, root),
    machine: attempt(() => bootId(root)),
    namespaces: Object.fromEntries(NAMESPACES.map((name) => [name, namespaceOf(folder, name)])),
    capabilities: /^CapEff:\s*([0-9a-f]+)$/m.exec(status)?.[1],
    sharedMemory: attempt(
      () => machine.stat(process === 'self' ? `${root}/dev/shm` : `${folder}/root/dev/shm`).dev,
    ),
    isWsl: isWsl(root),
    openDescriptors: attempt(() => readdirSync(`${folder}/fd`).length),
    limits: limitsIn(readText('limits') ?? ''),
    environment:
      environment === undefined ? undefined : watchedVariables(parseEnvironment(environment)),
  };
}

/** The pid in the innermost namespace that the process is in. */
function ownPid(status: string, process: number | 'self'): number {
  const pids = /^NSpid:\s*(.+)$/m.exec(status)?.[1]?.split(/\s+/).map(Number);
  return pids?.at(-1) ?? (process === 'self' ? globalThis.process.pid : process);
}

const namespaceOf = (folder: string, name: Namespace): number | undefined =>
  attempt(() => {
    const link = readlinkSync(`${folder}/ns/${name}`);
    return Number(/\[(\d+)\]$/.exec(link)?.[1]);
  });

/** The options of Node after which another module is named than the script: a loader such as tsx. */
const LOADS = /^(-r|--(require|import|loader|experimental-loader|test-reporter))$/;

/** The script of an interpreter, else the program. */
export function programOf(commandLine: string | undefined): string | undefined {
  const [program, ...args] = (commandLine ?? '').split('\0').filter(Boolean);
  if (program === undefined) return undefined;
  const isInterpreter = /(^|\/)(node|bun|deno|python[\d.]*)$/.test(program);
  const script = isInterpreter
    ? args.find(
        (arg, at) =>
          /\.([cm]?[jt]sx?|py)$/.test(arg) && !/^-/.test(arg) && !LOADS.test(args[at - 1] ?? ''),
      )
    : undefined;
  return (script ?? program).slice(0, MAX_VALUE_LENGTH);
}

/** Reads the text of /proc/PID/limits. */
function limitsIn(text: string): ProcessFacts['limits'] {
  const limit = (name: string): Limit | undefined => {
    const [, soft, hard] = new RegExp(`^${name}\\s+(\\w+)\\s+(\\w+)`, 'm').exec(text) ?? [];
    return soft === undefined ? undefined : { soft: numberOrNull(soft), hard: numberOrNull(hard) };
  };
  return { descriptors: limit('Max open files'), lockedMemory: limit('Max locked memory') };
}

const numberOrNull = (text: string | undefined): number | null => {
  const value = Number(text);
  return Number.isNaN(value) ? null : value;
};

const parseEnvironment = (text: string): Record<string, string> =>
  Object.fromEntries(
    text
      .split('\0')
      .filter((entry) => entry.includes('='))
      .map((entry) => {
        const at = entry.indexOf('=');
        return [entry.slice(0, at), entry.slice(at + 1)];
      }),
  );

const watchedVariables = (environment: NodeJS.ProcessEnv): Record<string, string> =>
  Object.fromEntries(
    Object.entries(environment)
      .filter(([name, value]) => value !== undefined && WATCHED_VARIABLES.test(name))
      .map(([name, value]) => [name, String(value).slice(0, MAX_VALUE_LENGTH)]),
  );
