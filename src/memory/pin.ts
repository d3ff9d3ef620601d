import { types } from 'node:util';
import { withAddress } from '../../ffi/native.ts';
import { Context, type PlaceOptions } from '../context.ts';
import { counted, type Details, placeName } from '../inspect.ts';
import { Resource, runAll } from '../lifetime.ts';
import {
  assertInternal,
  checkBoolean,
  checkHostMemory,
  checkOptions,
  type HostMemory,
} from '../validate.ts';
import { memoryManagerOf } from './buffer.ts';
import { assertSupported, enqueueReleaseQuietly } from './host-allocation.ts';
import { type LockFlags, lockPages, type PageLock } from './page-lock.ts';

/** Options of {@link pin}. */
export interface PinOptions extends PlaceOptions {
  /** Whether every context of the process treats them as page-locked. Default true. */
  readonly portable?: boolean;
}

/** Typed arrays that stay page-locked until this is closed; see {@link pin}. */
export class PinnedArrays extends Resource {
  readonly context: Context;
  readonly arrays: readonly HostMemory[];

  /** @internal */
  constructor(context: Context, arrays: readonly HostMemory[], release: () => void) {
    assertInternal(context, Context, 'PinnedArrays', 'pin');
    super('PinnedArrays', { owner: context.resources, release });
    this.context = context;
    this.arrays = arrays;
  }

  /** @internal */
  protected override describe(): Details {
    const byteLength = this.arrays.reduce((sum, array) => sum + array.byteLength, 0);
    return [counted(this.arrays.length, 'array'), `${byteLength} bytes`, placeName(this.context)];
  }
}

/**
 * Page-locks typed arrays in place until the result is closed, like numba's `pinned`. The device
 * then copies from and to them directly, without the driver's staging memory. Locks either all
 * arrays or none.
 *
 * Worth it for large arrays that are copied several times. Whole pages are locked, so two pinned
 * arrays must not share a page. The arrays stay alive meanwhile and must not be transferred to
 * another thread: `close()` emits a process warning with the code `CUFFI_DETACHED` for each that
 * was.
 *
 * @example
 * const floats = new Float32Array(1 << 24);
 * {
 *   using pinned = cuda.pin(floats);
 *   await buffer.copyFrom(floats);
 * }
 * @throws TypeError for a value that is not a typed array, DataView, Buffer or ArrayBuffer, that is
 * resizable, or that is given twice; RangeError for an empty one, or one that shares a page with
 * another
 * @see https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__MEM.html
 */
export function pin(...arrays: HostMemory[]): PinnedArrays;
export function pin(...arraysThenOptions: [...HostMemory[], PinOptions]): PinnedArrays;
export function pin(...args: (HostMemory | PinOptions)[]): PinnedArrays {
  const last = args.at(-1);
  const given = isOptions(last) ? last : undefined;
  const { portable, ...place } = checkOptions(given, ['context', 'device', 'portable'], 'pin');
  const flags = { portable: checkBoolean(portable, 'portable', true), mapped: false };
  const arrays = (given ? args.slice(0, -1) : args) as HostMemory[];
  if (arrays.length === 0) throw new TypeError('pin: give at least one typed array');
  const ranges = arrays.map((array, at) => checkPinnable(array, `arrays[${at}]`));
  for (const [at, range] of ranges.entries()) assertDistinct(ranges.slice(0, at), range, at);

  const context = Context.resolve(place);
  const manager = memoryManagerOf(context);
  const locks: PageLock[] = [];
  try {
    for (const [at, memory] of ranges.entries())
      locks.push(
        manager?.lockHost(memory, flags) ?? lockHost(context, memory, `arrays[${at}]`, flags),
      );
  } catch (error) {
    for (const lock of locks) lock.markReleasing();
    enqueueReleaseQuietly(context, () => unlockAll(locks));
    throw error;
  }
  return new PinnedArrays(context, arrays, () => {
    warnOfDetached(ranges);
    for (const lock of locks) lock.markReleasing();
    context.releases.enqueue(() => unlockAll(locks));
  });
}

/**
 * @internal Page-locks host memory that the caller keeps in place.
 *
 * @throws NotSupportedError, RangeError if a page is already locked
 */
export function lockHost(
  context: Context,
  memory: Uint8Array,
  what: string,
  flags: LockFlags,
): PageLock {
  assertSupported(context, flags);
  return withAddress(memory, (address) =>
    lockPages(context, { address, byteLength: memory.byteLength, what, memory }, flags),
  );
}

const isOptions = (value: unknown): value is PinOptions =>
  typeof value === 'object' &&
  value !== null &&
  !Array.isArray(value) &&
  !ArrayBuffer.isView(value) &&
  !types.isAnyArrayBuffer(value);

/**
 * @internal Checks that host memory can be page-locked, and returns its bytes. @throws TypeError,
 * RangeError if empty
 */
export function checkPinnable(value: unknown, name: string): Uint8Array {
  const range = checkHostMemory(value, name);
  if ((range.buffer as { growable?: boolean }).growable)
    throw new TypeError(`${name} is growable: its memory cannot be page-locked as a whole`);
  if (range.byteLength === 0) throw new RangeError(`${name} is empty`);
  return range;
}

function assertDistinct(earlier: readonly Uint8Array[], range: Uint8Array, at: number): void {
  const duplicate = earlier.findIndex(
    ({ buffer, byteOffset, byteLength }) =>
      buffer === range.buffer && byteOffset === range.byteOffset && byteLength === range.byteLength,
  );
  if (duplicate >= 0) throw new TypeError(`arrays[${at}] is the same as arrays[${duplicate}]`);
}

const unlockAll = (locks: readonly PageLock[]): void =>
  runAll(locks.map((lock) => () => lock.unlock()).reverse());

function warnOfDetached(ranges: readonly Uint8Array[]): void {
  const detached = ranges.flatMap(({ byteLength }, at) => (byteLength === 0 ? [at] : []));
  if (detached.length === 0) return;
  process.emitWarning(
    `${detached.map((at) => `arrays[${at}]`).join(', ')} of pin() went to another thread while page-locked: the memory may have been freed while the device used it`,
    { code: 'CUFFI_DETACHED' },
  );
}
