import { readFileSync } from 'node:fs';
import { readFile } from 'node:fs/promises';
import { OUT0, OUT1, readHandle, readSize, readUint32 } from '../../ffi/arena.ts';
import { cu } from '../../ffi/driver.ts';
import type { FunctionName } from '../../ffi/functions.ts';
import { stringAt, withAddress } from '../../ffi/native.ts';
import { CUresult } from '../../ffi/results.ts';
import type { Address, CUdeviceptr, CUfunction, CUmodule } from '../../ffi/types.ts';
import { check, cudaError } from '../check.ts';
import { Context, type PlaceOptions } from '../context.ts';
import type { CudaError } from '../errors.ts';
import { type Details, placeName } from '../inspect.ts';
import { Resource } from '../lifetime.ts';
import { DeviceBuffer } from '../memory/buffer.ts';
import { assertInternal, checkOptions, formatValue } from '../validate.ts';
import { assertNoStreamWaits } from '../waits/waiting-streams.ts';
import { checkImage, LINK_FIRST, type Linkage, linkageOf, type ModuleImage } from './image.ts';
import { checkJit, type JitOptions, loadImage } from './jit.ts';
import { Kernel } from './kernel.ts';
import {
  checkParameters,
  type Parameter,
  parameterByteLength,
  parameterName,
} from './kernel-arguments.ts';

/** Options of {@link Module.load}. */
export interface ModuleOptions extends PlaceOptions {
  /** How the driver compiles PTX. */
  readonly jit?: JitOptions;
  /**
   * Whether all kernels are loaded now, or each at its first use. Lazy loading is the driver's default
   * unless CUDA_MODULE_LOADING is `EAGER`. Default `lazy`.
   */
  readonly loading?: 'lazy' | 'eager';
}

/**
 * Code loaded in a context: kernels and global variables.
 *
 * `close()` never waits: it closes the kernels and globals at once, and unloads the module when the
 * context is idle.
 *
 * @example
 * using module = cuda.Module.load(ptx);
 * const saxpy = module.kernel('saxpy', ['float32', 'float32*', 'float32*', 'uint32']);
 * saxpy.launch({ grid: 4, block: 256 }, 2.5, x, y, 1024);
 * @see https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__MODULE.html
 */
export class Module extends Resource {
  readonly context: Context;
  /** The compiler's log: warnings, and with `jit: { verbose: true }` the resources of each kernel. */
  readonly log: string;
  readonly #handle: CUmodule;
  readonly #linkage: Linkage;

  private constructor(context: Context, handle: CUmodule, log: string, linkage: Linkage) {
    assertInternal(context, Context, 'Module', 'Module.load');
    const { releases, epoch } = context;
    super('Module', {
      owner: context.resources,
      release: () =>
        // cuModuleUnload may block until the context is idle.
        releases.enqueue(() => {
          if (context.epoch === epoch) check(cu.cuModuleUnload(handle), 'cuModuleUnload');
        }),
    });
    this.context = context;
    this.log = log;
    this.#handle = handle;
    this.#linkage = linkage;
  }

  /** @internal */
  protected override describe(): Details {
    return [placeName(this.context)];
  }

  /**
   * Loads PTX, which the driver compiles for the device and caches, or machine code. Blocks until the
   * code is loaded, which takes some seconds for large PTX.
   *
   * @param source PTX as text; PTX, a cubin or a fatbin as bytes. The code is trusted
   * @throws CudaError with the compiler's log (`error.log`); CuffiError while a stream of the context
   * waits for another process, which would block the call; TypeError, RangeError
   */
  static load(source: ModuleImage, options?: ModuleOptions): Module {
    const { jit, loading, ...place } = checkOptions(
      options,
      ['context', 'device', 'jit', 'loading'],
      'Module.load',
    );
    const image = checkImage(source);
    const pairs = checkJit(jit);
    if (loading !== undefined && loading !== 'lazy' && loading !== 'eager')
      throw new TypeError(`loading must be 'lazy' or 'eager', not ${formatValue(loading)}`);
    const context = Context.resolve(place);
    assertNoStreamWaits(
      context,
      'loading code',
      'Load it before streams wait, or after their waits.',
    );
    const { handle, log } = context.run(() => {
      const loaded = loadImage(image, pairs);
      if (loading === 'eager') loadFunctions(loaded.handle);
      return loaded;
    });
    return new Module(context, handle, log, linkageOf(image));
  }

  /** As {@link load}, from a file. */
  static async fromFile(path: string | URL, options?: ModuleOptions): Promise<Module> {
    return Module.load(await readFile(path), options);
  }

  /** As {@link fromFile}, but also blocks while the file is read. */
  static fromFileSync(path: string | URL, options?: ModuleOptions): Module {
    return Module.load(readFileSync(path), options);
  }

  /** The driver's handle, a CUmodule. @throws ClosedError */
  get handle(): CUmodule {
    if (this.closed) throw this.closedError();
    return this.#handle;
  }

  /**
   * The names of the kernels.
   *
   * @throws NotSupportedError before CUDA 12.4
   */
  get kernelNames(): readonly string[] {
    const { handle } = this;
    return functionNames(handle);
  }

  /**
   * Returns a kernel by its name in the PTX, which C++ mangles unless it is `extern "C"`. From CUDA
   * 12.4 on, the number and the sizes of the parameters are checked.
   *
   * @param params the types of its parameters, in order: see {@link Parameter}
   * @throws CudaError CUDA_ERROR_NOT_FOUND; TypeError for parameters that do not match the kernel
   */
  kernel<const P extends readonly Parameter[]>(name: string, params: P): Kernel<P> {
    const zeroTerminated = zeroTerminatedName(name, 'name');
    const types = checkParameters(params);
    const { handle } = this;
    const call = 'cuModuleGetFunction';
    const status = withAddress(zeroTerminated, (at) => cu[call](OUT0, handle, at));
    if (status === CUresult.CUDA_ERROR_NOT_FOUND)
      throw missingKernelError(name, namesIfListed(handle), this.#linkage);
    check(status, call, () => `looking for kernel ${name}`);
    const found = readHandle<CUfunction>(OUT0);
    assertParameterSizes(found, name, types);
    return new Kernel(this, name, found, types);
  }

  /**
   * Returns a global variable (`__device__`, `__constant__`, `__managed__`) as a buffer. The memory belongs
   * to the module and is closed with it.
   *
   * @throws CudaError CUDA_ERROR_NOT_FOUND
   */
  global(name: string): DeviceBuffer {
    const { handle, context } = this;
    const zeroTerminated = zeroTerminatedName(name, 'name');
    const call = 'cuModuleGetGlobal_v2';
    const status = withAddress(zeroTerminated, (at) => cu[call](OUT0, OUT1, handle, at));
    const doing = `looking for the global ${name}`;
    if (status === CUresult.CUDA_ERROR_NOT_FOUND && this.#linkage.isRelocatable)
      throw cudaError(status, call, doing, undefined, LINK_FIRST);
    check(status, call, () => doing);
    return new DeviceBuffer({
      context,
      address: readHandle<CUdeviceptr>(OUT0),
      byteLength: readSize(OUT1),
      origin: 'borrowed',
      keepalive: this,
    });
  }
}

function zeroTerminatedName(name: string, what: string): Uint8Array {
  if (typeof name !== 'string' || name === '' || name.includes('\0'))
    throw new TypeError(`${what} must be a name, not ${formatValue(name)}`);
  return Buffer.from(`${name}\0`);
}

// ---- Why a kernel is not found ----

/** @param names the kernels of the module; undefined if the driver cannot list them */
function missingKernelError(
  name: string,
  names: readonly string[] | undefined,
  { isRelocatable, kernels }: Linkage,
): CudaError {
  const all = isRelocatable ? kernels : names;
  const list = all && `, in a module that has ${all.slice(0, 20).join(', ') || 'none'}`;
  const doing = `looking for kernel ${name}${list ?? ''}`;
  const status = CUresult.CUDA_ERROR_NOT_FOUND;
  const hint = missingKernelHint(name, all, isRelocatable);
  return cudaError(status, 'cuModuleGetFunction', doing, undefined, hint);
}

/** Undefined for the hint of the call. */
function missingKernelHint(
  name: string,
  names: readonly string[] | undefined,
  isRelocatable: boolean | undefined,
): string | undefined {
  // A mangled name contains the name with its length.
  const inMangled = new RegExp(`^_Z.*(?<!\\d)${name.length}${escapeForRegExp(name)}`);
  const mangled = names?.find((each) => inMangled.test(each));
  const mangledHint =
    mangled &&
    `C++ mangles the names of kernels: use ${mangled}, or declare the kernel extern "C".`;
  if (isRelocatable) return [LINK_FIRST, mangledHint].filter(Boolean).join(' ');
  // The kernels of code that must be linked are not listed.
  if (isRelocatable === undefined && !names?.length)
    return `If the code was compiled with nvcc -rdc=true, link it first: Module.load(link([code])). Else, C++ mangles the names of kernels: declare the kernel extern "C".`;
  return mangledHint;
}

const escapeForRegExp = (text: string): string => text.replaceAll(/[^\w]/g, '\\$&');

/** The kernels of a module; undefined if the driver cannot list them. */
function namesIfListed(handle: CUmodule): readonly string[] | undefined {
  try {
    return functionNames(handle);
  } catch {
    return undefined;
  }
}

// ---- Functions of a module, listed by drivers from CUDA 12.4 on ----

const checkListing = (status: CUresult, call: FunctionName): void =>
  check(status, call, () => 'listing the kernels of a module');

/** The functions of a module. @throws NotSupportedError before 12.4 */
function functionsOf(module: CUmodule): readonly CUfunction[] {
  checkListing(cu.cuModuleGetFunctionCount(OUT0, module), 'cuModuleGetFunctionCount');
  const count = readUint32(OUT0);
  if (count === 0) return [];
  const handles = new BigUint64Array(count);
  const status = withAddress(handles, (at) => cu.cuModuleEnumerateFunctions(at, count, module));
  checkListing(status, 'cuModuleEnumerateFunctions');
  return Array.from(handles, (handle) => Number(handle) as CUfunction);
}

/** @throws NotSupportedError before 12.4 */
const functionNames = (module: CUmodule): readonly string[] =>
  functionsOf(module).map((each) => {
    checkListing(cu.cuFuncGetName(OUT0, each), 'cuFuncGetName');
    return stringAt(readHandle<Address>(OUT0));
  });

/** Loads all functions of a module; unloads the module if that fails. */
function loadFunctions(module: CUmodule): void {
  try {
    for (const each of functionsOf(module)) checkListing(cu.cuFuncLoad(each), 'cuFuncLoad');
  } catch (error) {
    cu.cuModuleUnload(module);
    throw error;
  }
}

/**
 * Compares the given parameters with the kernel's, from CUDA 12.4 on. With a wrong one the driver
 * would read beyond the arguments.
 *
 * @throws TypeError
 */
function assertParameterSizes(
  kernel: CUfunction,
  name: string,
  params: readonly Parameter[],
): void {
  const byteLengths: number[] = [];
  for (;;) {
    const status = cu.cuFuncGetParamInfo(kernel, byteLengths.length, OUT0, OUT1);
    if (status === CUresult.CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER) return;
    if (status === CUresult.CUDA_ERROR_INVALID_VALUE) break;
    check(status, 'cuFuncGetParamInfo');
    byteLengths.push(readSize(OUT1));
  }
  if (byteLengths.length !== params.length)
    throw new TypeError(
      `kernel ${name} takes ${byteLengths.length} parameters, not ${params.length}`,
    );
  params.forEach((param, at) => {
    if (parameterByteLength(param) !== byteLengths[at])
      throw new TypeError(
        `parameter ${at} of kernel ${name} has ${byteLengths[at]} bytes: ${parameterName(param)} has ${parameterByteLength(param)}`,
      );
  });
}
