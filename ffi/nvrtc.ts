/** libnvrtc, NVIDIA's compiler of CUDA C++ at run time, as C has it: calls answer with a status. */
import { dirname, join } from 'node:path';
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

const handle = <T>(c: string): CType<T> => ({ c, ffi: 'uint64', byteLength: 8 });

/** A program: a source and what was compiled of it. */
export type NvrtcProgram = Handle<'nvrtcProgram'>;
const program = handle<NvrtcProgram>('nvrtcProgram');
const strings = handle<Address>('const char *const *');

/** One row per function of nvrtc.h: its parameters. They all answer with an nvrtcResult. */
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
  /** The name of a status: the address of a string. */
  readonly errorString: (status: number) => Address;
}

/** nvrtcResult of a call that this version of libnvrtc does not have. */
const NVRTC_ERROR_INTERNAL_ERROR = 11;

const PURPOSE: LibraryPurpose = {
  title: 'no CUDA compiler (libnvrtc) was found. Tried:',
  remedy: [
    'Install it (pip install nvidia-cuda-nvrtc, or the CUDA toolkit), or set CUFFI_NVRTC to the',
    'path of a libnvrtc.so. PTX and cubins that were compiled elsewhere need no compiler.',
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
 * Loads what libnvrtc has beside it: it looks for that by name alone, which the loader knows only
 * where the library is in a place of its own. What is answered keeps it loaded.
 */
export function loadBuiltins(file: string, version: string): Library | undefined {
  try {
    return openLibrary([join(dirname(file), `libnvrtc-builtins.so.${version}`)]);
  } catch (error) {
    if (error instanceof LibraryNotFoundError) return undefined;
    throw error;
  }
}
