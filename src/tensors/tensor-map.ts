import { DeviceArray } from '../array/device-array.ts';
import type { Layout } from '../array/layout.ts';
import type { Context } from '../context.ts';
import type { Dtype } from '../dtype.ts';
import { counted, type Details, placeName } from '../inspect.ts';
import { Resource } from '../lifetime.ts';
import type { DeviceBuffer } from '../memory/buffer.ts';
import { assertInternal, checkString, didYouMean, formatBytes, formatValue } from '../validate.ts';
import type { TensorDtype } from './header.ts';

/** A tensor in the memory of a map. */
export interface PlacedTensor {
  /** Its dtype and shape in the file. */
  readonly storedDtype: TensorDtype;
  readonly storedShape: readonly number[];
  /** Those of its arrays. */
  readonly dtype: Dtype;
  readonly layout: Layout;
}

/** What a map is made of. */
export interface TensorMapInit {
  /** What owns the memory: the map closes it. */
  readonly memory: Resource;
  /** All of the memory. */
  readonly buffer: DeviceBuffer;
  readonly tensors: ReadonlyMap<string, PlacedTensor>;
  readonly byteLength: number;
  readonly metadata: ReadonlyMap<string, string>;
  readonly fingerprint: string;
}

/**
 * Tensors by name, in one allocation of device memory. Closing the map frees the memory, and closes all
 * of its arrays; an array keeps the memory alive as long as the map is not closed.
 *
 * @example
 * using tensors = await loadTensors('model.safetensors');
 * tensors.get('lm_head.weight').shape; // [32000, 4096]
 * for (const [name, array] of tensors) console.log(name, array.dtype.name);
 */
export class TensorMap extends Resource implements Iterable<[name: string, array: DeviceArray]> {
  /** All of the memory. Each tensor begins at a multiple of 256 bytes. */
  readonly buffer: DeviceBuffer;
  /** The bytes of the tensors. Those that several names share count once. */
  readonly byteLength: number;
  /** The `__metadata__` of the file; of all files if there are several. */
  readonly metadata: ReadonlyMap<string, string>;
  /**
   * Which checkpoint it is: the SHA-256 digest of the base names and headers of its files, in hex. It is
   * the same whichever names were loaded. No weight is read for it: files that differ only in their weights
   * have the same fingerprint.
   */
  readonly fingerprint: string;
  readonly #memory: Resource;
  readonly #tensors: ReadonlyMap<string, PlacedTensor>;

  /** @internal */
  constructor(init: TensorMapInit) {
    assertInternal(init, Object, 'TensorMap', 'loadTensors');
    // The memory is what must be released, and arrays keep only that alive.
    super('TensorMap', {});
    const { memory, buffer, tensors, byteLength, metadata, fingerprint } = init;
    memory.nameAsPartOf('TensorMap');
    this.#memory = memory;
    this.#tensors = tensors;
    this.buffer = buffer;
    this.byteLength = byteLength;
    this.metadata = metadata;
    this.fingerprint = fingerprint;
  }

  get context(): Context {
    return this.buffer.context;
  }

  /** The number of names. */
  get size(): number {
    return this.#tensors.size;
  }

  /** Whether there is a tensor of this name. */
  has(name: string): boolean {
    return this.#tensors.has(name);
  }

  /**
   * Returns a tensor as an array, which is a view of the map's memory. Items for which cuffi has no dtype,
   * such as those of `F8_E8M0`, are raw bytes (uint8); items that are not whole bytes, such as those of
   * `F4`, are bytes along one axis. {@link dtypeOf} and {@link shapeOf} tell what they are.
   *
   * @throws RangeError for an unknown name; ClosedError
   */
  get(name: string): DeviceArray {
    const { dtype, layout } = this.#tensor(name);
    this.assertOpen();
    return this.#arrayOf(dtype, layout);
  }

  /** The dtype of a tensor in its file, e.g. `BF16`. @throws RangeError for an unknown name */
  dtypeOf(name: string): TensorDtype {
    return this.#tensor(name).storedDtype;
  }

  /** The shape of a tensor in its file. @throws RangeError for an unknown name */
  shapeOf(name: string): readonly number[] {
    return this.#tensor(name).storedShape;
  }

  /** All names, in the order of the files. */
  names(): string[] {
    return [...this.#tensors.keys()];
  }

  /** All names with their arrays. @throws ClosedError */
  *entries(): Generator<[name: string, array: DeviceArray], void, void> {
    for (const [name, { dtype, layout }] of this.#tensors) {
      this.assertOpen();
      yield [name, this.#arrayOf(dtype, layout)];
    }
  }

  [Symbol.iterator](): Generator<[name: string, array: DeviceArray], void, void> {
    return this.entries();
  }

  override get closed(): boolean {
    return super.closed || this.#memory.closed;
  }

  /** Frees the memory as soon as no work uses it, and closes all arrays; does nothing the second time. */
  override close(): void {
    this.#memory.close();
    super.close();
  }

  override [Symbol.dispose](): void {
    this.#memory[Symbol.dispose]();
    super[Symbol.dispose]();
  }

  /** @internal */
  protected override get closedWith(): Resource {
    return this.#memory;
  }

  /** @internal */
  protected override describe(): Details {
    return [counted(this.size, 'tensor'), formatBytes(this.byteLength), placeName(this.context)];
  }

  /** @internal */
  protected override operandAdvice(): string {
    return 'take an array, `tensors.get(name)`';
  }

  #arrayOf(dtype: Dtype, layout: Layout): DeviceArray {
    const { buffer } = this;
    const readOnly = buffer.access === 'read';
    // The array takes the lists of its layout, and freezes them.
    return new DeviceArray({ buffer, dtype, layout: { ...layout }, isOwner: false, readOnly });
  }

  #tensor(name: string): PlacedTensor {
    const tensor = this.#tensors.get(checkString(name, 'name'));
    if (!tensor) throw unknownName(name, this.#tensors);
    return tensor;
  }
}

/** The error for a name that is not there, with the nearest name. */
export const unknownName = (
  name: string,
  known: { readonly size: number; keys(): Iterable<string> },
): RangeError => {
  // The names are from a file: comparing long ones, or those that cannot be near, takes time.
  const isNear = (other: string): boolean =>
    other.length <= LONGEST_NEAR && Math.abs(other.length - name.length) <= name.length / 4;
  const near = name.length <= LONGEST_NEAR ? [...known.keys()].filter(isNear) : [];
  return new RangeError(
    `there is no tensor ${formatValue(name)}${didYouMean(name, near)}; there are ${counted(known.size, 'other')}`,
  );
};

const LONGEST_NEAR = 200;
