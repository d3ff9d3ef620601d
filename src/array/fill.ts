/** Queues fills: sets items on a device to one value. */
import { queueStridedFill } from '../kernel/builtin-kernels.ts';
import { fillPitched } from '../memory/pitched-memory.ts';
import type { Stream } from '../stream.ts';
import { copyOffsets, planCopy } from './copy-plan.ts';
import { type DeviceItems, queueCopyPlan } from './device-copy.ts';
import type { Layout } from './layout.ts';
import { sizeOf } from './shape.ts';

/** The length of the word that a memset repeats, in bytes. */
type WordLength = 1 | 2 | 4;

/** More memsets than this are slower than one kernel launch. */
const MAX_MEMSETS_WITH_KERNEL = 3;

/** More memsets than this are slower than copying items that are set already. */
const MAX_MEMSETS = 16;

/** Memsets of single words are slow: with more items than this, only the first ones are set so. */
const MAX_WORDWISE_ITEMS = 1024;

/** The value of all items, as words. */
interface Pattern {
  /** The words of an item; a single one if they are all equal. */
  readonly words: readonly number[];
  readonly wordLength: WordLength;
}

/** Queues a fill of all items with the bytes of one. The items must not overlap. */
export function queueFill(items: DeviceItems, item: Uint8Array, stream: Stream | undefined): void {
  const start = items.memory.readableAddress;
  if (sizeOf(items.layout.shape) === 0) return;
  const pattern = patternOf(item, wordLengthOf(start, items.layout));
  const isCheap = suitsMemsets(items.layout, pattern, MAX_MEMSETS_WITH_KERNEL);
  if (!isCheap && tryFillByKernel(items, item, stream)) return;
  fillByDoubling(items, pattern, stream);
}

/** Whether few memsets are enough to set all items. */
const suitsMemsets = (layout: Layout, pattern: Pattern, maxMemsets = MAX_MEMSETS): boolean =>
  countMemsets(layout, pattern) <= maxMemsets &&
  (pattern.words.length === 1 || sizeOf(layout.shape) <= MAX_WORDWISE_ITEMS);

/** Sets the items by one kernel launch; returns false if that is not possible. */
function tryFillByKernel(
  { memory, layout }: DeviceItems,
  item: Uint8Array,
  stream: Stream | undefined,
): boolean {
  const plan = planCopy(layout, layout);
  if (!plan) return true;
  const { width, axes } = plan;
  const target = memory.writableAddress + plan.target.byteOffset;
  memory.orderUse(stream);
  return queueStridedFill({ context: memory.context, target, width, axes }, item, stream);
}

/** Sets all items by memsets if few are enough; otherwise sets the first ones and doubles them. */
function fillByDoubling(items: DeviceItems, pattern: Pattern, stream: Stream | undefined): void {
  const { layout } = items;
  const { shape, strides } = layout;
  const [slowest, ...others] = [...shape.keys()]
    .filter((axis) => shape[axis] !== 1)
    .sort((a, b) => Math.abs(strides[b] as number) - Math.abs(strides[a] as number));
  if (slowest === undefined || suitsMemsets(layout, pattern)) {
    memsetWords(items, pattern, stream);
    return;
  }
  const isFew = countMemsets(layout, pattern) <= MAX_MEMSETS;
  const length = shape[slowest] as number;
  const part = (from: number, count: number): Layout => ({
    ...layout,
    shape: shape.with(slowest, count),
    byteOffset: layout.byteOffset + from * (strides[slowest] as number),
  });
  const first = others.length === 0 && isFew ? MAX_WORDWISE_ITEMS : 1;
  fillByDoubling({ ...items, layout: part(0, first) }, pattern, stream);
  for (let done = first; done < length; done *= 2) {
    const more = Math.min(done, length - done);
    const plan = planCopy(part(0, more), part(done, more));
    if (plan) queueCopyPlan(plan, items.memory, items.memory, stream);
  }
}

/** The longest word to which all items are aligned. */
function wordLengthOf(start: number, { shape, strides, itemsize, byteOffset }: Layout): WordLength {
  const steps = strides.filter((_, axis) => shape[axis] !== 1);
  const isMultipleOf = (length: number): boolean =>
    [start + byteOffset, itemsize, ...steps].every((step) => step % length === 0);
  return isMultipleOf(4) ? 4 : isMultipleOf(2) ? 2 : 1;
}

function patternOf(item: Uint8Array, wordLength: WordLength): Pattern {
  const view = new DataView(item.buffer, item.byteOffset, item.byteLength);
  const wordAt = (at: number): number => {
    if (wordLength === 4) return view.getUint32(at, true);
    return wordLength === 2 ? view.getUint16(at, true) : view.getUint8(at);
  };
  const words = Array.from({ length: item.length / wordLength }, (_, n) => wordAt(n * wordLength));
  const isUniform = words.every((word) => word === words[0]);
  return { words: isUniform ? words.slice(0, 1) : words, wordLength };
}

/** The layout of the `n`-th words of all items. */
const wordLayout = (layout: Layout, n: number, { words, wordLength }: Pattern): Layout =>
  words.length === 1
    ? layout
    : { ...layout, itemsize: wordLength, byteOffset: layout.byteOffset + n * wordLength };

function countMemsets(layout: Layout, pattern: Pattern): number {
  const first = wordLayout(layout, 0, pattern);
  const plan = planCopy(first, first);
  return plan ? plan.count * plan.depth * pattern.words.length : 0;
}

/** Sets the first words of all items, then all second words, and so on. */
function memsetWords(
  { memory, layout }: DeviceItems,
  pattern: Pattern,
  stream: Stream | undefined,
): void {
  const options = { elementByteLength: pattern.wordLength, ...(stream && { stream }) };
  for (const [n, word] of pattern.words.entries()) {
    const words = wordLayout(layout, n, pattern);
    const plan = planCopy(words, words);
    if (!plan) continue;
    const { width, height, depth } = plan;
    for (const [, byteOffset] of copyOffsets(plan))
      fillPitched({ memory, ...plan.target, byteOffset }, word, { width, height, depth }, options);
  }
}
