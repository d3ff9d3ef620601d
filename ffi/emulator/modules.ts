/** Modules: loading PTX text or cubins, functions and globals. */
import { CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES } from '../constants.ts';
import { emulatedByteLength, type RegisteredKernel } from '../emulated-kernels.ts';
import type { Driver } from '../functions.ts';
import { withAddress } from '../native.ts';
import { CUresult, type CUresult as Status } from '../results.ts';
import type { Allocation } from './blocks.ts';
import type { Context, Contexts } from './context.ts';
import type { Handles } from './handles.ts';
import type { HostMemory } from './host-memory.ts';
import type { ManagedAllocation, ManagedMemory } from './managed.ts';
import type { Memory } from './memory.ts';
import { type PtxEntry, type PtxGlobal, parsePtx } from './ptx.ts';
import type { StreamQueues } from './stream-queues.ts';

const {
  CUDA_SUCCESS,
  CUDA_ERROR_INVALID_VALUE,
  CUDA_ERROR_INVALID_HANDLE,
  CUDA_ERROR_NOT_FOUND,
  CUDA_ERROR_OUT_OF_MEMORY,
  CUDA_ERROR_NOT_SUPPORTED,
} = CUresult;

/** A kernel of a module. */
export interface Kernel extends PtxEntry {
  readonly handle: number;
  readonly context: Context;
  readonly target: number;
  /** The attributes that were set, by number. */
  readonly attributes: Map<number, number>;
  /** Whether its code is on the device: once it was launched, loaded or asked for its attributes. */
  isLoaded: boolean;
}

/** A variable of a module: in device memory or in managed memory. */
type Variable =
  | { readonly isManaged: false; readonly allocation: Allocation; readonly byteLength: number }
  | {
      readonly isManaged: true;
      readonly allocation: ManagedAllocation;
      readonly byteLength: number;
    };

interface Module {
  readonly handle: number;
  readonly context: Context;
  readonly kernels: readonly Kernel[];
  readonly globals: ReadonlyMap<string, Variable>;
}

/** The modules of this process and their kernels. */
export class Modules {
  readonly registered: ReadonlyMap<string, RegisteredKernel>;
  readonly #memory: Memory;
  readonly #managed: ManagedMemory;
  readonly #handles: Handles;
  readonly #modules = new Map<number, Module>();
  readonly #kernels = new Map<number, Kernel>();

  constructor(
    registered: ReadonlyMap<string, RegisteredKernel>,
    memory: Memory,
    managed: ManagedMemory,
    contexts: Contexts,
    handles: Handles,
  ) {
    this.registered = registered;
    this.#memory = memory;
    this.#managed = managed;
    this.#handles = handles;
    contexts.onEnd((context) => {
      // Their globals are freed with the memory of the context.
      for (const module of [...this.#modules.values()])
        if (module.context === context) this.#forget(module);
    });
  }

  get hasManagedMemory(): boolean {
    return this.#managed.isSupported;
  }

  get count(): number {
    return this.#modules.size;
  }

  get(handle: number): Module | undefined {
    return this.#modules.get(handle);
  }

  kernel(handle: number): Kernel | undefined {
    return this.#kernels.get(handle);
  }

  /** Loads an image. Undefined if there is no memory for its globals. */
  load(context: Context, { entries, globals, target }: Image): Module | undefined {
    const variables = new Map<string, Variable>();
    const managedGlobals = globals.filter(({ isManaged }) => isManaged);
    const managed = this.#managed.allocateVariables(
      context,
      managedGlobals.map(({ byteLength }) => byteLength),
    );
    if (!managed) return undefined;
    const left = [...managed];
    for (const global of globals) {
      const variable = this.#allocate(context, global, left);
      if (!variable) {
        for (const each of variables.values()) this.#free(each);
        for (const each of left) this.#managed.freeVariable(each);
        return undefined;
      }
      variables.set(global.name, variable);
      const { byteLength } = global;
      const bytes = new Uint8Array(byteLength);
      bytes.set(global.initial.subarray(0, byteLength));
      const { address } = variable.allocation;
      withAddress(bytes, (from) => this.#memory.copy(address, from, byteLength));
    }
    const module = {
      handle: this.#handles.make('CUmodule'),
      context,
      globals: variables,
      kernels: entries.map((entry) => ({
        ...entry,
        handle: this.#handles.make('CUfunction'),
        context,
        target,
        attributes: new Map<number, number>(),
        isLoaded: false,
      })),
    };
    this.#modules.set(module.handle, module);
    for (const kernel of module.kernels) this.#kernels.set(kernel.handle, kernel);
    return module;
  }

  unload(module: Module): void {
    this.#forget(module);
    for (const variable of module.globals.values()) this.#free(variable);
  }

  /** @param managed where its managed variables are, in their order: takes the first */
  #allocate(
    context: Context,
    { byteLength, isManaged }: PtxGlobal,
    managed: ManagedAllocation[],
  ): Variable | undefined {
    if (isManaged) {
      const allocation = managed.shift();
      return allocation && { isManaged, allocation, byteLength };
    }
    const allocation = this.#memory.blocks.allocate(context, byteLength);
    return allocation && { isManaged, allocation, byteLength };
  }

  #free(variable: Variable): void {
    if (variable.isManaged) this.#managed.freeVariable(variable.allocation);
    else this.#memory.blocks.free(variable.allocation);
  }

  #forget(module: Module): void {
    this.#modules.delete(module.handle);
    this.#handles.release('CUmodule', module.handle);
    for (const { handle } of module.kernels) {
      this.#kernels.delete(handle);
      this.#handles.release('CUfunction', handle);
    }
  }
}

export type ModuleFunctions = Pick<
  Driver,
  | 'cuModuleLoadDataEx'
  | 'cuModuleUnload'
  | 'cuModuleGetFunction'
  | 'cuModuleGetGlobal_v2'
  | 'cuModuleGetFunctionCount'
  | 'cuModuleEnumerateFunctions'
>;

export function moduleFunctions(
  modules: Modules,
  contexts: Contexts,
  queues: StreamQueues,
  host: HostMemory,
): ModuleFunctions {
  const nameAt = (address: number): string | undefined => {
    for (let byteLength = 64; byteLength <= 65_536; byteLength *= 2) {
      const bytes = host.read(address, byteLength) ?? host.read(address, 4096 - (address % 4096));
      const end = bytes?.indexOf(0) ?? -1;
      if (bytes && end >= 0) return Buffer.from(bytes.subarray(0, end)).toString('utf8');
    }
    return undefined;
  };

  /** Writes the compiler's log to the buffer in the options, truncated to its size. */
  const writeLog = (count: number, options: number, values: number, log: string): void => {
    const given = new Map<number, number>();
    for (let at = 0; at < count; at += 1) {
      const option = host.getInt32(options + 4 * at);
      const value = host.getUint64(values + 8 * at);
      if (option !== undefined && value !== undefined) given.set(option, Number(value));
    }
    const buffer = given.get(CU_JIT_ERROR_LOG_BUFFER) ?? 0;
    const room = given.get(CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES) ?? 0;
    if (buffer === 0 || room < 2) return;
    host.write(buffer, Buffer.from(`${log.slice(0, room - 1)}\0`));
  };

  return {
    cuModuleLoadDataEx(out, image, count, options, values) {
      const read = readImage(host, image, modules.registered);
      if ('status' in read) {
        writeLog(count, options, values, read.log);
        return read.status;
      }
      if (read.globals.some(({ isManaged }) => isManaged) && !modules.hasManagedMemory)
        return CUDA_ERROR_NOT_SUPPORTED;
      queues.drain(contexts.current);
      const module = modules.load(contexts.current, read);
      if (!module) return CUDA_ERROR_OUT_OF_MEMORY;
      host.setUint64(out, module.handle);
      return CUDA_SUCCESS;
    },
    cuModuleUnload(handle) {
      const module = modules.get(handle);
      if (!module) return CUDA_ERROR_INVALID_HANDLE;
      queues.drain(module.context);
      if (module.context.failure !== CUDA_SUCCESS) return module.context.failure;
      modules.unload(module);
      return CUDA_SUCCESS;
    },
    cuModuleGetFunction(out, handle, name): Status {
      const module = modules.get(handle);
      if (!module) return CUDA_ERROR_INVALID_HANDLE;
      const wanted = nameAt(name);
      if (!wanted) return CUDA_ERROR_INVALID_VALUE;
      const found = module.kernels.find((kernel) => kernel.name === wanted);
      if (!found) return CUDA_ERROR_NOT_FOUND;
      host.setUint64(out, found.handle);
      return CUDA_SUCCESS;
    },
    cuModuleGetGlobal_v2(out, byteLength, handle, name) {
      const module = modules.get(handle);
      if (!module) return CUDA_ERROR_INVALID_HANDLE;
      const found = module.globals.get(nameAt(name) ?? '');
      if (!found) return CUDA_ERROR_NOT_FOUND;
      if (out !== 0) host.setUint64(out, found.allocation.address);
      if (byteLength !== 0) host.setUint64(byteLength, found.byteLength);
      return CUDA_SUCCESS;
    },
    cuModuleGetFunctionCount(out, handle) {
      const module = modules.get(handle);
      if (!module) return CUDA_ERROR_INVALID_HANDLE;
      host.setInt32(out, module.kernels.length);
      return CUDA_SUCCESS;
    },
    cuModuleEnumerateFunctions(out, count, handle) {
      const module = modules.get(handle);
      if (!module) return CUDA_ERROR_INVALID_HANDLE;
      for (const [at, kernel] of module.kernels.slice(0, count).entries())
        host.setUint64(out + 8 * at, kernel.handle);
      return CUDA_SUCCESS;
    },
  };
}

// ---- Images: PTX text, or a cubin whose kernels are registered ----

/** The contents of a module. */
export interface Image {
  readonly entries: readonly PtxEntry[];
  readonly globals: readonly PtxGlobal[];
  /** The target architecture, e.g. 70. */
  readonly target: number;
}

/** The status of an invalid image, and the compiler's log. */
export interface ImageError {
  readonly status: Status;
  readonly log: string;
}

const PAGE = 4096;
const MAX_IMAGE_BYTES = 1 << 26;
const ELF = 0x46_4c_45_7f;
const FATBIN = 0xba_55_ed_50;
/** The type of ELF files that are to be linked, and the machine of NVIDIA's. */
const ET_REL = 1;
const EM_CUDA = 190;

// The newest PTX version that driver 13.0 accepts.
const MAX_VERSION = 90;

/** Reads an image from host memory. */
function readImage(
  host: HostMemory,
  address: number,
  kernels: ReadonlyMap<string, RegisteredKernel>,
): Image | ImageError {
  const magic = host.getInt32(address);
  if (magic === undefined) return { status: CUresult.CUDA_ERROR_INVALID_VALUE, log: '' };
  if (magic === ELF) return readCubin(host, address, kernels);
  if (magic >>> 0 === FATBIN) return { status: CUresult.CUDA_ERROR_NOT_SUPPORTED, log: '' };
  const ptx = parsePtx(readText(host, address));
  if (!ptx)
    return {
      status: CUresult.CUDA_ERROR_INVALID_IMAGE,
      log: "error   : Binary format for key='0', ident='' is not recognized",
    };
  if (ptx.version > MAX_VERSION)
    return {
      status: CUresult.CUDA_ERROR_UNSUPPORTED_PTX_VERSION,
      log: `fatal   : Unsupported .version ${ptx.version / 10}; current version is '9.0'`,
    };
  if (ptx.error) return { status: CUresult.CUDA_ERROR_INVALID_PTX, log: ptx.error };
  return ptx;
}

/** Reads zero-terminated text. */
function readText(host: HostMemory, address: number): string {
  const parts: Uint8Array[] = [];
  // One page at a time: the next may not be mapped.
  for (let at = address; at < address + MAX_IMAGE_BYTES; ) {
    const piece = host.read(at, PAGE - (at % PAGE));
    const end = piece?.indexOf(0) ?? -1;
    if (!piece || end >= 0) {
      parts.push(piece?.subarray(0, end) ?? new Uint8Array());
      break;
    }
    parts.push(piece);
    at += piece.length;
  }
  return Buffer.concat(parts).toString('utf8');
}

/** Reads a cubin: the registered kernels among its sections. */
function readCubin(
  host: HostMemory,
  address: number,
  kernels: ReadonlyMap<string, RegisteredKernel>,
): Image | ImageError {
  const header = Buffer.from(host.read(address, 64) ?? []);
  const byteLength =
    header.length === 64
      ? Number(header.readBigUInt64LE(40)) + header.readUInt16LE(58) * header.readUInt16LE(60)
      : 0;
  const bytes = Buffer.from((byteLength < MAX_IMAGE_BYTES && host.read(address, byteLength)) || []);
  // A part of a program loads, but no kernel of it can be found.
  if (byteLength > 0 && header.readUInt16LE(16) === ET_REL && header.readUInt16LE(18) === EM_CUDA)
    return { entries: [], globals: [], target: 90 };
  const entries = [...kernels]
    .filter(([name]) => bytes.includes(`.text.${name}\0`))
    .map(([name, { params }]) => ({
      name,
      params: params.map(emulatedByteLength),
      maxThreads: undefined,
    }));
  if (entries.length === 0) return { status: CUresult.CUDA_ERROR_NOT_SUPPORTED, log: '' };
  return { entries, globals: [], target: 90 };
}

// ---- Linking needs a real driver: there is no machine code here ----

export const linkFunctions: Pick<
  Driver,
  'cuLinkCreate_v2' | 'cuLinkAddData_v2' | 'cuLinkComplete' | 'cuLinkDestroy'
> = {
  cuLinkCreate_v2: () => CUDA_ERROR_NOT_SUPPORTED,
  cuLinkAddData_v2: () => CUDA_ERROR_NOT_SUPPORTED,
  cuLinkComplete: () => CUDA_ERROR_NOT_SUPPORTED,
  cuLinkDestroy: () => CUDA_ERROR_NOT_SUPPORTED,
};
