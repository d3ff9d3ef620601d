/** The arguments of `compile`, checked, and the types that its parts share. */

import { Context, type PlaceOptions } from '../context.ts';
import { checkOptions, checkString, checkStrings, formatValue } from '../validate.ts';
import {
  architectureFor,
  assertSupported,
  type CodeKind,
  checkArchitecture,
} from './architecture.ts';
import { type Compiler, compilerInUse } from './nvrtc.ts';

/** Options of `compile`. By default the device or context determines the architecture. */
export interface CompileOptions<K extends CodeKind = CodeKind> extends PlaceOptions {
  /** PTX for all devices from the architecture on, or a cubin for one. Default `'ptx'`. */
  readonly to?: K;
  /** E.g. `'sm_90'`. Default: the device's. */
  readonly arch?: string;
  /** Compiler options, as nvcc's: `['-std=c++17', '--use_fast_math', '-DN=4']`. */
  readonly options?: readonly string[];
  /** Sources by the names that `#include` uses. */
  readonly headers?: Readonly<Record<string, string>>;
  /** Kernels that are templates or in C++ namespaces: `['scale<float>']`. */
  readonly names?: readonly string[];
  /** Whether to use the cache on disk, or its folder. Default true. */
  readonly cache?: boolean | string;
}

/** A source with everything that determines the compiler's output. */
export interface CompileRequest<K extends CodeKind = CodeKind> {
  readonly compiler: Compiler;
  readonly source: string;
  readonly kind: K;
  /** All compiler options, including the architecture. */
  readonly options: readonly string[];
  readonly headers: Readonly<Record<string, string>>;
  readonly names: readonly string[];
  readonly cache: boolean | string;
}

/** The parts of a compiled source. */
export interface CompiledInit<K extends CodeKind> {
  readonly kind: K;
  readonly code: Uint8Array;
  readonly log: string;
  /** The mangled names, by name expression. */
  readonly names: ReadonlyMap<string, string>;
}

/** The file name of a source in the compiler's messages. */
export const SOURCE_NAME = 'kernel.cu';

export const OPTION_NAMES = [
  'to',
  'arch',
  'options',
  'headers',
  'names',
  'cache',
  'context',
  'device',
] as const satisfies readonly (keyof CompileOptions)[];

/** @throws TypeError, RangeError, CompilerNotFoundError, CompileError */
export function checkRequest<K extends CodeKind>(
  source: unknown,
  options: CompileOptions<K> | undefined,
  call: string,
): CompileRequest<K> {
  const { to, arch, headers, names, cache, ...given } = checkOptions(options, OPTION_NAMES, call);
  const kind = to ?? 'ptx';
  if (kind !== 'ptx' && kind !== 'cubin')
    throw new TypeError(`to must be 'ptx' or 'cubin', not ${formatValue(kind)}`);
  if (cache !== undefined && typeof cache !== 'boolean' && typeof cache !== 'string')
    throw new TypeError(`cache must be true, false or a folder, not ${formatValue(cache)}`);
  const { options: flags, ...place } = given;
  const checked = {
    source: checkString(source, 'source'),
    headers: checkHeaders(headers ?? {}),
    names: checkStrings(names ?? [], 'names'),
    flags: checkFlags(checkStrings(flags ?? [], 'options')),
    arch: arch === undefined ? undefined : checkArchitecture(arch, kind),
  };
  if (arch !== undefined && (place.context !== undefined || place.device !== undefined))
    throw new TypeError('give either arch or a context or device, not both');
  const compiler = compilerInUse();
  const { architectures, version } = compiler;
  if (checked.arch !== undefined) assertSupported(checked.arch, architectures, version);
  const architecture =
    checked.arch ??
    architectureFor(Context.resolve(place).device.computeCapability, kind, architectures, version);
  return {
    compiler,
    source: checked.source,
    kind: kind as K,
    options: [
      `--gpu-architecture=${architecture}`,
      ...checked.flags,
      ...compiler.headerFolders.map((folder) => `--include-path=${folder}`),
    ],
    headers: checked.headers,
    names: checked.names,
    cache: cache ?? true,
  };
}

function checkHeaders(headers: unknown): Readonly<Record<string, string>> {
  if (typeof headers !== 'object' || headers === null || Array.isArray(headers))
    throw new TypeError(
      `headers must be an object of sources by name, not ${formatValue(headers)}`,
    );
  return Object.fromEntries(
    Object.entries(headers).map(([name, source]) => [
      checkString(name, 'a header’s name'),
      checkString(source, `headers[${formatValue(name)}]`),
    ]),
  );
}

function checkFlags(flags: readonly string[]): readonly string[] {
  const arch = flags.find((flag) => /^(-arch|--gpu-architecture)\b/.test(flag));
  if (arch !== undefined)
    throw new TypeError(`the option '${arch}' is set by cuffi: pass the architecture as arch`);
  return flags;
}
