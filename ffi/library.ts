/** Finds and opens a shared library, and declares its functions to koffi one by one. */
import koffi, { type KoffiFunc, type LibraryHandle, type TypeObject } from 'koffi';
import type { CType, FfiType } from './types.ts';

/** A C function: what it answers with is an integer, what it takes is numbers. */
export type NativeFunction = (...args: never[]) => number;

/** An opened shared library. */
export interface Library {
  /** The name or path that opened. */
  readonly path: string;
  /** Declares a function; undefined where the library has no such symbol. */
  bind(name: string, params: readonly CType[], result?: FfiType): NativeFunction | undefined;
  /** The address of a symbol, to hand to C; undefined where there is none. */
  symbol(name: string): number | undefined;
}

/** What was looked for, and what to do where it is not there. */
export interface LibraryPurpose {
  /** What the list of attempts comes after. */
  readonly title: string;
  readonly remedy: string;
}

/** No candidate could be opened. The message and `attempts` say for each what the loader answered. */
export class LibraryNotFoundError extends Error {
  readonly attempts: readonly { readonly path: string; readonly reason: string }[];

  constructor(attempts: LibraryNotFoundError['attempts'], purpose?: LibraryPurpose) {
    const tried = attempts.map(({ path, reason }) => `  ${path}: ${reason}`);
    const { title = 'no library could be opened. Tried:', remedy } = purpose ?? {};
    super([title, ...tried, ...(remedy ? [remedy] : [])].join('\n'));
    this.name = 'LibraryNotFoundError';
    this.attempts = attempts;
  }
}

// Struct types live as long as the process and are never freed: one, made when first needed.
let handle64: TypeObject | undefined;
const koffiType = (ffi: FfiType): string | TypeObject => {
  if (ffi !== 'handle64') return ffi;
  handle64 ??= koffi.struct({ reserved: koffi.array('uint8', 64) });
  return handle64;
};

const isMissingSymbol = (error: unknown): boolean =>
  error instanceof Error && error.message.startsWith('Cannot find function');

const DEEP_STACK = 8 << 20;
let isConfigured = false;

// The driver's PTX compiler needs deep stacks; koffi's own (2 MiB, and 128 KiB for asynchronous
// calls) overflow into SIGSEGV. Only possible before the first library is loaded: if another
// user of koffi in this process was first, its stacks stay.
function configure(): void {
  if (isConfigured) return;
  isConfigured = true;
  try {
    koffi.config({
      sync_stack_size: 16 << 20,
      async_stack_size: DEEP_STACK,
      resident_async_pools: 32,
    });
  } catch {
    // see above
  }
}

/**
 * Opens the first of `candidates` that the loader takes.
 *
 * @param purpose what the error says beside the attempts
 * @throws LibraryNotFoundError
 */
export function openLibrary(candidates: readonly string[], purpose?: LibraryPurpose): Library {
  configure();
  const attempts: { path: string; reason: string }[] = [];
  for (const path of candidates) {
    try {
      return describe(path, koffi.load(path));
    } catch (error) {
      const reason = error instanceof Error ? error.message : String(error);
      attempts.push({ path, reason: reason.replace(/^Failed to load shared library: /, '') });
    }
  }
  throw new LibraryNotFoundError(attempts, purpose);
}

function describe(path: string, library: LibraryHandle): Library {
  return {
    path,
    bind(name, params, result = 'int32') {
      try {
        return library.func(
          name,
          koffiType(result),
          params.map((param) => koffiType(param.ffi)),
        ) as unknown as NativeFunction;
      } catch (error) {
        if (isMissingSymbol(error)) return undefined;
        throw error;
      }
    },
    symbol(name) {
      try {
        return Number(koffi.address(library.symbol(name, 'void')));
      } catch {
        return undefined;
      }
    },
  };
}

/**
 * Calls a function on a thread of libuv's pool, for calls that take long and need no state of the
 * main thread. Memory that the arguments are addresses of is held by nobody: the caller does.
 */
export const callOffThread = (
  call: (...args: number[]) => number,
  ...args: readonly number[]
): Promise<number> =>
  new Promise((resolve, reject) => {
    (call as KoffiFunc<typeof call>).async(...args, (error, result) =>
      error ? reject(error) : resolve(result),
    );
  });

/** Whether calls off this thread have a stack on which a compiler can run. */
export const hasDeepStacks = (): boolean => (koffi.config().async_stack_size ?? 0) >= DEEP_STACK;
