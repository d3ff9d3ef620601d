/**
 * The driver in use: libcuda, the emulated driver, or a driver of a test. All of cuffi calls it as
 * `cu.<function>`.
 */
import { createRequire } from 'node:module';
import { extname } from 'node:path';
import { isMainThread } from 'node:worker_threads';
import { arena } from './arena.ts';
import { emulatedKernels } from './emulated-kernels.ts';
import { type Driver, type FunctionName, functionNames, rows } from './functions.ts';
import {
  LibraryNotFoundError,
  type LibraryPurpose,
  type NativeFunction,
  openLibrary,
} from './library.ts';
import { CUresult } from './results.ts';
import { type CallRecord, type CallSink, printCall, traced } from './trace.ts';

/** A driver: its name, and its functions by name. */
interface DriverSource {
  /** `emulated`, `test`, or the path of the library. */
  readonly name: string;
  resolve(name: FunctionName): NativeFunction;
}

/**
 * The paths of libcuda to try if `CUFFI_DRIVER` is not a path: the loader's own, then those of WSL,
 * NVIDIA's container runtimes, distributions, NixOS, and the toolkit's compatibility driver.
 */
const LIBCUDA_PATHS = [
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

const ANY_DRIVER: LibraryPurpose = {
  title: 'no CUDA driver (libcuda.so.1) was found. Tried:',
  remedy: [
    'Install the NVIDIA driver. A container needs GPUs (--gpus all) and the driver in it',
    '(NVIDIA_DRIVER_CAPABILITIES with compute). WSL has the Windows driver in /usr/lib/wsl/lib.',
    'CUFFI_DRIVER can be the path of a libcuda. Without a GPU, CUFFI_DRIVER=emulated selects the',
    'emulated driver.',
  ].join('\n'),
};
const NAMED_DRIVER: LibraryPurpose = {
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
  for (const name of functionNames) {
    Object.defineProperty(cu, name, {
      configurable: true,
      enumerable: true,
      get() {
        const call = currentSource().resolve(name);
        const value = sinks.size > 0 ? traced(name, call, sinks) : call;
        Object.defineProperty(cu, name, { configurable: true, enumerable: true, value });
        return value;
      },
    });
  }
}

function currentSource(): DriverSource {
  openedSource ??= openSource(selectedDriver ?? process.env['CUFFI_DRIVER'] ?? '');
  return openedSource;
}

function openSource(chosen: string | Driver): DriverSource {
  if (typeof chosen !== 'string')
    return { name: 'test', resolve: (name) => chosen[name] as NativeFunction };
  if (chosen === 'emulated') return openEmulated();
  const isNamed = chosen !== '' && chosen !== 'cuda';
  if (isNamed && !/[/.]/.test(chosen))
    throw new TypeError(
      `CUFFI_DRIVER must be cuda, emulated, or the path of a libcuda, not ${JSON.stringify(chosen)}`,
    );
  const purpose = isNamed ? NAMED_DRIVER : ANY_DRIVER;
  const library = openLibrary(isNamed ? [chosen] : LIBCUDA_PATHS, purpose);
  if (library.symbol('cuInit') === undefined)
    throw new LibraryNotFoundError([{ path: library.path, reason: 'it has no cuInit' }], purpose);
  const bind = (name: FunctionName): NativeFunction =>
    library.bind(name, rows[name].params) ?? (() => CUresult.CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER);
  if (isMainThread) return { name: library.path, resolve: bind };
  // As in libc.ts: koffi aborts if a worker is terminated while it declares a function.
  const bound = new Map(functionNames.map((name) => [name, bind(name)]));
  return { name: library.path, resolve: (name) => bound.get(name) as NativeFunction };
}

function openEmulated(): DriverSource {
  // Loaded on demand, synchronously, from source (.ts) or from dist (.js). A loader that compiles on
  // the fly may create second instances of the modules. So shared state (the arena, the kernels) is
  // passed as an argument.
  const extension = extname(new URL(import.meta.url).pathname);
  const emulator = createRequire(import.meta.url)(
    `./emulator/index${extension}`,
  ) as typeof import('./emulator/index.ts');
  const driver = emulator.createEmulatedDriver({ arena, kernels: emulatedKernels });
  return { name: 'emulated', resolve: (name) => driver[name] as NativeFunction };
}

defineCalls();
if (process.env['CUFFI_TRACE'] === '1') sinks.add(printCall);

/**
 * Chooses the driver for the whole process, as the environment variable `CUFFI_DRIVER` does:
 * `'cuda'`, `'emulated'`, a path to a libcuda, or a driver object (for tests). The driver is opened
 * at
 * its first call. Objects of another driver become useless: choose before creating any.
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
 * @example
 * const recorder = recordCalls();
 * // ... work
 * recorder.stop();
 * console.log(bytesCopied(recorder.calls));
 */
export function recordCalls(): CallRecorder {
  const calls: CallRecord[] = [];
  const sink: CallSink = (record) => calls.push(record);
  const stop = (): void => {
    if (sinks.delete(sink)) defineCalls();
  };
  sinks.add(sink);
  defineCalls();
  return { calls, stop, [Symbol.dispose]: stop };
}
