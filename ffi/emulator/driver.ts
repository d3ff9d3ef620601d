/**
 * The emulated driver: a libcuda in TypeScript, with the same functions and status codes, over host
 * memory that processes really share. Each subject is a file; this file combines them.
 */
import type { RegisteredKernel } from '../emulated-kernels.ts';
import { type Driver, type FunctionName, functionNames, rows } from '../functions.ts';
import { CUresult, type CUresult as Status } from '../results.ts';
import { allocationFunctions } from './allocation.ts';
import { delayTeardown } from './block-header.ts';
import { Contexts, contextFunctions, primaryContextFunctions } from './context.ts';
import { copyFunctions } from './copy.ts';
import { copy3dFunctions } from './copy-3d.ts';
import { deviceFunctions, errorStringFunctions } from './device.ts';
import { Events, eventFunctions } from './event.ts';
import { Graphs, graphFunctions } from './graph.ts';
import { Handles } from './handles.ts';
import { type Arena, HostMemory } from './host-memory.ts';
import { InterprocessEvents, ipcEventFunctions } from './ipc-event.ts';
import { ForeignMemory, ipcMemoryFunctions } from './ipc-memory.ts';
import { kernelFunctions, launchFactory } from './kernels.ts';
import { ManagedMemory } from './managed.ts';
import { Memory } from './memory.ts';
import { linkFunctions, Modules, moduleFunctions } from './modules.ts';
import { announce } from './open-objects.ts';
import { peerAccessFunctions } from './peer-access.ts';
import { pinnedFunctions } from './pinned.ts';
import { freePoolMemory, poolAllocationFunctions } from './pool-allocation.ts';
import { ImportedPools } from './pool-import.ts';
import { poolIpcFunctions } from './pool-ipc.ts';
import { Pools, poolFunctions } from './pools.ts';
import { withPreconditions } from './preconditions.ts';
import { currentProcessIdentity } from './processes.ts';
import { readSettings } from './settings.ts';
import { hostCallbackFunctions, streamFunctions } from './stream.ts';
import { streamMemoryFunctions } from './stream-memory.ts';
import { StreamQueues } from './stream-queues.ts';
import { VirtualMemory, virtualFunctions } from './virtual.ts';

/** Options of {@link createEmulatedDriver}. */
export interface EmulatedDriverOptions {
  /** The arena that callers use for out-values. Other addresses work too, but slower. */
  readonly arena: Arena;
  /** The environment with the `CUFFI_EMULATED_*` variables. Default: that of the process. */
  readonly env?: NodeJS.ProcessEnv;
  /** The kernels that can be launched, by name. Default: none. */
  readonly kernels?: ReadonlyMap<string, RegisteredKernel>;
}

type Implementation = (...args: never[]) => Status;

/**
 * Creates an emulated driver with devices, contexts and memory of its own. Instances of one process
 * share nothing. Instances of different processes share memory and events through the driver's
 * interprocess functions.
 *
 * @throws RangeError for an invalid environment variable
 */
export function createEmulatedDriver({
  arena,
  env = process.env,
  kernels = new Map(),
}: EmulatedDriverOptions): Driver {
  const settings = readSettings(env);
  delayTeardown(settings.teardownMs);
  const self = currentProcessIdentity();
  const host = new HostMemory(arena);
  const handles = new Handles();
  // When a context ends, its streams end first, then the memory that they use.
  const contexts = new Contexts(settings, handles);
  const queues = new StreamQueues(contexts, handles, settings);
  const events = new Events(contexts, handles);
  const interprocess = new InterprocessEvents(self);
  const memory = new Memory(settings, contexts, host);
  const foreign = new ForeignMemory(memory, contexts, self, settings.reusesHandles);
  const managed = new ManagedMemory(memory, contexts, queues, settings);
  const virtual = new VirtualMemory(memory, contexts, handles);
  const pools = new Pools(memory, contexts, queues, handles);
  const imported = new ImportedPools(memory, handles, contexts);
  const modules = new Modules(kernels, memory, managed, contexts, handles);
  const graphs = new Graphs();
  const createLaunch = launchFactory(modules, memory, host);
  const parts = { pools, imported, memory, contexts, queues, host };
  let isInitialised = false;

  const implementations: Driver = {
    cuInit(flags) {
      if (flags !== 0) return CUresult.CUDA_ERROR_INVALID_VALUE;
      const { status } = settings.visible;
      if (status !== CUresult.CUDA_SUCCESS) return status;
      if (settings.hasForeignContext && !isInitialised) contexts.enterForeign();
      isInitialised = true;
      return CUresult.CUDA_SUCCESS;
    },
    ...errorStringFunctions(host),
    ...deviceFunctions(settings, host),
    ...primaryContextFunctions(contexts, host),
    ...contextFunctions(contexts, host),
    ...streamFunctions(queues, contexts, host),
    ...streamMemoryFunctions(queues, memory),
    ...eventFunctions(events, () => interprocess.create(), contexts, queues, host),
    ...allocationFunctions(
      memory,
      contexts,
      queues,
      host,
      (address) => managed.free(address) ?? freePoolMemory(parts, address),
    ),
    ...pinnedFunctions(memory, contexts, queues, host),
    ...managed.functions(host),
    ...ifSupported(settings.supports('memoryPoolsSupported'), {
      ...poolFunctions(parts),
      ...poolAllocationFunctions(parts),
      ...poolIpcFunctions(parts, self),
    }),
    ...ifSupported(
      settings.supports('virtualMemoryManagementSupported'),
      virtualFunctions(virtual, contexts, host),
    ),
    ...peerAccessFunctions(contexts, host, settings),
    ...hostCallbackFunctions(queues, host),
    ...copyFunctions(memory, queues, host, contexts),
    ...copy3dFunctions(memory, queues, host, contexts),
    ...ipcMemoryFunctions(memory, foreign, contexts, queues, host, self, settings.reusesHandles),
    ...ipcEventFunctions(events, interprocess, contexts, host),
    ...moduleFunctions(modules, contexts, queues, host),
    ...kernelFunctions(modules, createLaunch, queues, host),
    ...linkFunctions,
    ...graphFunctions(parts, graphs, modules, handles, createLaunch),
  };

  const state = {
    contexts,
    handles,
    host,
    faults: settings.faults,
    queues,
    isInitialised: () => isInitialised,
    contextOf: (type: string, handle: number) =>
      (type === 'CUevent' ? events : queues).get(handle)?.context,
  };
  const guard = (name: FunctionName): readonly [FunctionName, Implementation] => {
    const isMissing = (rows[name].since ?? 0) > settings.version;
    const implementation = implementations[name] as Implementation;
    return [name, isMissing ? tooOld : withPreconditions(name, rows[name], implementation, state)];
  };
  const tables = { contexts, queues, events, memory, foreign, virtual, pools, imported, modules };
  announce({ ...tables, graphs });
  return Object.fromEntries(functionNames.map(guard)) as unknown as Driver;
}

// ---- Functions that a device, or the driver of a version, may lack ----

const tooOld = (): Status => CUresult.CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER;

/** Returns the functions, or functions that all return NOT_SUPPORTED. */
function ifSupported<F extends object>(isSupported: boolean, functions: F): F {
  if (isSupported) return functions;
  const refuse = (): Status => CUresult.CUDA_ERROR_NOT_SUPPORTED;
  return Object.fromEntries(Object.keys(functions).map((name) => [name, refuse])) as F;
}
