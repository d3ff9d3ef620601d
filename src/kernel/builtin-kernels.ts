/** Built-in kernels: copy or fill items that are not contiguous with one launch. */

import { CU_STREAM_LEGACY } from '../../ffi/constants.ts';
import { CUresult } from '../../ffi/results.ts';
import type { Context } from '../context.ts';
import { CudaError, NotSupportedError } from '../errors.ts';
import { isCapturing } from '../graph-capture.ts';
import { Stream } from '../stream.ts';
import { doOtherThreadsWait } from '../waits/waiting-streams.ts';
import { isCaptured } from '../work-tracker.ts';
import {
  copyKernelName,
  copyPtx,
  fillKernelName,
  fillPtx,
  type IndexBits,
  MAX_AXES,
  WORD_LENGTHS,
  type WordLength,
} from './builtin-ptx.ts';
import type { Kernel } from './kernel.ts';
import { Module } from './module.ts';

/** An axis with its strides in bytes. */
export interface StridedAxis {
  readonly length: number;
  readonly source: number;
  readonly target: number;
}

/** The target of a fill: runs of bytes, repeated along the axes. */
export interface StridedTarget {
  readonly context: Context;
  /** The address of the first byte. */
  readonly target: number;
  /** The length of a run in bytes. */
  readonly width: number;
  /** The slowest first. */
  readonly axes: readonly StridedAxis[];
}

/** The target and the source of a copy within a context. */
export interface StridedCopy extends StridedTarget {
  readonly source: number;
}
const THREADS_PER_BLOCK = 256;
const MAX_INT32 = 2 ** 31 - 1;

/** The work of a launch, in which each thread sets one word. */
interface WordPlan {
  readonly word: WordLength;
  readonly bits: IndexBits;
  readonly count: number;
  readonly axisCount: number;
  readonly axes: Uint8Array;
}

/**
 * Queues a copy as one kernel launch.
 *
 * @returns false if there are too many axes, or the kernel is not available
 */
export function queueStridedCopy(copy: StridedCopy, stream: Stream | undefined): boolean {
  const { context, target, source } = copy;
  const words = planWords(copy, [target, source]);
  const kernel =
    words && builtinKernel(context, 'copy', copyKernelName(words.word, words.bits), stream);
  if (!words || !kernel) return false;
  const { count, axisCount, axes } = words;
  kernel.launch(launchConfigFor(count, context, stream), target, source, count, axisCount, axes);
  return true;
}

/**
 * Queues a fill of all items as one kernel launch. Each run is filled with repetitions of the value.
 *
 * @returns false if the items are not aligned to words that hold whole values, or as for copies
 */
export function queueStridedFill(
  place: StridedTarget,
  value: Uint8Array,
  stream: Stream | undefined,
): boolean {
  const { context, target } = place;
  const words = planWords(place, [target]);
  if (!words || words.word % value.length !== 0) return false;
  const kernel = builtinKernel(context, 'fill', fillKernelName(words.word, words.bits), stream);
  if (!kernel) return false;
  const { count, axisCount, axes } = words;
  const pattern = new BigUint64Array(2);
  const bytes = new Uint8Array(pattern.buffer);
  for (let offset = 0; offset < bytes.length; offset += value.length) bytes.set(value, offset);
  const [low, high] = [pattern[0] as bigint, pattern[1] as bigint];
  kernel.launch(launchConfigFor(count, context, stream), target, low, high, count, axisCount, axes);
  return true;
}

/** Splits items into the longest words to which all are aligned; undefined for too many axes. */
function planWords(
  { width, axes }: StridedTarget,
  addresses: readonly number[],
): WordPlan | undefined {
  const steps = [width, ...addresses, ...axes.flatMap(({ source, target }) => [source, target])];
  const word = WORD_LENGTHS.findLast((length) => steps.every((step) => step % length === 0)) ?? 1;
  const run = width === word ? [] : [{ length: width / word, source: word, target: word }];
  const fastestFirst = [...run, ...axes.toReversed()];
  if (fastestFirst.length > MAX_AXES) return undefined;
  const count = fastestFirst.reduce((product, { length }) => product * length, 1);
  const numbers = fastestFirst.flatMap(({ length, source, target }) => [length, source, target]);
  const fitsInt32 = count <= MAX_INT32 && numbers.every((number) => Math.abs(number) <= MAX_INT32);
  const table = new BigInt64Array(3 * MAX_AXES);
  for (const [n, { length, source, target }] of fastestFirst.entries()) {
    table[n] = BigInt(length);
    table[MAX_AXES + n] = BigInt(target);
    table[2 * MAX_AXES + n] = BigInt(source);
  }
  return {
    word,
    bits: fitsInt32 ? 32 : 64,
    count,
    axisCount: fastestFirst.length,
    axes: new Uint8Array(table.buffer),
  };
}

const launchConfigFor = (
  count: number,
  context: Context,
  stream: Stream | undefined,
): { readonly grid: number; readonly block: number; readonly stream: Stream } => ({
  grid: Math.ceil(count / THREADS_PER_BLOCK),
  block: THREADS_PER_BLOCK,
  stream: stream ?? Stream.legacyDefault({ context }),
});

// ---- The kernels, loaded in a context at their first use ----

const AXES = { bytes: 192, align: 8 } as const;
const COPY = ['pointer', 'pointer', 'uint64', 'uint32', AXES] as const;
const FILL = ['pointer', 'uint64', 'uint64', 'uint64', 'uint32', AXES] as const;

/** The PTX and the parameters of each module. */
const builtinModules = {
  copy: { ptx: copyPtx, params: COPY },
  fill: { ptx: fillPtx, params: FILL },
} as const;

type BuiltinModule = keyof typeof builtinModules;
type BuiltinSource = (typeof builtinModules)[BuiltinModule];
type BuiltinKernel<P extends BuiltinModule> = Kernel<(typeof builtinModules)[P]['params']>;

/** A loaded module with its kernels by name; the module is undefined if the driver rejected it. */
interface Loaded {
  readonly module: Module | undefined;
  readonly kernels: Map<string, Kernel<never>>;
}

const loadedByContext = new WeakMap<Context, Map<BuiltinModule, Loaded>>();

/**
 * Returns a kernel by its name, for a launch in a stream of the context.
 *
 * Returns undefined if the driver rejects the module or the stream belongs to another context. Also
 * returns undefined if the module is not loaded yet and cannot be loaded now.
 */
export function builtinKernel<P extends BuiltinModule>(
  context: Context,
  purpose: P,
  name: string,
  stream: Stream | undefined,
): BuiltinKernel<P> | undefined {
  if (stream && stream.context !== context) return undefined;
  const loadedModule = loadOnce(context, purpose, stream);
  if (!loadedModule?.module) return undefined;
  const kernel =
    loadedModule.kernels.get(name) ??
    loadedModule.module.kernel(name, builtinModules[purpose].params);
  loadedModule.kernels.set(name, kernel as Kernel<never>);
  return kernel as BuiltinKernel<P>;
}

/**
 * Loads the kernels of a context before a capture, which then records the same work as any later one:
 * kernels cannot be loaded in it. Does nothing if they are loaded, or the context is busy.
 */
export function loadBuiltinKernels(context: Context): void {
  loadOnce(context, 'copy', undefined);
  loadOnce(context, 'fill', undefined);
}

/** @param stream the stream of the launch */
function loadOnce(
  context: Context,
  purpose: BuiltinModule,
  stream: Stream | undefined,
): Loaded | undefined {
  const modules = loadedByContext.get(context) ?? new Map<BuiltinModule, Loaded>();
  loadedByContext.set(context, modules);
  const known = modules.get(purpose);
  if (known && !known.module?.closed) return known;
  if (isAnyCaptured(context, stream) || isBusy(context)) return undefined;
  const loaded = loadBuiltin(context, purpose);
  if (loaded) modules.set(purpose, loaded);
  return loaded;
}

/**
 * Whether work is captured, here or by another library. Must come before any question about the work of
 * streams, which would end the capture.
 */
const isAnyCaptured = (context: Context, stream: Stream | undefined): boolean =>
  isCapturing() ||
  // The answer for the legacy default stream covers all blocking streams.
  context.run(
    () => isCaptured(CU_STREAM_LEGACY) || (stream !== undefined && isCaptured(stream.queryHandle)),
  );

/** Loading may wait for the device, whose work may wait for this process. */
const isBusy = (context: Context): boolean =>
  !context.workTracker.areStreamsIdle() || doOtherThreadsWait(context);

/** Returns undefined after a transient error, so that a later call tries again. */
function loadBuiltin(context: Context, purpose: BuiltinModule): Loaded | undefined {
  const kernels = new Map<string, Kernel<never>>();
  try {
    return { module: loadAll(context, builtinModules[purpose]), kernels };
  } catch (error) {
    if (!(error instanceof CudaError)) throw error;
    const isTransient = error.status === CUresult.CUDA_ERROR_OUT_OF_MEMORY || error.sticky;
    return isTransient ? undefined : { module: undefined, kernels };
  }
}

/**
 * Loads a module with all of its kernels. Drivers before CUDA 12.4 cannot list them. Of those, some load
 * a kernel when its handle is first asked for.
 */
function loadAll(context: Context, { ptx: write, params }: BuiltinSource): Module {
  const ptx = write();
  try {
    return Module.load(ptx, { context, loading: 'eager' });
  } catch (error) {
    if (!(error instanceof NotSupportedError)) throw error;
  }
  const module = Module.load(ptx, { context });
  try {
    for (const [, name] of ptx.matchAll(/\.entry (\w+)/g)) module.kernel(String(name), params);
    return module;
  } catch (error) {
    module.close();
    throw error;
  }
}
