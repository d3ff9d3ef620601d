/** Chooses and checks the architecture for which a source is compiled. */
import { CompileError } from '../errors.ts';

/** The output of the compiler: PTX for all devices from an architecture on, or a cubin for one. */
export type CodeKind = 'ptx' | 'cubin';

/** A compute capability, e.g. `{ major: 9, minor: 0 }`. */
interface Capability {
  readonly major: number;
  readonly minor: number;
}

const ARCHITECTURE_NAME = /^(sm|compute)_(\d{2,3})([af]?)$/;

/** @throws TypeError, RangeError */
export function checkArchitecture(arch: unknown, kind: CodeKind): string {
  if (typeof arch !== 'string')
    throw new TypeError(`arch must be a string like 'sm_90', not a value of type ${typeof arch}`);
  if (!ARCHITECTURE_NAME.test(arch))
    throw new RangeError(`arch must be like 'sm_90' or 'compute_90', not '${arch}'`);
  if (kind === 'cubin' && !arch.startsWith('sm_'))
    throw new RangeError(`a cubin is for one architecture, like 'sm_90': '${arch}' is for PTX`);
  return kind === 'ptx' ? arch.replace(/^sm_/, 'compute_') : arch;
}

/** @throws CompileError if the compiler does not support `arch` */
export function assertSupported(arch: string, supported: readonly number[], version: string): void {
  const number = Number(ARCHITECTURE_NAME.exec(arch)?.[2]);
  if (supported.includes(number)) return;
  throw new CompileError(
    `libnvrtc ${version} does not compile for ${arch}, only for ${supported.join(', ')}`,
    '',
  );
}

/**
 * Chooses the architecture for a device: the newest that the compiler supports and the device runs.
 * A cubin needs the same major number.
 *
 * @throws CompileError if the compiler supports no architecture of the device
 */
export function architectureFor(
  { major, minor }: Capability,
  kind: CodeKind,
  supported: readonly number[],
  version: string,
): string {
  const deviceNumber = 10 * major + minor;
  const best = supported
    .filter(
      (number) => number <= deviceNumber && (kind === 'ptx' || Math.floor(number / 10) === major),
    )
    .at(-1);
  if (best === undefined)
    throw new CompileError(
      `libnvrtc ${version} cannot make ${kind} for a device of compute capability ${major}.${minor}, only for ${supported.join(', ')}`,
      '',
    );
  return `${kind === 'ptx' ? 'compute' : 'sm'}_${best}`;
}
