/** Modules: loaded from PTX text, as far as that tells what is in them. */

import { CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES } from '../constants.ts';
import type { RegisteredKernel } from '../emulated-kernels.ts';
import type { Driver } from '../functions.ts';
import { withAddress } from '../native.ts';
import { CUresult, type CUresult as Status } from '../results.ts';
import type { Allocation } from './block.ts';
import type { Context, Contexts } from './context.ts';
import type { Handles } from './handles.ts';
import type { HostMemory } from './host.ts';
import { type Image, readImage } from './image.ts';
import type { Memory } from './memory.ts';
import type { PtxEntry } from './ptx.ts';
import type { StreamQueues } from './queues.ts';

const {
  CUDA_SUCCESS,
  CUDA_ERROR_INVALID_VALUE,
  CUDA_ERROR_INVALID_HANDLE,
  CUDA_ERROR_NOT_FOUND,
  CUDA_ERROR_OUT_OF_MEMORY,
} = CUresult;

/** A kernel of a module. */
export interface Kernel extends PtxEntry {
  readonly handle: number;
  readonly context: Context;
  readonly target: number;
  /** Attributes that were set, by number. */
  readonly attributes: Map<number, number>;
}

interface Module {
  readonly handle: number;
  readonly context: Context;
  readonly kernels: readonly Kernel[];
  readonly globals: ReadonlyMap<string, Allocation>;
}

/** The modules of this process and their kernels. */
export class Modules {
  readonly registered: ReadonlyMap<string, RegisteredKernel>;
  readonly #memory: Memory;
  readonly #handles: Handles;
  readonly #modules = new Map<number, Module>();
  readonly #kernels = new Map<number, Kernel>();

  constructor(
    registered: ReadonlyMap<string, RegisteredKernel>,
    memory: Memory,
    contexts: Contexts,
    handles: Handles,
  ) {
    this.registered = registered;
    this.#memory = memory;
    this.#handles = handles;
    contexts.onEnd((context) => {
      // Their globals go with the memory of the context.
      for (const module of [...this.#modules.values()])
        if (module.context === context) this.#forget(module);
    });
  }

  get(handle: number): Module | undefined {
    return this.#modules.get(handle);
  }

  kernel(handle: number): Kernel | undefined {
    return this.#kernels.get(handle);
  }

  /** Undefined where there is no memory for its globals. */
  load(context: Context, { entries, globals, target }: Image): Module | undefined {
    const allocations = new Map<string, Allocation>();
    for (const { name, byteLength, initial } of globals) {
      const allocation = this.#memory.blocks.allocate(context, byteLength);
      if (!allocation) {
        for (const each of allocations.values()) this.#memory.blocks.free(each);
        return undefined;
      }
      allocations.set(name, allocation);
      const bytes = new Uint8Array(byteLength);
      bytes.set(initial.subarray(0, byteLength));
      withAddress(bytes, (from) => this.#memory.copy(allocation.address, from, byteLength));
    }
    const module = {
      handle: this.#handles.make('CUmodule'),
      context,
      globals: allocations,
      kernels: entries.map((entry) => ({
        ...entry,
        handle: this.#handles.make('CUfunction'),
        context,
        target,
        attributes: new Map<number, number>(),
      })),
    };
    this.#modules.set(module.handle, module);
    for (const kernel of module.kernels) this.#kernels.set(kernel.handle, kernel);
    return module;
  }

  unload(module: Module): void {
    this.#forget(module);
    for (const allocation of module.globals.values()) this.#memory.blocks.free(allocation);
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

  /** Writes the compiler's words where the options say, as far as they fit. */
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
      if (out !== 0) host.setUint64(out, found.address);
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
