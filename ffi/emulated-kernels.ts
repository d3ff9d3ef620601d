/**
 * Kernels in TypeScript, by their names: what the emulated driver runs where a program launches a
 * kernel of that name. Other drivers never look here.
 */
import { type ScalarName, type StructParameter, scalarByteLengths } from './kernel-params.ts';

/** A parameter of an emulated kernel; any address is a `pointer`. */
export type EmulatedParameter = ScalarName | 'pointer' | StructParameter;

/** What an emulated kernel gets for a parameter: 16-bit floats as their bits, structs as bytes. */
export type EmulatedArgument<P extends EmulatedParameter> = P extends 'bool'
  ? boolean
  : P extends 'int64' | 'uint64'
    ? bigint
    : P extends StructParameter
      ? Uint8Array
      : number;

/** The constructor of a typed array. */
interface ViewType<A> {
  readonly BYTES_PER_ELEMENT: number;
  new (buffer: ArrayBuffer, byteOffset: number, length: number): A;
}

/** One launch of an emulated kernel. */
export interface EmulatedLaunch {
  /** How many blocks there are along each axis. */
  readonly grid: readonly [x: number, y: number, z: number];
  /** How many threads each has. */
  readonly block: readonly [x: number, y: number, z: number];
  readonly sharedBytes: number;
  /**
   * Device memory as a typed array: the memory itself, good until `run` returns. Memory that the
   * device may only read comes as a copy, and what changes it fails the launch when `run` returns.
   *
   * @param address a multiple of the element's width, as on a GPU
   * @throws what fails the launch as the GPU does, with a context that is lost, where an element is
   * not the device's to use
   */
  view<A extends ArrayBufferView>(address: number, type: ViewType<A>, length: number): A;
}

/** A kernel in TypeScript. */
export interface EmulatedKernel<P extends readonly EmulatedParameter[]> {
  readonly params: P;
  /**
   * Does the work of all threads, when the stream gets to it. What it throws fails the launch as a
   * trap does, and becomes a process warning.
   */
  run(launch: EmulatedLaunch, args: { readonly [K in keyof P]: EmulatedArgument<P[K]> }): void;
}

/** An emulated kernel, whatever it takes. */
export interface RegisteredKernel {
  readonly params: readonly EmulatedParameter[];
  run(launch: EmulatedLaunch, args: readonly (number | bigint | boolean | Uint8Array)[]): void;
}

/** The emulated kernels of this process. */
export const emulatedKernels: Map<string, RegisteredKernel> = new Map();

/**
 * Has the emulated driver run `kernel` where a kernel of that name is launched, so that programs
 * with kernels run without a GPU. The name is the one in the PTX, so for C++ the mangled one unless
 * the kernel is `extern "C"`. A second one of the same name takes the place of the first.
 *
 * @example
 * registerKernel('scale', {
 *   params: ['pointer', 'float32', 'uint32'],
 *   run(launch, [x, factor, n]) {
 *     const items = launch.view(x, Float32Array, n);
 *     for (let i = 0; i < n; i += 1) items[i] *= factor;
 *   },
 * });
 * @throws TypeError for what is no kernel
 */
export function registerKernel<const P extends readonly EmulatedParameter[]>(
  name: string,
  kernel: EmulatedKernel<P>,
): void {
  const isKnown = (param: unknown): boolean =>
    param === 'pointer' ||
    (typeof param === 'string' && Object.hasOwn(scalarByteLengths, param)) ||
    typeof (param as StructParameter | null)?.bytes === 'number';
  if (typeof name !== 'string') throw new TypeError('registerKernel: the name must be a string');
  if (!Array.isArray(kernel?.params) || typeof kernel.run !== 'function')
    throw new TypeError(`registerKernel: kernel ${name} must be { params, run }`);
  const wrong = kernel.params.findIndex((param) => !isKnown(param));
  if (wrong >= 0)
    throw new TypeError(
      `registerKernel: parameter ${wrong} of kernel ${name} must be 'pointer', { bytes } or one of ` +
        Object.keys(scalarByteLengths).join(', '),
    );
  emulatedKernels.set(name, kernel as unknown as RegisteredKernel);
}

/** The bytes of an emulated kernel's parameter. */
export const emulatedByteLength = (param: EmulatedParameter): number => {
  if (typeof param === 'object') return param.bytes;
  return param === 'pointer' ? 8 : scalarByteLengths[param];
};
