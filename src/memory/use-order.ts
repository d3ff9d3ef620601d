/**
 * The order of work that uses memory: behind the allocation of pool memory, and behind the work of
 * processes that have returned the memory. Notes which contexts use memory of others, and which streams use
 * memory of another process.
 */

import type { Context } from '../context.ts';
import { addCapturedContexts, isCapturing } from '../graph-capture.ts';
import type { Stream } from '../stream.ts';
import type { TrackedContext } from '../work-tracker.ts';

/** Called before work in a stream uses the memory. Undefined for the legacy default stream of its context. */
export type UseOrder = (stream: Stream | undefined) => void;

/** How many memories have an order. Without any, no launch looks for its memory. */
export let orderedMemoryCount = 0;

/** Counts memory that has an order of its own. */
export function addOrderedMemory(): void {
  orderedMemoryCount += 1;
}

/** Ends {@link addOrderedMemory}. Call it once for each. */
export function removeOrderedMemory(): void {
  orderedMemoryCount -= 1;
}

// Stored on the object: a WeakMap with an entry for each object would slow down garbage collection.
const ORDERS = Symbol('use orders');
const ADDRESS_KNOWN = Symbol('address known');

interface WithOrders {
  [ORDERS]?: Set<UseOrder>;
  [ADDRESS_KNOWN]?: true;
}

/** Whether cuffi reads addresses for a call whose use it states. */
let isReadForCall = false;

/** Returns the address of memory for a call whose use of it is stated. @throws ClosedError */
export function readAddressForCall(memory: { readonly address?: unknown }): unknown {
  isReadForCall = true;
  try {
    return memory.address;
  } finally {
    isReadForCall = false;
  }
}

/** Notes that a program has read an address, so that work which cuffi does not see may use the memory. */
export function noteAddressRead(owner: object, uses: MemoryUses | undefined): void {
  if (isReadForCall) return;
  if (uses) uses.isAddressKnown = true;
  else (owner as WithOrders)[ADDRESS_KNOWN] = true;
}

/** Whether work that cuffi does not see may use what an object owns. */
export const isAddressKnown = (owner: object): boolean =>
  (owner as WithOrders)[ADDRESS_KNOWN] === true;

/**
 * Adds an order for all uses of what an object owns. Returns a function that removes it.
 *
 * @param owner the buffer that owns the memory, or the virtual memory that it lies in
 */
export function addUseOrder(owner: object, order: UseOrder): () => void {
  const orders = (owner as WithOrders)[ORDERS] ?? new Set<UseOrder>();
  (owner as WithOrders)[ORDERS] = orders.add(order);
  addOrderedMemory();
  return () => {
    if (orders.delete(order)) removeOrderedMemory();
  };
}

/** Calls the orders that were added for an owner of memory. */
export function callUseOrders(owner: object, stream: Stream | undefined): void {
  const orders = (owner as WithOrders)[ORDERS];
  if (orders) for (const order of orders) order(stream);
}

// ---- Which contexts and streams use memory ----

/**
 * Records that work in a stream of `workContext` uses memory of `memoryContexts`, which must
 * outlive it.
 */
export function noteMemoryUse(
  workContext: Context,
  memoryContexts: readonly TrackedContext[],
): void {
  // The most common case skips the loops.
  if (memoryContexts.length === 1 && memoryContexts[0] === workContext && !isCapturing()) return;
  for (const { workTracker } of memoryContexts)
    workTracker.addOtherContext(workContext.workTracker);
  addCapturedContexts(memoryContexts);
}

/** The streams that work with memory was queued in: behind it the memory goes back to its owner. */
export class MemoryUses {
  /** Made at the first use: most memory is used in the default stream, or passed on unused. */
  #streams: Set<Stream> | undefined;
  #isUsedByDefault = false;
  /** Whether the address was read, so that other work may use the memory. */
  isAddressKnown = false;

  add(stream: Stream | undefined): void {
    if (!stream) this.#isUsedByDefault = true;
    else this.#streams = (this.#streams ?? new Set()).add(stream);
  }

  /** The streams, with undefined for the legacy default stream. Undefined if other work may use the memory. */
  get streams(): readonly (Stream | undefined)[] | undefined {
    if (this.isAddressKnown) return undefined;
    if (!this.#streams) return this.#isUsedByDefault ? ONLY_DEFAULT : NO_STREAMS;
    return this.#isUsedByDefault ? [undefined, ...this.#streams] : [...this.#streams];
  }
}

const NO_STREAMS: readonly Stream[] = [];
const ONLY_DEFAULT: readonly (Stream | undefined)[] = [undefined];
