/** The kernels that cuffi has of its own: loaded in a context when they are first wanted. */
import { CUresult } from '../../ffi/results.ts';
import { isCapturing } from '../capture.ts';
import type { Context } from '../context.ts';
import { CudaError } from '../errors.ts';
import type { Stream } from '../stream.ts';
import type { Kernel } from './kernel.ts';
import { Module } from './module.ts';
import { comparePtx } from './ptx/compare.ts';
import { copyPtx, fillPtx } from './ptx/strided.ts';

const AXES = { bytes: 192, align: 8 } as const;
const COPY = ['pointer', 'pointer', 'uint64', 'uint32', AXES] as const;
const FILL = ['pointer', 'uint64', 'uint64', 'uint64', 'uint32', AXES] as const;

const COMPARE = ['pointer', 'pointer', 'uint64', 'pointer'] as const;

/** What the kernels of each purpose take, and are loaded from. */
const purposes = {
  copy: { ptx: copyPtx, params: COPY },
  fill: { ptx: fillPtx, params: FILL },
  compare: { ptx: () => comparePtx, params: COMPARE },
} as const;

type Purpose = keyof typeof purposes;
type KernelOf<P extends Purpose> = Kernel<(typeof purposes)[P]['params']>;

/** What was loaded in a context, and its kernels by name; a driver that refused it is not asked again. */
interface Loaded {
  readonly module: Module | undefined;
  readonly kernels: Map<string, Kernel<never>>;
}

const loaded = new WeakMap<Context, Map<Purpose, Loaded>>();

/**
 * A kernel by its name, to be launched in a stream of the context.
 *
 * Undefined where it cannot be had: the driver refuses it; the stream is another context's; or work
 * is under way, or captured, while it is not loaded yet. Loading may wait for the device, and what
 * runs there may be waiting for this process.
 */
export function ownKernel<P extends Purpose>(
  context: Context,
  purpose: P,
  name: string,
  stream: Stream | undefined,
): KernelOf<P> | undefined {
  if (stream && stream.context !== context) return undefined;
  const own = loadedIn(context, purpose);
  if (!own?.module) return undefined;
  const kernel = own.kernels.get(name) ?? own.module.kernel(name, purposes[purpose].params);
  own.kernels.set(name, kernel as Kernel<never>);
  return kernel as KernelOf<P>;
}

function loadedIn(context: Context, purpose: Purpose): Loaded | undefined {
  const all = loaded.get(context) ?? new Map<Purpose, Loaded>();
  loaded.set(context, all);
  const known = all.get(purpose);
  if (known && !known.module?.closed) return known;
  if (isCapturing() || !context.activity.isIdle()) return undefined;
  const own = load(context, purpose);
  if (own) all.set(purpose, own);
  return own;
}

/** Undefined where it may be had another time. */
function load(context: Context, purpose: Purpose): Loaded | undefined {
  const kernels = new Map<string, Kernel<never>>();
  try {
    const module = Module.load(purposes[purpose].ptx(), { context, loading: 'eager' });
    return { module, kernels };
  } catch (error) {
    if (!(error instanceof CudaError)) throw error;
    const isPassing = error.status === CUresult.CUDA_ERROR_OUT_OF_MEMORY || error.sticky;
    return isPassing ? undefined : { module: undefined, kernels };
  }
}
