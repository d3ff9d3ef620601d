/** Items on a device set to one value: it only queues. */
import { fillPitched } from '../memory/fill-pitched.ts';
import type { Stream } from '../stream.ts';
import { copiesOf, copyPlan } from './copy-plan.ts';
import type { DeviceItems } from './device-copy.ts';
import { isContiguous, type Layout } from './layout.ts';
import { sizeOf } from './shape.ts';

/** The bytes that one memset sets to one value. */
type WordLength = 1 | 2 | 4;

/** From here on the first items are doubled, as setting single words is slow. */
const SEED = 1024;

/** Queues the setting of items to the bytes of one. They must not overlap. */
export function queueFill(items: DeviceItems, item: Uint8Array, stream: Stream | undefined): void {
  const start = items.memory.address;
  const { layout } = items;
  const size = sizeOf(layout.shape);
  if (size === 0) return;
  const word = wordLength(start, layout);
  const even = evenLength(item);
  if (even <= word) {
    fillWords(items, evenWord(item, word), word, stream);
    return;
  }
  const isOne = isContiguous(layout, 'C') || isContiguous(layout, 'F');
  if (!isOne || size <= SEED) {
    setEach(items, item, word, stream);
    return;
  }
  const { itemsize, byteOffset } = layout;
  setEach(
    { ...items, layout: { ...layout, shape: [SEED], strides: [itemsize] } },
    item,
    word,
    stream,
  );
  const run = items.memory.subarray(byteOffset, byteOffset + size * itemsize);
  const options = stream ? { stream } : {};
  for (let done = SEED * itemsize; done < run.byteLength; done *= 2) {
    const more = Math.min(done, run.byteLength - done);
    run.subarray(0, more).copyTo(run.subarray(done), options);
  }
}

/** The longest word that begins and ends with the items, wherever they are. */
function wordLength(start: number, { shape, strides, itemsize, byteOffset }: Layout): WordLength {
  const steps = strides.filter((_, axis) => shape[axis] !== 1);
  const isOf = (length: number): boolean =>
    [start + byteOffset, itemsize, ...steps].every((step) => step % length === 0);
  return isOf(4) ? 4 : isOf(2) ? 2 : 1;
}

/** After how many bytes the item repeats itself; Infinity where that is not within a word. */
function evenLength(item: Uint8Array): number {
  const repeats = (length: number): boolean =>
    item.length % length === 0 && item.every((byte, at) => byte === item[at % length]);
  return repeats(1) ? 1 : repeats(2) ? 2 : repeats(4) ? 4 : Infinity;
}

/** A word of an item, the bytes from `at` on, as a number. */
const wordAt = (item: Uint8Array, at: number, length: WordLength): number => {
  const word = new DataView(item.buffer, item.byteOffset + at, length);
  if (length === 4) return word.getUint32(0, true);
  return length === 2 ? word.getUint16(0, true) : word.getUint8(0);
};

const evenWord = (item: Uint8Array, length: WordLength): number => wordAt(item, 0, length);

/** Sets the items word by word: all their first words, then all their second ones. */
function setEach(
  { memory, layout }: DeviceItems,
  item: Uint8Array,
  word: WordLength,
  stream: Stream | undefined,
): void {
  for (let at = 0; at < item.length; at += word) {
    const words = { ...layout, itemsize: word, byteOffset: layout.byteOffset + at };
    fillWords({ memory, layout: words }, wordAt(item, at, word), word, stream);
  }
}

function fillWords(
  { memory, layout }: DeviceItems,
  value: number,
  elementByteLength: WordLength,
  stream: Stream | undefined,
): void {
  const plan = copyPlan(layout, layout);
  if (!plan) return;
  const { width, height, depth } = plan;
  const options = { elementByteLength, ...(stream ? { stream } : {}) };
  for (const [, byteOffset] of copiesOf(plan))
    fillPitched({ memory, ...plan.target, byteOffset }, value, { width, height, depth }, options);
}
