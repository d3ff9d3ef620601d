/** Opens shared libraries, and declares their functions to koffi. */
import { types } from 'node:util';
import type { KoffiFunc, LibraryHandle, TypeObject } from 'koffi';
import { koffi } from './koffi.ts';
import type { CType, FfiType } from './types.ts';

/** A C function that takes numbers and returns an integer. */
export type NativeFunction = (...args: never[]) => number;

/** An opened shared library. */
export interface Library {
  /** The name or path that opened. */
  readonly path: string;
  /** Declares a function. Undefined if the library lacks the symbol. */
  bind(name: string, params: readonly CType[], result?: FfiType): NativeFunction | undefined;
  /** The address of a symbol, to pass to C. Undefined if the library lacks it. */
  symbol(name: string): number | undefined;
}

/** What the library is for: texts of {@link LibraryNotFoundError}. */
export interface LibraryPurpose {
  /** The first line, before the list of attempts. */
  readonly title: string;
  /** What to do, after the list. */
  readonly remedy: string;
}

/** No candidate could be opened. The message and `attempts` have the loader's error for each. */
export class LibraryNotFoundError extends Error {
  readonly code = 'library-not-found';
  declare readonly attempts: readonly { readonly path: string; readonly reason: string }[];

  constructor(attempts: LibraryNotFoundError['attempts'], purpose?: LibraryPurpose) {
    const tried = attempts.map(({ path, reason }) => `  ${path}: ${reason}`);
    const { title = 'no library could be opened. Tried:', remedy } = purpose ?? {};
    super([title, ...tried, ...(remedy ? [remedy] : [])].join('\n'));
    this.name = 'LibraryNotFoundError';
    // Printed, they would repeat the message.
    Object.defineProperty(this, 'attempts', { value: attempts });
  }
}

// koffi never frees struct types, so this one is created once.
let handle64: TypeObject | undefined;
const koffiType = (ffi: FfiType): string | TypeObject => {
  if (ffi !== 'handle64') return ffi;
  handle64 ??= koffi().struct({ reserved: koffi().array('uint8', 64) });
  return handle64;
};

const isMissingSymbol = (error: unknown): boolean =>
  types.isNativeError(error) && error.message.startsWith('Cannot find function');

const DEEP_STACK = 8 << 20;
let isConfigured = false;

// The driver's PTX compiler needs deep stacks. koffi's default stacks (2 MiB, and 128 KiB for
// asynchronous calls) overflow with SIGSEGV. koffi can be configured only before it loads the first
// library: if another user of koffi was first, the stacks stay as they are.
function configure(): void {
  if (isConfigured) return;
  isConfigured = true;
  try {
    koffi().config({
      sync_stack_size: 16 << 20,
      async_stack_size: DEEP_STACK,
      resident_async_pools: 32,
    });
  } catch {
    // Another user of koffi was first.
  }
}

/**
 * Opens the first of `candidates` that the loader accepts.
 *
 * @param purpose texts of the error
 * @throws LibraryNotFoundError
 */
export function openLibrary(candidates: readonly string[], purpose?: LibraryPurpose): Library {
  configure();
  const attempts: { path: string; reason: string }[] = [];
  for (const path of candidates) {
    try {
      return describe(path, koffi().load(path));
    } catch (error) {
      const reason = types.isNativeError(error) ? error.message : String(error);
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
        return Number(koffi().address(library.symbol(name, 'void')));
      } catch {
        return undefined;
      }
    },
  };
}

/**
 * Calls a function on a thread of libuv's pool, for long calls that need no state of the main thread.
 * The caller must keep the memory alive that the arguments point to.
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

/** Whether {@link callOffThread} has stacks that are deep enough for a compiler. */
export const hasDeepStacks = (): boolean => (koffi().config().async_stack_size ?? 0) >= DEEP_STACK;
