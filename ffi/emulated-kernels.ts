/** Kernels in TypeScript by name. The emulated driver runs them; other drivers ignore them. */
import { type ScalarName, type StructParameter, scalarByteLengths } from './kernel-params.ts';

/** A parameter of an emulated kernel. Every address is a `pointer`. */
export type EmulatedParameter = ScalarName | 'pointer' | StructParameter;

/** The argument for a parameter: 16-bit floats as their bits, structs as bytes. */
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
  /** The number of blocks along each axis. */
  readonly grid: readonly [x: number, y: number, z: number];
  /** The number of threads per block along each axis. */
  readonly block: readonly [x: number, y: number, z: number];
  readonly sharedBytes: number;
  /**
   * Device memory as a typed array: the memory itself, valid until `run` returns. Memory that the
   * device may only read comes as a copy; if `run` changes the copy, the launch fails.
   *
   * @param address a multiple of the element's width, as on a GPU
   * @throws an error that fails the launch and invalidates the context, as on a GPU, if the device
   * may not access all elements
   */
  view<A extends ArrayBufferView>(address: number, type: ViewType<A>, length: number): A;
}

/** A kernel in TypeScript. */
export interface EmulatedKernel<P extends readonly EmulatedParameter[]> {
  readonly params: P;
  /**
   * Does the work of all threads, when the stream reaches the launch. An error that it throws fails
   * the launch like a trap, and becomes a process warning.
   */
  run(launch: EmulatedLaunch, args: { readonly [K in keyof P]: EmulatedArgument<P[K]> }): void;
}

/** An emulated kernel with any parameters. */
export interface RegisteredKernel {
  readonly params: readonly EmulatedParameter[];
  run(launch: EmulatedLaunch, args: readonly (number | bigint | boolean | Uint8Array)[]): void;
}

/** The emulated kernels of this process. */
export const emulatedKernels: Map<string, RegisteredKernel> = new Map();

/**
 * Registers a TypeScript implementation that the emulated driver runs when a kernel of that name is
 * launched, so that programs with kernels run without a GPU. The name is that in the PTX: for C++ the
 * mangled name, unless the kernel is `extern "C"`. Registering a name again replaces the first.
 *
 * @example
 * registerKernel('scale', {
 *   params: ['pointer', 'float32', 'uint32'],
 *   run(launch, [x, factor, n]) {
 *     const items = launch.view(x, Float32Array, n);
 *     for (let i = 0; i < n; i += 1) items[i] *= factor;
 *   },
 * });
 * @throws TypeError if `name` or `kernel` is invalid
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

/** The size of an emulated kernel's parameter in bytes. */
export const emulatedByteLength = (param: EmulatedParameter): number => {
  if (typeof param === 'object') return param.bytes;
  return param === 'pointer' ? 8 : scalarByteLengths[param];
};
