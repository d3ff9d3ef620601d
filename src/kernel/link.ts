/** Links code of several sources. */
import { OUT0, OUT1, readHandle, readSize } from '../../ffi/arena.ts';
import {
  CU_JIT_INPUT_CUBIN,
  CU_JIT_INPUT_FATBINARY,
  CU_JIT_INPUT_PTX,
} from '../../ffi/constants.ts';
import { cu } from '../../ffi/driver.ts';
import type { FunctionName } from '../../ffi/functions.ts';
import { viewMemory, withAddress } from '../../ffi/native.ts';
import type { CUresult } from '../../ffi/results.ts';
import type { Address, CUlinkState } from '../../ffi/types.ts';
import { cudaError } from '../check.ts';
import { Context, type PlaceOptions } from '../context.ts';
import { checkOptions, formatValue } from '../validate.ts';
import { checkImage, type Image, type ModuleImage } from './image.ts';
import { checkJit, type JitOptions, type JitPairs, withJitOptions } from './jit.ts';

/** Options of {@link link}. The device or context is the target. */
export interface LinkOptions extends PlaceOptions {
  /** How the driver compiles sources that are PTX. */
  readonly jit?: JitOptions;
}

const INPUT_TYPES = {
  PTX: CU_JIT_INPUT_PTX,
  cubin: CU_JIT_INPUT_CUBIN,
  fatbin: CU_JIT_INPUT_FATBINARY,
} as const satisfies Record<Image['kind'], number>;

/** A failed driver call. */
interface Failure {
  readonly status: CUresult;
  readonly call: FunctionName;
  readonly doing: string;
}

/**
 * Links code of several sources, PTX or machine code, to one cubin. Each source may call functions of
 * the others if it was compiled with `--relocatable-device-code=true`. Blocks until the cubin is
 * ready, as {@link Module.load} does.
 *
 * @param sources each as for `Module.load`; the code is trusted
 * @returns a cubin for `Module.load`, for this device only
 * @example
 * const options = ['--relocatable-device-code=true'];
 * const [a, b] = await Promise.all([first, second].map((s) => cuda.compile(s, { options })));
 * using module = cuda.Module.load(cuda.link([a.code, b.code]));
 * @throws CudaError with the linker's log (`error.log`); TypeError, RangeError
 * @see https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__MODULE.html
 */
export function link(
  sources: readonly ModuleImage[],
  options?: LinkOptions,
): Uint8Array<ArrayBuffer> {
  const { jit, ...place } = checkOptions(options, ['jit', 'context', 'device'], 'link');
  if (!Array.isArray(sources))
    throw new TypeError(`sources must be an array of code, not ${formatValue(sources)}`);
  if (sources.length === 0) throw new TypeError('sources is empty: there is nothing to link');
  const images = sources.map((source) => checkImage(source as ModuleImage));
  const pairs = checkJit(jit);
  return Context.resolve(place).run(() => linkImages(images, pairs));
}

function linkImages(images: readonly Image[], pairs: JitPairs): Uint8Array<ArrayBuffer> {
  const { result, errors } = withJitOptions(pairs, (count, options, values) => {
    const created = cu.cuLinkCreate_v2(count, options, values, OUT0);
    if (created !== 0) return failure(created, 'cuLinkCreate_v2', 'beginning to link');
    const state = readHandle<CUlinkState>(OUT0, cu.cuLinkDestroy);
    try {
      return addImages(state, images) ?? completeLink(state, images.length);
    } finally {
      // This frees the cubin; the result is a copy.
      cu.cuLinkDestroy(state);
    }
  });
  if (result instanceof Uint8Array) return result;
  throw cudaError(result.status, result.call, result.doing, errors);
}

function addImages(state: CUlinkState, images: readonly Image[]): Failure | undefined {
  const call = 'cuLinkAddData_v2';
  const none = 0 as Address;
  for (const [n, { kind, bytes }] of images.entries()) {
    const status = withAddress(Buffer.from(`sources[${n}]\0`), (name) =>
      withAddress(bytes, (data) =>
        cu[call](state, INPUT_TYPES[kind], data, bytes.length, name, 0, none, none),
      ),
    );
    if (status !== 0) return failure(status, call, `adding sources[${n}], a ${kind}, to link`);
  }
  return undefined;
}

function completeLink(state: CUlinkState, count: number): Uint8Array<ArrayBuffer> | Failure {
  const status = cu.cuLinkComplete(state, OUT0, OUT1);
  if (status !== 0) return failure(status, 'cuLinkComplete', `linking ${count} sources`);
  return new Uint8Array(viewMemory(readHandle<Address>(OUT0), readSize(OUT1))).slice();
}

const failure = (status: CUresult, call: FunctionName, doing: string): Failure => ({
  status,
  call,
  doing,
});
