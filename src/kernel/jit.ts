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
import { addressOf, withAddress } from '../../ffi/native.ts';
import { CUresult } from '../../ffi/results.ts';
import type { Address, CUmodule } from '../../ffi/types.ts';
import { cudaError } from '../check.ts';
import { checkBoolean, checkInteger, checkOptions, formatValue } from '../validate.ts';
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

const LOG_BYTE_LENGTH = 16_384;
/** Those for the words, and one for each of {@link JitOptions}. */
const MAX_OPTIONS = 9;

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
interface JitOutcome<T> {
  readonly result: T;
  /** Information and warnings. */
  readonly log: string;
  /** Errors, and the information after them. */
  readonly errors: string;
}

/**
 * What the driver reads of options and writes of words: made once, as memory for words that is made
 * and cleared for each load costs more than loading code that was compiled before. All zero between
 * two uses, but for the options.
 */
class JitBuffers {
  readonly #info = new Uint8Array(new ArrayBuffer(LOG_BYTE_LENGTH));
  readonly #errors = new Uint8Array(new ArrayBuffer(LOG_BYTE_LENGTH));
  // Options are 32-bit numbers, and their values words of 64: numbers cast to pointers.
  readonly #options = new Uint32Array(new ArrayBuffer(4 * MAX_OPTIONS));
  readonly #values = new BigUint64Array(new ArrayBuffer(8 * MAX_OPTIONS));
  readonly #logs: JitPairs = [
    [CU_JIT_INFO_LOG_BUFFER, addressOf(this.#info)],
    [CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES, LOG_BYTE_LENGTH],
    [CU_JIT_ERROR_LOG_BUFFER, addressOf(this.#errors)],
    [CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES, LOG_BYTE_LENGTH],
  ];
  readonly options = addressOf(this.#options);
  readonly values = addressOf(this.#values);

  /** Answers how many options there are. The driver writes over the lengths: they are written anew. */
  write(pairs: JitPairs): number {
    // Whoever came before may have thrown.
    this.takeInfo();
    this.takeErrors();
    const all = [...this.#logs, ...pairs];
    for (const [at, [option, value]] of all.entries()) {
      this.#options[at] = option;
      this.#values[at] = BigInt(value);
    }
    return all.length;
  }

  takeInfo(): string {
    return takeText(this.#info);
  }

  takeErrors(): string {
    return takeText(this.#errors);
  }
}

let jitBuffers: JitBuffers | undefined;

/**
 * Calls `use` with options as the driver takes them, those for its words among them. All of it is
 * valid until `use` returns; `use` must not come here again.
 */
export function withJitOptions<T>(
  pairs: JitPairs,
  use: (count: number, options: Address, values: Address) => T,
): JitOutcome<T> {
  jitBuffers ??= new JitBuffers();
  const result = use(jitBuffers.write(pairs), jitBuffers.options, jitBuffers.values);
  const log = jitBuffers.takeInfo();
  return { result, log, errors: [jitBuffers.takeErrors(), log].filter(Boolean).join('\n') };
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
    throw cudaError(result, call, `loading ${describeImage(image, result)}`, errors);
  return { handle: readHandle<CUmodule>(OUT0, cu.cuModuleUnload), log };
}

/** Code in a few words; how it begins, where the driver does not know what it is. */
function describeImage({ kind, bytes }: Image, status: CUresult): string {
  if (kind !== 'PTX' || status !== CUresult.CUDA_ERROR_INVALID_IMAGE)
    return `${bytes.length} bytes of ${kind}`;
  const text = Buffer.from(bytes.subarray(0, -1)).toString('utf8');
  return `${bytes.length} bytes that begin with ${formatValue(text)}`;
}

/** The text that was written, if any; the memory is zero again. */
function takeText(memory: Uint8Array): string {
  if (memory[0] === 0) return '';
  const end = memory.indexOf(0);
  const text = Buffer.from(memory.buffer as ArrayBuffer, 0, end < 0 ? memory.length : end);
  const taken = text.toString('utf8').trim();
  memory.fill(0);
  return taken;
}
