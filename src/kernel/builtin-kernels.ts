/** Items that do not follow each other, copied or set by one launch of a kernel of cuffi's own. */

import { CUresult } from '../../ffi/results.ts';
import type { Context } from '../context.ts';
import { CudaError } from '../errors.ts';
import { isCapturing } from '../graph-capture.ts';
import { Stream } from '../stream.ts';
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
import { comparePtx } from './ptx/compare.ts';

/** An axis by its strides in bytes. */
export interface StridedAxis {
  readonly length: number;
  readonly source: number;
  readonly target: number;
}

/** Where items are set: runs of bytes at every place that the axes lead to. */
export interface StridedTarget {
  readonly context: Context;
  /** The address of the first byte. */
  readonly target: number;
  /** The bytes of a run. */
  readonly width: number;
  /** The slowest first. */
  readonly axes: readonly StridedAxis[];
}

/** Where items are copied to and from, within a context. */
export interface StridedCopy extends StridedTarget {
  readonly source: number;
}

const THREADS_PER_BLOCK = 256;
const MAX_INT32 = 2 ** 31 - 1;

/** What a launch has for its threads, each of which sets one word. */
interface WordPlan {
  readonly word: WordLength;
  readonly bits: IndexBits;
  readonly count: number;
  readonly axisCount: number;
  readonly axes: Uint8Array;
}

/**
 * Queues a copy as one launch.
 *
 * @returns false where that cannot be: there are too many axes, or the kernels are not to be had
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
 * Queues the setting of all items to a value, as one launch; runs hold one value after the other.
 *
 * @returns false where that cannot be: no word of up to 16 bytes holds a value wherever it lies
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
  const [low = 0n, high = 0n] = pattern;
  kernel.launch(launchConfigFor(count, context, stream), target, low, high, count, axisCount, axes);
  return true;
}

/** The longest words that items are made of wherever they lie; undefined for too many axes. */
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

/** The kernels that cuffi has of its own: loaded in a context when they are first wanted. */

const AXES = { bytes: 192, align: 8 } as const;
const COPY = ['pointer', 'pointer', 'uint64', 'uint32', AXES] as const;
const FILL = ['pointer', 'uint64', 'uint64', 'uint64', 'uint32', AXES] as const;

const COMPARE = ['pointer', 'pointer', 'uint64', 'pointer'] as const;

/** What the kernels of each purpose take, and are loaded from. */
const builtinModules = {
  copy: { ptx: copyPtx, params: COPY },
  fill: { ptx: fillPtx, params: FILL },
  compare: { ptx: () => comparePtx, params: COMPARE },
} as const;

type BuiltinModule = keyof typeof builtinModules;
type BuiltinKernel<P extends BuiltinModule> = Kernel<(typeof builtinModules)[P]['params']>;

/** What was loaded in a context, and its kernels by name; a driver that refused it is not asked again. */
interface Loaded {
  readonly module: Module | undefined;
  readonly kernels: Map<string, Kernel<never>>;
}

const loadedByContext = new WeakMap<Context, Map<BuiltinModule, Loaded>>();

/**
 * A kernel by its name, to be launched in a stream of the context.
 *
 * Undefined where it cannot be had: the driver refuses it; the stream is another context's; or work
 * is under way, or captured, while it is not loaded yet. Loading may wait for the device, and what
 * runs there may be waiting for this process.
 */
export function builtinKernel<P extends BuiltinModule>(
  context: Context,
  purpose: P,
  name: string,
  stream: Stream | undefined,
): BuiltinKernel<P> | undefined {
  if (stream && stream.context !== context) return undefined;
  const loadedModule = loadOnce(context, purpose);
  if (!loadedModule?.module) return undefined;
  const kernel =
    loadedModule.kernels.get(name) ??
    loadedModule.module.kernel(name, builtinModules[purpose].params);
  loadedModule.kernels.set(name, kernel as Kernel<never>);
  return kernel as BuiltinKernel<P>;
}

function loadOnce(context: Context, purpose: BuiltinModule): Loaded | undefined {
  const all = loadedByContext.get(context) ?? new Map<BuiltinModule, Loaded>();
  loadedByContext.set(context, all);
  const known = all.get(purpose);
  if (known && !known.module?.closed) return known;
  if (isCapturing() || !context.workTracker.areStreamsIdle()) return undefined;
  const own = loadBuiltin(context, purpose);
  if (own) all.set(purpose, own);
  return own;
}

/** Undefined where it may be had another time. */
function loadBuiltin(context: Context, purpose: BuiltinModule): Loaded | undefined {
  const kernels = new Map<string, Kernel<never>>();
  try {
    const module = Module.load(builtinModules[purpose].ptx(), { context, loading: 'eager' });
    return { module, kernels };
  } catch (error) {
    if (!(error instanceof CudaError)) throw error;
    const isTransient = error.status === CUresult.CUDA_ERROR_OUT_OF_MEMORY || error.sticky;
    return isTransient ? undefined : { module: undefined, kernels };
  }
}
