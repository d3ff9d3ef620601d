/**
 * Native memory as JavaScript sees it: addresses of typed arrays, and views of foreign memory. koffi
 * aborts the process on some wrong arguments here, so every one is checked first.
 */
import { constants } from 'node:buffer';
import koffi from 'koffi';
import type { Address } from './types.ts';

/** Node refuses (by aborting) ArrayBuffers above this many bytes; larger memory needs windows. */
export const MAX_VIEW_BYTE_LENGTH: number = Math.min(constants.MAX_LENGTH, 2 ** 32);

/**
 * The address of a view's first byte. The number does not keep the memory alive: hold `view`
 * until the last use of its address (see {@link withAddress}).
 */
export const addressOf = (view: ArrayBufferView): Address =>
  view.byteLength === 0 ? (0 as Address) : (Number(koffi.address(view)) as Address);

let keepalive: ArrayBufferView | undefined;

/** Calls `use` with the address of `view`, which cannot be collected before `use` returns. */
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
 * Foreign memory as an ArrayBuffer, without a copy. The caller unmaps the memory only when no
 * view of it is used any more: touching one then kills the process.
 *
 * @throws RangeError for address 0, or a length that is no integer in 1..{@link MAX_VIEW_BYTE_LENGTH}
 */
export function viewMemory(address: Address, byteLength: number): ArrayBuffer {
  if (!Number.isSafeInteger(address) || address <= 0)
    throw new RangeError(`cannot view memory at address ${address}`);
  if (!Number.isSafeInteger(byteLength) || byteLength < 1 || byteLength > MAX_VIEW_BYTE_LENGTH)
    throw new RangeError(
      `cannot view ${byteLength} bytes: from 1 to ${MAX_VIEW_BYTE_LENGTH}; use windows for more`,
    );
  return koffi.view(BigInt(address), byteLength);
}

/** Native memory that lives as long as the process. */
export const allocatePermanent = (byteLength: number): Address => allocateNative(byteLength);

/** Native memory, uninitialised, until {@link freeNative}. */
export function allocateNative(byteLength: number): Address {
  if (!Number.isSafeInteger(byteLength) || byteLength < 1 || byteLength > 2 ** 31 - 1)
    throw new RangeError(`cannot allocate ${byteLength} bytes of native memory`);
  return Number(koffi.alloc('uint8', byteLength)) as Address;
}

/** Gives back what {@link allocateNative} gave out; views of it must not be touched any more. */
export const freeNative = (address: Address): void => koffi.free(BigInt(address));

/** The zero-terminated UTF-8 string at `address`, which must be valid; '' for address 0. */
export const stringAt = (address: Address): string =>
  address === 0 ? '' : koffi.decode.string(BigInt(address));
