/** The C interface of libnvrtc, NVIDIA's run-time compiler for CUDA C++. Calls return a status. */
import { dirname, join } from 'node:path';
import { openArena } from './arena.ts';
import {
  type Library,
  LibraryNotFoundError,
  type LibraryPurpose,
  type NativeFunction,
  openLibrary,
} from './library.ts';
import {
  type Address,
  type Arguments,
  type CType,
  char,
  constString,
  type Handle,
  int,
  out,
  size_t,
} from './types.ts';

/** What C takes and gives as a pointer. */
const handle = <T>(c: string): CType<T> => ({ ...constString, c }) as CType<T>;

/** A program: a source, and the code compiled from it. */
export type NvrtcProgram = Handle<'nvrtcProgram'>;
const program = handle<NvrtcProgram>('nvrtcProgram');
const strings = handle<Address>('const char *const *');

/** The parameters of each function of nvrtc.h. All return an nvrtcResult. */
export const nvrtcRows = {
  nvrtcVersion: [out(int), out(int)],
  nvrtcGetNumSupportedArchs: [out(int)],
  nvrtcGetSupportedArchs: [out(int)],
  nvrtcCreateProgram: [out(program), constString, constString, int, strings, strings],
  nvrtcDestroyProgram: [out(program)],
  nvrtcAddNameExpression: [program, constString],
  nvrtcCompileProgram: [program, int, strings],
  nvrtcGetPTXSize: [program, out(size_t)],
  nvrtcGetPTX: [program, out(char)],
  nvrtcGetCUBINSize: [program, out(size_t)],
  nvrtcGetCUBIN: [program, out(char)],
  nvrtcGetProgramLogSize: [program, out(size_t)],
  nvrtcGetProgramLog: [program, out(char)],
  nvrtcGetLoweredName: [program, constString, out(constString)],
} as const satisfies Record<string, readonly CType[]>;

/** The name of a function of libnvrtc. */
export type NvrtcFunction = keyof typeof nvrtcRows;

/** libnvrtc's functions; each is declared at its first call. */
export type Nvrtc = {
  readonly [K in NvrtcFunction]: (...args: Arguments<(typeof nvrtcRows)[K]>) => number;
};

/** An opened libnvrtc. */
export interface NvrtcLibrary {
  /** The name or path that opened. */
  readonly path: string;
  readonly nvrtc: Nvrtc;
  /** The address of a string: the name of a status. */
  readonly errorString: (status: number) => Address;
}

/** Returned for a function that this version of libnvrtc lacks. */
const NVRTC_ERROR_INTERNAL_ERROR = 11;

const PURPOSE: LibraryPurpose = {
  title: 'no CUDA compiler (libnvrtc) was found. Tried:',
  remedy: [
    'Install it (pip install nvidia-cuda-nvrtc, or the CUDA toolkit), or set CUFFI_NVRTC to the',
    'path of a libnvrtc.so. Precompiled PTX and cubins need no compiler.',
  ].join('\n'),
};

/** Opens the first of `candidates` that is a libnvrtc. @throws LibraryNotFoundError */
export function openNvrtc(candidates: readonly string[]): NvrtcLibrary {
  const library = openLibrary(candidates, PURPOSE);
  if (library.symbol('nvrtcCompileProgram') === undefined)
    throw new LibraryNotFoundError(
      [{ path: library.path, reason: 'it has no nvrtcCompileProgram' }],
      PURPOSE,
    );
  openArena();
  const nvrtc = {} as Nvrtc;
  for (const name of Object.keys(nvrtcRows) as NvrtcFunction[]) {
    Object.defineProperty(nvrtc, name, {
      configurable: true,
      enumerable: true,
      get() {
        const value: NativeFunction =
          library.bind(name, nvrtcRows[name]) ?? (() => NVRTC_ERROR_INTERNAL_ERROR);
        Object.defineProperty(nvrtc, name, { configurable: true, enumerable: true, value });
        return value;
      },
    });
  }
  const describe = library.bind('nvrtcGetErrorString', [int], 'uint64') as
    | ((status: number) => Address)
    | undefined;
  return { path: library.path, nvrtc, errorString: describe ?? (() => 0 as Address) };
}

/**
 * Loads libnvrtc-builtins from the folder of libnvrtc `file`. libnvrtc opens it by name alone, which
 * fails outside of the loader's own folders unless it is loaded. The result keeps it loaded.
 */
export function loadBuiltins(file: string, version: string): Library | undefined {
  try {
    return openLibrary([join(dirname(file), `libnvrtc-builtins.so.${version}`)]);
  } catch (error) {
    if (error instanceof LibraryNotFoundError) return undefined;
    throw error;
  }
}
