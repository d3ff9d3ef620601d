/**
 * Which driver is in use: the real one (libcuda), the emulated one, or one put there by a test.
 * The rest of cuffi calls `cu.<function>` and does not know.
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

/** A driver's functions by name, and what to call it. */
interface DriverSource {
  /** `emulated`, `test`, or the path of the library. */
  readonly name: string;
  resolve(name: FunctionName): NativeFunction;
}

/**
 * Where libcuda is looked for when `CUFFI_DRIVER` is not a path: the loader's own places, then
 * those of WSL, of NVIDIA's container runtimes, of NixOS, and the toolkit's compatibility driver.
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
    '(NVIDIA_DRIVER_CAPABILITIES with compute); WSL has the driver of Windows in /usr/lib/wsl/lib.',
    'CUFFI_DRIVER may be the path of a libcuda; without a GPU, CUFFI_DRIVER=emulated runs on the',
    'emulated driver.',
  ].join('\n'),
};
const NAMED_DRIVER: LibraryPurpose = {
  title: 'what was chosen is no CUDA driver:',
  remedy: 'CUFFI_DRIVER may be cuda, emulated, or the path of a libcuda.',
};

/**
 * The driver. A function is looked for and declared at its first call, and answers
 * CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER where the installed driver has no such symbol.
 *
 * The first call of all opens the driver, and throws {@link LibraryNotFoundError} where there is
 * none; no call throws for a status.
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
  const purpose = isNamed ? NAMED_DRIVER : ANY_DRIVER;
  const library = openLibrary(isNamed ? [chosen] : LIBCUDA_PATHS, purpose);
  if (library.symbol('cuInit') === undefined)
    throw new LibraryNotFoundError([{ path: library.path, reason: 'it has no cuInit' }], purpose);
  const bind = (name: FunctionName): NativeFunction =>
    library.bind(name, rows[name].params) ?? (() => CUresult.CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER);
  if (isMainThread) return { name: library.path, resolve: bind };
  // As in libc.ts: a worker thread may be terminated at any time but while koffi declares.
  const bound = new Map(functionNames.map((name) => [name, bind(name)]));
  return { name: library.path, resolve: (name) => bound.get(name) as NativeFunction };
}

function openEmulated(): DriverSource {
  // Loaded only when asked for, synchronously, from source (.ts) and from dist (.js). A loader
  // that compiles on the fly may make a second instance of the modules that it imports, so what
  // has identity (the arena, the kernels) is handed over.
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
 * `'cuda'`, `'emulated'`, a path to a libcuda, or a driver of one's own (for tests). It is opened
 * at its first call. Objects made with another driver are useless afterwards: choose before.
 */
export function selectDriver(driver: 'cuda' | 'emulated' | (string & {}) | Driver): void {
  selectedDriver = driver;
  openedSource = undefined;
  selectionCounter += 1;
  defineCalls();
}

/** Counts the calls of {@link selectDriver}: what was cached under another count is void. */
export const selectionCount = (): number => selectionCounter;

/** `emulated`, the path that libcuda was opened by, or `test`; opens the driver if need be. */
export function driverName(): string {
  return currentSource().name;
}

/** A running record of driver calls. */
export interface CallRecorder extends Disposable {
  readonly calls: readonly CallRecord[];
  stop(): void;
}

/**
 * Records every driver call of this process until `stop()`. While nothing records, calls cost
 * nothing extra.
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
