/** Items on a device set to one value: it only queues. */
import { queueStridedFill } from '../kernel/builtin-kernels.ts';
import { fillPitched } from '../memory/pitched-memory.ts';
import type { Stream } from '../stream.ts';
import { copyOffsets, planCopy } from './copy-plan.ts';
import { type DeviceItems, queueCopyPlan } from './device-copy.ts';
import type { Layout } from './layout.ts';
import { sizeOf } from './shape.ts';

/** The bytes that one memset sets to one value. */
type WordLength = 1 | 2 | 4;

/** More memsets than this are dearer than one launch of a kernel, where it can be had. */
const MAX_MEMSETS_WITH_KERNEL = 3;

/** More memsets than this are dearer than copies of what is set already. */
const MAX_MEMSETS = 16;

/** A memset of single words is slow: of more items than this only the first ones are set so. */
const MAX_WORDWISE_ITEMS = 1024;

/** What all items are set to. */
interface Pattern {
  /** Its words; one where they are all the same. */
  readonly words: readonly number[];
  readonly wordLength: WordLength;
}

/** Queues the setting of items to the bytes of one. They must not overlap. */
export function queueFill(items: DeviceItems, item: Uint8Array, stream: Stream | undefined): void {
  const start = items.memory.address;
  if (sizeOf(items.layout.shape) === 0) return;
  const pattern = patternOf(item, wordLengthOf(start, items.layout));
  const isCheap = suitsMemsets(items.layout, pattern, MAX_MEMSETS_WITH_KERNEL);
  if (!isCheap && tryFillByKernel(items, item, stream)) return;
  fillByDoubling(items, pattern, stream);
}

/** Whether memsets alone set the items, and soon. */
const suitsMemsets = (layout: Layout, pattern: Pattern, maxMemsets = MAX_MEMSETS): boolean =>
  countMemsets(layout, pattern) <= maxMemsets &&
  (pattern.words.length === 1 || sizeOf(layout.shape) <= MAX_WORDWISE_ITEMS);

/** Sets the items by one launch of a kernel; false where that cannot be. */
function tryFillByKernel(
  { memory, layout }: DeviceItems,
  item: Uint8Array,
  stream: Stream | undefined,
): boolean {
  const plan = planCopy(layout, layout);
  if (!plan) return true;
  const { width, axes } = plan;
  const target = memory.writableAddress + plan.target.byteOffset;
  return queueStridedFill({ context: memory.context, target, width, axes }, item, stream);
}

/** Sets items word by word where that takes few memsets; else the first of them, which it doubles. */
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

/** The longest word that begins and ends with the items, wherever they are. */
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

/** The items of the `n`-th words of all items. */
const wordLayout = (layout: Layout, n: number, { words, wordLength }: Pattern): Layout =>
  words.length === 1
    ? layout
    : { ...layout, itemsize: wordLength, byteOffset: layout.byteOffset + n * wordLength };

function countMemsets(layout: Layout, pattern: Pattern): number {
  const first = wordLayout(layout, 0, pattern);
  const plan = planCopy(first, first);
  return plan ? plan.count * plan.depth * pattern.words.length : 0;
}

/** Sets the items word by word: all their first words, then all their second ones. */
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
