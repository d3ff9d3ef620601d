/**
 * The driver in use: libcuda, the emulated driver, or a driver of a test. All of cuffi calls it as
 * `cu.<function>`.
 */
import { arena, openArena } from './arena.ts';
import { emulatedKernels } from './emulated-kernels.ts';
import { type Driver, type FunctionName, functionNames, type Row, rows } from './functions.ts';
import {
  LibraryNotFoundError,
  type LibraryPurpose,
  type NativeFunction,
  openLibrary,
} from './library.ts';
import { loadModule } from './package.ts';
import { CUresult } from './results.ts';
import { checkSettings, isTracing } from './settings.ts';
import { isMainThread } from './thread.ts';
import { type CallRecord, type CallSink, printCall, traced } from './trace.ts';
import type { Arguments, CType } from './types.ts';

/** What is known of a function, of the table or of {@link declareFunction}. */
type BoundRow = Pick<Row, 'params' | 'bytes' | 'struct' | 'since'>;

/** A driver: its name, and its functions by name. */
interface DriverSource {
  /** `emulated`, `test`, or the path of the library. */
  readonly name: string;
  resolve(name: string, row: BoundRow): NativeFunction;
}

/**
 * The paths of libcuda to try if `CUFFI_DRIVER` is not a path: the loader's own, then those of WSL,
 * NVIDIA's container runtimes, distributions, NixOS, and the toolkit's compatibility driver.
 */
export const LIBCUDA_PATHS: readonly string[] = [
  'libcuda.so.1',
  '/usr/lib/wsl/lib/libcuda.so.1',
  '/usr/local/nvidia/lib64/libcuda.so.1',
  '/usr/local/nvidia/lib/libcuda.so.1',
  '/usr/lib/x86_64-linux-gnu/libcuda.so.1',
  '/usr/lib/aarch64-linux-gnu/libcuda.so.1',
  '/usr/lib64/libcuda.so.1',
  '/run/opengl-driver/lib/libcuda.so.1',
  '/usr/local/cuda/compat/libcuda.so.1',
];

const sinks = new Set<CallSink>();
let selectedDriver: string | Driver | undefined;
let openedSource: DriverSource | undefined;
let selectionCounter = 0;

export const ANY_DRIVER: LibraryPurpose = {
  title: 'no CUDA driver (libcuda.so.1) was found. Tried:',
  remedy: [
    'Install the NVIDIA driver. A container needs GPUs (--gpus all) and the driver in it',
    '(NVIDIA_DRIVER_CAPABILITIES with compute). WSL has the Windows driver in /usr/lib/wsl/lib.',
    'CUFFI_DRIVER can be the path of a libcuda. Without a GPU, CUFFI_DRIVER=emulated selects the',
    'emulated driver.',
  ].join('\n'),
};
export const NAMED_DRIVER: LibraryPurpose = {
  title: 'the chosen library is not a CUDA driver:',
  remedy: 'CUFFI_DRIVER must be cuda, emulated, or the path of a libcuda.',
};

/**
 * The driver. Each function is resolved at its first call. It returns
 * CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER if the installed driver lacks the symbol.
 *
 * The first call of all opens the driver, and throws {@link LibraryNotFoundError} if there isn't one.
 * No call throws for a status.
 */
export const cu = {} as Driver;

function defineCalls(): void {
  for (const name of functionNames) defineCall(cu, name, rows[name]);
  for (const [name, { row }] of declared) defineCall(declaredCalls, name, row);
}

function defineCall(calls: object, name: string, row: BoundRow): void {
  Object.defineProperty(calls, name, {
    configurable: true,
    enumerable: true,
    get() {
      const call = currentSource().resolve(name, row);
      const value = sinks.size > 0 ? traced(name, row, call, sinks) : call;
      Object.defineProperty(calls, name, { configurable: true, enumerable: true, value });
      return value;
    },
  });
}

function currentSource(): DriverSource {
  openedSource ??= openSource(selectedDriver ?? process.env['CUFFI_DRIVER'] ?? '');
  return openedSource;
}

/** Whether a text can be the value of `CUFFI_DRIVER`: `cuda`, `emulated`, or a path. */
export const isDriverChoice = (text: string): boolean =>
  text === 'cuda' || text === 'emulated' || /[/.]/.test(text);

function openSource(chosen: string | Driver): DriverSource {
  checkSettings();
  openArena();
  if (typeof chosen !== 'string')
    return { name: 'test', resolve: (name) => functionOf(chosen, name) ?? tooOld };
  if (chosen === 'emulated') return openEmulated();
  const isNamed = chosen !== '' && chosen !== 'cuda';
  if (isNamed && !isDriverChoice(chosen))
    throw new TypeError(
      `CUFFI_DRIVER must be cuda, emulated, or the path of a libcuda, not ${JSON.stringify(chosen)}`,
    );
  const purpose = isNamed ? NAMED_DRIVER : ANY_DRIVER;
  const library = openLibrary(isNamed ? [chosen] : LIBCUDA_PATHS, purpose);
  if (library.symbol('cuInit') === undefined)
    throw new LibraryNotFoundError([{ path: library.path, reason: 'it has no cuInit' }], purpose);
  const bind = (name: string, { params }: BoundRow): NativeFunction =>
    library.bind(name, params) ?? tooOld;
  if (isMainThread()) return { name: library.path, resolve: bind };
  // As in libc.ts: koffi aborts if a worker is terminated while it declares a function.
  const bound = new Map<string, NativeFunction>(
    functionNames.map((name) => [name, bind(name, rows[name])]),
  );
  for (const [name, { row }] of declared) bound.set(name, bind(name, row));
  return { name: library.path, resolve: (name, row) => bound.get(name) ?? bind(name, row) };
}

const tooOld = (): CUresult => CUresult.CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER;
const notEmulated = (): CUresult => CUresult.CUDA_ERROR_NOT_SUPPORTED;

const functionOf = (driver: Driver, name: string): NativeFunction | undefined =>
  driver[name as FunctionName] as NativeFunction | undefined;

/** What this file uses of the emulator, whose sources are not published. */
interface Emulator {
  createEmulatedDriver(options: {
    readonly arena: typeof arena;
    readonly kernels: typeof emulatedKernels;
  }): Driver;
}

function openEmulated(): DriverSource {
  // A loader that compiles on the fly may create second instances of the modules. So shared state (the
  // arena, the kernels) is passed as an argument.
  const emulator = loadModule('./emulator/index', 'the emulated driver') as Emulator;
  const driver = emulator.createEmulatedDriver({ arena, kernels: emulatedKernels });
  return { name: 'emulated', resolve: (name) => functionOf(driver, name) ?? notEmulated };
}

// ---- Functions that the table lacks ----

/** A function of the driver, declared by {@link declareFunction}. Its `name` is the symbol's. */
export type DriverFunction<P extends readonly CType[] = readonly CType[]> = (
  ...args: Arguments<P>
) => CUresult;

/** Options of {@link declareFunction}. */
export interface DeclareOptions {
  /**
   * The CUDA version of the first driver with the function, as cuDriverGetVersion returns it: 12040 is
   * CUDA 12.4. cuffi's `check` names it if the driver is older.
   */
  readonly since?: number;
  /** What determines how many bytes a call moves, for {@link recordCalls}: as in a row of `functions`. */
  readonly bytes?: Row['bytes'];
}

const declared = new Map<string, { readonly row: BoundRow; readonly call: DriverFunction }>();
const declaredCalls: Record<string, (...args: readonly unknown[]) => CUresult> = {};

/**
 * Binds a function of the driver that `cu` lacks. Calls behave like those of `cu`: arguments are
 * checked as there, the status is returned, {@link recordCalls} and `CUFFI_TRACE` see them, and a
 * driver without the symbol gives CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER. `check` of cuffi turns the
 * status into an error. The emulated driver has no such functions: it returns
 * CUDA_ERROR_NOT_SUPPORTED.
 *
 * A wrong signature is undefined behaviour, as in C: copy it from cuda.h of the version whose symbol you
 * name. `cuX` and `cuX_v2` are different functions, and the header's macros prefer the newest. In a
 * worker thread, declare functions before the first driver call.
 *
 * @param name the exported symbol, version suffix included
 * @param params the types of its parameters, from `types`
 * @throws TypeError if `cu` has the function, if it is declared with other types, or for other arguments
 * @example
 * const cuCtxGetApiVersion = declareFunction('cuCtxGetApiVersion', [types.CUcontext, types.out(types.uint)]);
 * const version = writeInt32(0);
 * check(cuCtxGetApiVersion(context.handle, version), cuCtxGetApiVersion);
 * console.log(readUint32(version));
 * @see https://docs.nvidia.com/cuda/cuda-driver-api/
 */
export function declareFunction<const P extends readonly CType[]>(
  name: string,
  params: P,
  options: DeclareOptions = {},
): DriverFunction<P> {
  const row = declarationOf(name, params, options);
  const known = declared.get(name);
  if (known) {
    if (!hasSameParams(known.row, row))
      throw new TypeError(
        `${name} is declared already, with other types: ${signatureOf(name, known.row)}`,
      );
    return known.call as DriverFunction<P>;
  }
  const call = (...args: readonly unknown[]): CUresult =>
    (declaredCalls[name] as (typeof declaredCalls)[string])(...args);
  Object.defineProperty(call, 'name', { value: name });
  declared.set(name, { row, call });
  defineCall(declaredCalls, name, row);
  return call as DriverFunction<P>;
}

function declarationOf(
  name: string,
  params: readonly CType[],
  { since, bytes }: DeclareOptions,
): BoundRow {
  if (typeof name !== 'string' || !/^cu[A-Z]\w*$/.test(name))
    throw new TypeError(
      `the function must be named as the driver exports it, e.g. 'cuCtxGetId', not ${JSON.stringify(name)}`,
    );
  if (Object.hasOwn(rows, name))
    throw new TypeError(`${name} is bound already: call cu.${name}(...)`);
  if (!Array.isArray(params) || !params.every(isCType))
    throw new TypeError(
      `the parameters of ${name} must be an array of types of cuffi/ffi, e.g. [types.CUcontext, types.uint]`,
    );
  if (since !== undefined && (!Number.isSafeInteger(since) || since < 1000))
    throw new TypeError(
      `since must be a version as cuDriverGetVersion returns it, e.g. 12040 for CUDA 12.4, not ${since}`,
    );
  return {
    params: [...params],
    ...(since === undefined ? {} : { since }),
    ...(bytes === undefined ? {} : { bytes }),
  };
}

const FFI_TYPES: ReadonlySet<unknown> = new Set(['int32', 'uint32', 'int64', 'uint64', 'handle64']);

const isCType = (value: unknown): value is CType =>
  typeof value === 'object' && value !== null && FFI_TYPES.has((value as Partial<CType>).ffi);

const hasSameParams = (one: BoundRow, other: BoundRow): boolean =>
  one.params.length === other.params.length &&
  one.params.every((param, at) => param.c === other.params[at]?.c);

const signatureOf = (name: string, { params }: BoundRow): string =>
  `${name}(${params.map(({ c }) => c).join(', ')})`;

/**
 * The CUDA version of the first driver with a function, as cuDriverGetVersion returns it. Undefined if
 * every driver since CUDA 11.4 has it, or nobody said so.
 */
export const firstVersionWith = (name: string): number | undefined =>
  declared.get(name)?.row.since ??
  (Object.hasOwn(rows, name) ? rows[name as FunctionName].since : undefined);

defineCalls();
if (isTracing) sinks.add(printCall);

/**
 * Chooses the driver for the whole process, as the environment variable `CUFFI_DRIVER` does:
 * `'cuda'`, `'emulated'`, a path to a libcuda, or a driver object (for tests). The driver is opened
 * at its first call. Objects of another driver become useless: choose before creating any.
 */
export function selectDriver(driver: 'cuda' | 'emulated' | (string & {}) | Driver): void {
  selectedDriver = driver;
  openedSource = undefined;
  selectionCounter += 1;
  defineCalls();
}

/** The number of calls of {@link selectDriver}. Values cached under another count are invalid. */
export const selectionCount = (): number => selectionCounter;

/** `emulated`, the path of the opened libcuda, or `test`. Opens the driver if necessary. */
export function driverName(): string {
  return currentSource().name;
}

/** A recording of driver calls. */
export interface CallRecorder extends Disposable {
  readonly calls: readonly CallRecord[];
  stop(): void;
}

/**
 * Records every driver call of this process until `stop()`. Without a recorder, calls have no
 * overhead.
 *
 * @param onCall gets each record when its call has returned, in place of `calls`, e.g. for a log. It must not
 * call the driver
 * @example
 * const recorder = recordCalls();
 * // ... work
 * recorder.stop();
 * console.log(bytesCopied(recorder.calls));
 */
export function recordCalls(onCall?: CallSink): CallRecorder {
  if (onCall !== undefined && typeof onCall !== 'function')
    throw new TypeError(`onCall must be a function, not ${typeof onCall}`);
  const calls: CallRecord[] = [];
  // Its own for each recorder, also where two have the same function.
  const sink: CallSink = onCall ? (record) => onCall(record) : (record) => calls.push(record);
  const stop = (): void => {
    if (sinks.delete(sink)) defineCalls();
  };
  sinks.add(sink);
  defineCalls();
  return { calls, stop, [Symbol.dispose]: stop };
}
