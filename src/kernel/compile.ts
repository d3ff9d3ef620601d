/** Compiles CUDA C++ at run time by libnvrtc. */

import { inspect } from 'node:util';
import { checkDeadline, type WaitOptions, withDeadline } from '../deadline.ts';
import { describeObject } from '../inspect.ts';
import { assertInternal, checkOptions } from '../validate.ts';
import type { CodeKind } from './architecture.ts';
import { CompileCache } from './compile-cache.ts';
import {
  type CompiledInit,
  type CompileOptions,
  type CompileRequest,
  checkRequest,
  OPTION_NAMES,
} from './compile-options.ts';
import { Program } from './nvrtc-program.ts';

/**
 * Compiles CUDA C++ for a device by libnvrtc, on another thread. The library is found through
 * `CUFFI_NVRTC`, or where the loader, the CUDA toolkit, pip or conda have installed it. Results are
 * cached on disk in the folder `CUFFI_CACHE`, by default `cuffi` in the user's cache folder.
 * `CUFFI_CACHE=off` or `{ cache: false }` disables the cache. A `signal` or `timeoutMs` ends the wait;
 * a compilation that has begun goes on, one that has not is left out.
 *
 * CUDA's own headers (`cuda_fp16.h`, `cooperative_groups.h`) are found where they are installed.
 *
 * @example
 * const { code } = await cuda.compile(`
 *   extern "C" __global__ void twice(float *x, unsigned n) {
 *     unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
 *     if (i < n) x[i] *= 2;
 *   }`);
 * using module = cuda.Module.load(code);
 * @throws CompileError with the compiler's log and the first line at fault; CompilerNotFoundError;
 * TypeError, RangeError; CudaError where the device cannot be asked for its architecture
 * @see https://docs.nvidia.com/cuda/nvrtc/index.html
 */
export async function compile<K extends CodeKind = 'ptx'>(
  source: string,
  options?: CompileOptions<K> & WaitOptions,
): Promise<CompiledCode<K>> {
  const optionNames = [...OPTION_NAMES, 'signal', 'timeoutMs'] as const;
  const { signal, timeoutMs, ...given } = checkOptions(options, optionNames, 'compile');
  const limits = checkDeadline({ signal, timeoutMs }, 'compile');
  signal?.throwIfAborted();
  const request = checkRequest(source, given as CompileOptions<K>, 'compile');
  const cache = CompileCache.forRequest(request);
  const cached = cache?.read();
  if (cached) return new CompiledCode(cached);
  let isAbandoned = false;
  const work = async (): Promise<CompiledCode<K>> => {
    if (isAbandoned) throw new Error('nobody waits for this code: it is not compiled');
    using program = new Program(request);
    return toCompiledCode(await program.compile(), cache);
  };
  return withDeadline<CompiledCode<K>>(limits, 'compile', (resolve, reject) => {
    limitConcurrency(work).then(resolve, reject);
    return () => {
      isAbandoned = true;
    };
  });
}

/** As {@link compile}, but blocks until the result is ready, often half a second. */
export function compileSync<K extends CodeKind = 'ptx'>(
  source: string,
  options?: CompileOptions<K>,
): CompiledCode<K> {
  const request: CompileRequest<K> = checkRequest(source, options, 'compileSync');
  const cache = CompileCache.forRequest(request);
  const cached = cache?.read();
  if (cached) return new CompiledCode(cached);
  using program = new Program(request);
  return toCompiledCode(program.compileSync(), cache);
}

/**
 * A compiled source: the code for `Module.load`, and the names of its kernels.
 *
 * @example
 * const compiled = await cuda.compile(source, { names: ['scale<float>'] });
 * using module = cuda.Module.load(compiled.code);
 * const scale = module.kernel(compiled.name('scale<float>'), ['pointer', 'float32', 'uint32']);
 */
export class CompiledCode<out K extends CodeKind = CodeKind> {
  readonly kind: K;
  /** Text for `'ptx'`, bytes for `'cubin'`. */
  readonly code: K extends 'cubin' ? Uint8Array : string;
  /** The compiler's log: warnings, if there are any. */
  readonly log: string;
  readonly #names: ReadonlyMap<string, string>;

  /** @internal */
  constructor(init: CompiledInit<K>) {
    assertInternal(init, Object, 'CompiledCode', 'compile');
    const { kind, code, log, names } = init;
    this.kind = kind;
    this.code = (
      kind === 'cubin'
        ? code
        : Buffer.from(code.buffer, code.byteOffset, code.byteLength).toString()
    ) as CompiledCode<K>['code'];
    this.log = log;
    this.#names = names;
  }

  /**
   * Returns the mangled name of a kernel, by its expression in `names`. `extern "C"` kernels keep
   * their names and need no expression.
   *
   * @throws RangeError for an expression that is not in `names`
   */
  name(expression: string): string {
    const name = this.#names.get(expression);
    if (name !== undefined) return name;
    const known = [...this.#names.keys()].join(', ') || 'none';
    throw new RangeError(
      `'${String(expression)}' is not among the names that were compiled: ${known}`,
    );
  }

  [inspect.custom](): string {
    return describeObject('CompiledCode', () => [this.kind, `${this.code.length} bytes`]);
  }
}

// ---- Machinery ----

function toCompiledCode<K extends CodeKind>(
  compiled: CompiledInit<K>,
  cache: CompileCache<K> | undefined,
): CompiledCode<K> {
  cache?.write(compiled);
  return new CompiledCode(compiled);
}

/** Each compilation occupies one of libuv's four threads, which files and DNS need as well. */
const MAX_CONCURRENT = 2;

let running = 0;
const waitingStarts: (() => void)[] = [];

/** Runs at most that many compilations at once; the others wait. */
async function limitConcurrency<T>(work: () => Promise<T>): Promise<T> {
  if (running < MAX_CONCURRENT) running += 1;
  else await new Promise<void>((resolve) => waitingStarts.push(resolve));
  try {
    return await work();
  } finally {
    const next = waitingStarts.shift();
    // The next one takes over this place, so the count stays the same.
    if (next) next();
    else running -= 1;
  }
}
