/** Loading code into a context: the driver's compiler, its options and its words. */
import { OUT0, readHandle } from '../../ffi/arena.ts';
import {
  CU_JIT_ERROR_LOG_BUFFER,
  CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES,
  CU_JIT_GENERATE_DEBUG_INFO,
  CU_JIT_GENERATE_LINE_INFO,
  CU_JIT_INFO_LOG_BUFFER,
  CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES,
  CU_JIT_LOG_VERBOSE,
  CU_JIT_MAX_REGISTERS,
  CU_JIT_OPTIMIZATION_LEVEL,
} from '../../ffi/constants.ts';
import { cu } from '../../ffi/driver.ts';
import { withAddress } from '../../ffi/native.ts';
import { CUresult } from '../../ffi/results.ts';
import type { Address, CUmodule } from '../../ffi/types.ts';
import { checkBoolean, checkInteger, checkOptions, shown } from '../arguments.ts';
import { cudaError } from '../check.ts';
import type { Image } from './image.ts';

/** How the driver compiles PTX; machine code is loaded as it is. */
export interface JitOptions {
  /** The most registers of a thread: fewer let more threads run, and may spill. */
  readonly maxRegisters?: number;
  /** From 0 to 4. Default 4. */
  readonly optimizationLevel?: number;
  /** Whether profilers and debuggers can tell source lines. Default false. */
  readonly lineInfo?: boolean;
  /** Whether to compile for a debugger. Default false. */
  readonly debug?: boolean;
  /** Whether `module.log` tells the resources of each kernel. Default false. */
  readonly verbose?: boolean;
}

/** What the driver takes: options by number, and a word for each. */
export type JitPairs = readonly (readonly [option: number, value: number])[];

const LOG = 16_384;

/** @throws TypeError, RangeError */
export function checkJit(options: JitOptions | undefined): JitPairs {
  const { maxRegisters, optimizationLevel, lineInfo, debug, verbose } = checkOptions(
    options,
    ['maxRegisters', 'optimizationLevel', 'lineInfo', 'debug', 'verbose'],
    'jit',
  );
  const pairs: [number, number][] = [];
  if (maxRegisters !== undefined)
    pairs.push([CU_JIT_MAX_REGISTERS, checkInteger(maxRegisters, 'maxRegisters', 1, 255)]);
  if (optimizationLevel !== undefined) {
    const level = checkInteger(optimizationLevel, 'optimizationLevel', 0, 4);
    pairs.push([CU_JIT_OPTIMIZATION_LEVEL, level]);
  }
  if (checkBoolean(lineInfo, 'lineInfo', false)) pairs.push([CU_JIT_GENERATE_LINE_INFO, 1]);
  if (checkBoolean(debug, 'debug', false)) pairs.push([CU_JIT_GENERATE_DEBUG_INFO, 1]);
  if (checkBoolean(verbose, 'verbose', false)) pairs.push([CU_JIT_LOG_VERBOSE, 1]);
  return pairs;
}

/** What the driver's compiler or linker answered, and wrote. */
interface Logged<T> {
  readonly result: T;
  /** Information and warnings. */
  readonly log: string;
  /** Errors, and the information after them. */
  readonly errors: string;
}

/**
 * Calls `use` with options as the driver takes them, those for its words among them. All of it is
 * valid until `use` returns.
 */
export function withJitOptions<T>(
  pairs: JitPairs,
  use: (count: number, options: Address, values: Address) => T,
): Logged<T> {
  const info = Buffer.alloc(LOG);
  const errors = Buffer.alloc(LOG);
  const result = withAddress(info, (infoAt) =>
    withAddress(errors, (errorsAt) => {
      const all: JitPairs = [
        [CU_JIT_INFO_LOG_BUFFER, infoAt],
        [CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES, LOG],
        [CU_JIT_ERROR_LOG_BUFFER, errorsAt],
        [CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES, LOG],
        ...pairs,
      ];
      // The options are 32-bit numbers, and the values words of 64: numbers cast to pointers.
      const options = Buffer.from(Uint32Array.from(all, ([option]) => option).buffer);
      const values = Buffer.from(BigUint64Array.from(all, ([, value]) => BigInt(value)).buffer);
      return withAddress(options, (optionsAt) =>
        withAddress(values, (valuesAt) => use(all.length, optionsAt, valuesAt)),
      );
    }),
  );
  const log = textOf(info);
  return { result, log, errors: [textOf(errors), log].filter(Boolean).join('\n') };
}

/**
 * Loads code into the context that is current.
 *
 * @throws CudaError with what the compiler wrote
 */
export function loadImage(
  image: Image,
  pairs: JitPairs,
): { readonly handle: CUmodule; readonly log: string } {
  const call = 'cuModuleLoadDataEx';
  const { result, log, errors } = withJitOptions(pairs, (count, options, values) =>
    withAddress(image.bytes, (at) => cu[call](OUT0, at, count, options, values)),
  );
  if (result !== 0)
    throw cudaError(result, call, `loading ${described(image, result)}`, errors);
  return { handle: readHandle<CUmodule>(OUT0, cu.cuModuleUnload), log };
}

/** Code in a few words; how it begins, where the driver does not know what it is. */
function described({ kind, bytes }: Image, status: CUresult): string {
  if (kind !== 'PTX' || status !== CUresult.CUDA_ERROR_INVALID_IMAGE)
    return `${bytes.length} bytes of ${kind}`;
  const text = Buffer.from(bytes.subarray(0, -1)).toString('utf8');
  return `${bytes.length} bytes that begin with ${shown(text)}`;
}

const textOf = (buffer: Buffer): string =>
  buffer.toString('utf8', 0, Math.max(buffer.indexOf(0), 0)).trim();
