/**
 * Native memory: addresses of typed arrays, and views of memory at an address. Every argument is
 * checked, because koffi aborts the process for some wrong ones.
 */
import { constants } from 'node:buffer';
import { koffi } from './koffi.ts';
import type { Address } from './types.ts';

/** Node aborts for a larger ArrayBuffer. View larger memory in parts. */
export const MAX_VIEW_BYTE_LENGTH: number = Math.min(constants.MAX_LENGTH, 2 ** 32);

/**
 * The address of a view's first byte. The number does not keep the memory alive: keep a reference to
 * `view` until the last use of its address (see {@link withAddress}).
 */
export const addressOf = (view: ArrayBufferView): Address =>
  view.byteLength === 0 ? (0 as Address) : (Number(koffi().address(view)) as Address);

let keepalive: ArrayBufferView | undefined;

/** Calls `use` with the address of `view`, and keeps `view` alive until `use` returns. */
export function withAddress<T>(view: ArrayBufferView, use: (address: Address) => T): T {
  const outer = keepalive;
  keepalive = view;
  try {
    return use(addressOf(view));
  } finally {
    keepalive = outer;
  }
}

/**
 * Memory at an address as an ArrayBuffer, without a copy. Touching a view after the memory was
 * unmapped kills the process.
 *
 * @throws RangeError for address 0, or a length that is not an integer in 1..{@link
 * MAX_VIEW_BYTE_LENGTH}
 */
export function viewMemory(address: Address, byteLength: number): ArrayBuffer {
  if (!Number.isSafeInteger(address) || address <= 0)
    throw new RangeError(`cannot view memory at address ${address}`);
  if (!Number.isSafeInteger(byteLength) || byteLength < 1 || byteLength > MAX_VIEW_BYTE_LENGTH)
    throw new RangeError(
      `cannot view ${byteLength} bytes: a view has 1 to ${MAX_VIEW_BYTE_LENGTH}; use several for more`,
    );
  return koffi().view(BigInt(address), byteLength);
}

/** Allocates native memory for the life of the process. */
export const allocatePermanent = (byteLength: number): Address => allocateNative(byteLength);

/** Allocates uninitialised native memory. Free it with {@link freeNative}. */
export function allocateNative(byteLength: number): Address {
  if (!Number.isSafeInteger(byteLength) || byteLength < 1 || byteLength > 2 ** 31 - 1)
    throw new RangeError(`cannot allocate ${byteLength} bytes of native memory`);
  return Number(koffi().alloc('uint8', byteLength)) as Address;
}

/** Frees memory of {@link allocateNative}. Views of it must not be used afterwards. */
export const freeNative = (address: Address): void => koffi().free(BigInt(address));

/** The zero-terminated UTF-8 string at `address`, which must be valid. '' for address 0. */
export const stringAt = (address: Address): string =>
  address === 0 ? '' : koffi().decode.string(BigInt(address));
