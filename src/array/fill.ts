/** Items on a device set to one value: it only queues. */
import { queueStridedFill } from '../kernel/strided.ts';
import { fillPitched } from '../memory/pitched-memory.ts';
import type { Stream } from '../stream.ts';
import { copiesOf, copyPlan } from './copy-plan.ts';
import { type DeviceItems, queuePlan } from './device-copy.ts';
import type { Layout } from './layout.ts';
import { sizeOf } from './shape.ts';

/** The bytes that one memset sets to one value. */
type WordLength = 1 | 2 | 4;

/** More memsets than this are dearer than one launch of a kernel, where it can be had. */
const MOST_BESIDE_A_KERNEL = 3;

/** More memsets than this are dearer than copies of what is set already. */
const MOST_MEMSETS = 16;

/** A memset of single words is slow: of more items than this only the first ones are set so. */
const SEED = 1024;

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
  const isSoon = isForMemsets(items.layout, pattern, MOST_BESIDE_A_KERNEL);
  if (!isSoon && fillByKernel(items, item, stream)) return;
  fillPart(items, pattern, stream);
}

/** Whether memsets alone set the items, and soon. */
const isForMemsets = (layout: Layout, pattern: Pattern, most = MOST_MEMSETS): boolean =>
  memsetsOf(layout, pattern) <= most &&
  (pattern.words.length === 1 || sizeOf(layout.shape) <= SEED);

/** Sets the items by one launch of a kernel; false where that cannot be. */
function fillByKernel(
  { memory, layout }: DeviceItems,
  item: Uint8Array,
  stream: Stream | undefined,
): boolean {
  const plan = copyPlan(layout, layout);
  if (!plan) return true;
  const { width, axes } = plan;
  const target = memory.writableAddress + plan.target.byteOffset;
  return queueStridedFill({ context: memory.context, target, width, axes }, item, stream);
}

/** Sets items word by word where that takes few memsets; else the first of them, which it doubles. */
function fillPart(items: DeviceItems, pattern: Pattern, stream: Stream | undefined): void {
  const { layout } = items;
  const { shape, strides } = layout;
  const [slowest, ...others] = [...shape.keys()]
    .filter((axis) => shape[axis] !== 1)
    .sort((a, b) => Math.abs(strides[b] as number) - Math.abs(strides[a] as number));
  if (slowest === undefined || isForMemsets(layout, pattern)) {
    setWords(items, pattern, stream);
    return;
  }
  const isFew = memsetsOf(layout, pattern) <= MOST_MEMSETS;
  const length = shape[slowest] as number;
  const part = (from: number, count: number): Layout => ({
    ...layout,
    shape: shape.with(slowest, count),
    byteOffset: layout.byteOffset + from * (strides[slowest] as number),
  });
  const first = others.length === 0 && isFew ? SEED : 1;
  fillPart({ ...items, layout: part(0, first) }, pattern, stream);
  for (let done = first; done < length; done *= 2) {
    const more = Math.min(done, length - done);
    const plan = copyPlan(part(0, more), part(done, more));
    if (plan) queuePlan(plan, items.memory, items.memory, stream);
  }
}

/** The longest word that begins and ends with the items, wherever they are. */
function wordLengthOf(start: number, { shape, strides, itemsize, byteOffset }: Layout): WordLength {
  const steps = strides.filter((_, axis) => shape[axis] !== 1);
  const isOf = (length: number): boolean =>
    [start + byteOffset, itemsize, ...steps].every((step) => step % length === 0);
  return isOf(4) ? 4 : isOf(2) ? 2 : 1;
}

function patternOf(item: Uint8Array, wordLength: WordLength): Pattern {
  const view = new DataView(item.buffer, item.byteOffset, item.byteLength);
  const wordAt = (at: number): number => {
    if (wordLength === 4) return view.getUint32(at, true);
    return wordLength === 2 ? view.getUint16(at, true) : view.getUint8(at);
  };
  const words = Array.from({ length: item.length / wordLength }, (_, n) => wordAt(n * wordLength));
  const isEven = words.every((word) => word === words[0]);
  return { words: isEven ? words.slice(0, 1) : words, wordLength };
}

/** The items of the `n`-th words of all items. */
const wordsOf = (layout: Layout, n: number, { words, wordLength }: Pattern): Layout =>
  words.length === 1
    ? layout
    : { ...layout, itemsize: wordLength, byteOffset: layout.byteOffset + n * wordLength };

function memsetsOf(layout: Layout, pattern: Pattern): number {
  const first = wordsOf(layout, 0, pattern);
  const plan = copyPlan(first, first);
  return plan ? plan.count * plan.depth * pattern.words.length : 0;
}

/** Sets the items word by word: all their first words, then all their second ones. */
function setWords(
  { memory, layout }: DeviceItems,
  pattern: Pattern,
  stream: Stream | undefined,
): void {
  const options = { elementByteLength: pattern.wordLength, ...(stream && { stream }) };
  for (const [n, word] of pattern.words.entries()) {
    const words = wordsOf(layout, n, pattern);
    const plan = copyPlan(words, words);
    if (!plan) continue;
    const { width, height, depth } = plan;
    for (const [, byteOffset] of copiesOf(plan))
      fillPitched({ memory, ...plan.target, byteOffset }, word, { width, height, depth }, options);
  }
}
