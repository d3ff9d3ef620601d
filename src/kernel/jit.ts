/** Loads code into a context: the driver's JIT compiler, its options and its logs. */
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
import { type Image, loadHint } from './image.ts';

/** How the driver compiles PTX; machine code is loaded as it is. */
export interface JitOptions {
  /** The most registers of a thread. Fewer let more threads run, but may spill. */
  readonly maxRegisters?: number;
  /** From 0 to 4. Default 4. */
  readonly optimizationLevel?: number;
  /** Whether to include source lines for profilers and debuggers. Default false. */
  readonly lineInfo?: boolean;
  /** Whether to compile for a debugger. Default false. */
  readonly debug?: boolean;
  /** Whether `module.log` lists the resources of each kernel. Default false. */
  readonly verbose?: boolean;
}

/** Options as the driver takes them: a number and a 64-bit value each. */
export type JitPairs = readonly (readonly [option: number, value: number])[];

const LOG_BYTE_LENGTH = 16_384;
/** Four options for the logs, and one for each of {@link JitOptions}. */
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

/** The result and the logs of the driver's compiler or linker. */
interface JitOutcome<T> {
  readonly result: T;
  /** Information and warnings. */
  readonly log: string;
  /** Errors, followed by the information. */
  readonly errors: string;
}

/**
 * The buffers for options and logs, allocated once: allocating and clearing log buffers for each load
 * costs more than loading compiled code. The log buffers are zero between uses.
 */
class JitBuffers {
  readonly #info = new Uint8Array(new ArrayBuffer(LOG_BYTE_LENGTH));
  readonly #errors = new Uint8Array(new ArrayBuffer(LOG_BYTE_LENGTH));
  // Options are 32-bit numbers; their values are 64 bits wide, because the driver takes pointers.
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

  /** Writes all options, as the driver overwrites the lengths of the logs. Returns their number. */
  write(pairs: JitPairs): number {
    // An earlier use may have thrown before it cleared the logs.
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
 * Calls `use` with the options for the driver, including those for its logs. The addresses are valid
 * until `use` returns; `use` must not call this function again.
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
 * Loads code into the current context.
 *
 * @throws CudaError with the compiler's log
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
    throw cudaError(
      result,
      call,
      `loading ${describeImage(image, result)}`,
      errors,
      loadHint(image, errors),
    );
  return { handle: readHandle<CUmodule>(OUT0, cu.cuModuleUnload), log };
}

/** Describes code for an error; quotes its beginning if the driver did not recognize it. */
function describeImage({ kind, bytes }: Image, status: CUresult): string {
  if (kind !== 'PTX' || status !== CUresult.CUDA_ERROR_INVALID_IMAGE)
    return `${bytes.length} bytes of ${kind}`;
  const text = Buffer.from(bytes.subarray(0, -1)).toString('utf8');
  return `${bytes.length} bytes that begin with ${formatValue(text)}`;
}

/** Returns the text in a log buffer and clears the buffer. */
function takeText(memory: Uint8Array): string {
  if (memory[0] === 0) return '';
  const end = memory.indexOf(0);
  const text = Buffer.from(memory.buffer as ArrayBuffer, 0, end < 0 ? memory.length : end);
  const taken = text.toString('utf8').trim();
  memory.fill(0);
  return taken;
}
