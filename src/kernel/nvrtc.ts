/** Finds and opens libnvrtc. */

import { statSync } from 'node:fs';
import { OUT0, OUT1, readInt32 } from '../../ffi/arena.ts';
import { type Library, LibraryNotFoundError } from '../../ffi/library.ts';
import { stringAt, withAddress } from '../../ffi/native.ts';
import { loadBuiltins, type Nvrtc, openNvrtc } from '../../ffi/nvrtc.ts';
import { headerFolders, loadedFile, nvrtcCandidates } from '../../ffi/nvrtc-places.ts';
import { readSetting } from '../../ffi/settings.ts';
import type { Address } from '../../ffi/types.ts';
import { CompileError, CompilerNotFoundError } from '../errors.ts';

/** The compiler in use. */
export interface Compiler {
  readonly nvrtc: Nvrtc;
  /** Referenced so that it stays loaded. */
  readonly builtins: Library | undefined;
  /** E.g. `13.0`. */
  readonly version: string;
  /** Distinguishes this library from others of its version: by file, size and time. */
  readonly identity: string;
  /** The supported compute capabilities, e.g. 90, in ascending order. */
  readonly architectures: readonly number[];
  /** The folders of CUDA's own headers. */
  readonly headerFolders: readonly string[];
  /** Returns the name of a status. */
  describe(status: number): string;
}

let opened: { readonly chosen: string | undefined; readonly compiler: Compiler } | undefined;

/** Returns the libnvrtc of this machine, opened at first use. @throws CompilerNotFoundError */
export function compilerInUse(): Compiler {
  const chosen = readSetting('CUFFI_NVRTC');
  if (opened?.chosen !== chosen) opened = undefined;
  opened ??= { chosen, compiler: open() };
  return opened.compiler;
}

function open(): Compiler {
  const places = nvrtcCandidates();
  try {
    const { path, nvrtc, errorString } = openNvrtc(places);
    const describe = (status: number): string => stringAt(errorString(status)) || `${status}`;
    const checkStatus = (status: number, doing: string): void => {
      if (status !== 0) throw new CompileError(`${doing} failed: ${describe(status)}`, '');
    };
    checkStatus(nvrtc.nvrtcVersion(OUT0, OUT1), 'asking libnvrtc for its version');
    const version = `${readInt32(OUT0)}.${readInt32(OUT1)}`;
    checkStatus(nvrtc.nvrtcGetNumSupportedArchs(OUT0), 'asking libnvrtc what it compiles for');
    const architectures = new Int32Array(readInt32(OUT0));
    checkStatus(
      withAddress(architectures, (address: Address) => nvrtc.nvrtcGetSupportedArchs(address)),
      'asking libnvrtc what it compiles for',
    );
    const file = loadedFile(path);
    const stats = file === undefined ? undefined : statSync(file, { throwIfNoEntry: false });
    return {
      nvrtc,
      builtins: file === undefined ? undefined : loadBuiltins(file, version),
      version,
      identity: [version, file ?? path, stats?.size, stats?.mtimeMs].join(' '),
      architectures: [...architectures].sort((a, b) => a - b),
      headerFolders: headerFolders(file),
      describe,
    };
  } catch (error) {
    if (error instanceof LibraryNotFoundError)
      throw new CompilerNotFoundError(`${error.message}${noteForEmulated()}`);
    throw error;
  }
}

/** With a compiler, the next error would be that the emulated driver runs no code. */
const noteForEmulated = (): string =>
  process.env['CUFFI_DRIVER'] === 'emulated'
    ? '\nThe emulated driver runs no compiled code: it runs what registerKernel names, which needs no compiler.'
    : '';
