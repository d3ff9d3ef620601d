/** Implementations of cuffi's built-in kernels, whose PTX is in src/kernel. */
import type { EmulatedLaunch, RegisteredKernel } from '../emulated-kernels.ts';

const MAX_AXES = 8;
const AXES = { bytes: 3 * MAX_AXES * 8 } as const;

/** The layout of the items of a source or target. */
interface StridedOperand {
  readonly address: number;
  readonly strides: readonly number[];
}

const copy =
  (word: number): RegisteredKernel['run'] =>
  (launch, args) => {
    const [target, source, items, count, axes] = args as [
      number,
      number,
      bigint,
      number,
      Uint8Array,
    ];
    const [lengths, to, from] = parseAxes(axes, count);
    const into = viewOperand(launch, { address: target, strides: to }, lengths, word);
    const read = viewOperand(launch, { address: source, strides: from }, lengths, word);
    for (const [toOffset, fromOffset] of itemOffsets(
      runnableItems(launch, items),
      lengths,
      to,
      from,
    ))
      for (let byte = 0; byte < word; byte += 1)
        into.bytes[into.first + toOffset + byte] = read.bytes[
          read.first + fromOffset + byte
        ] as number;
  };

const fill =
  (word: number): RegisteredKernel['run'] =>
  (launch, args) => {
    const [target, low, high, items, count, axes] = args as [
      number,
      bigint,
      bigint,
      bigint,
      number,
      Uint8Array,
    ];
    const [lengths, to] = parseAxes(axes, count);
    const into = viewOperand(launch, { address: target, strides: to }, lengths, word);
    const value = new Uint8Array(BigUint64Array.of(low, high).buffer);
    for (const [offset] of itemOffsets(runnableItems(launch, items), lengths, to, to))
      for (let byte = 0; byte < word; byte += 1)
        into.bytes[into.first + offset + byte] = value[byte] as number;
  };

/** Lengths, strides of the target and strides of the source. */
function parseAxes(
  axes: Uint8Array,
  count: number,
): [lengths: number[], target: number[], source: number[]] {
  const words = new BigInt64Array(Uint8Array.from(axes).buffer);
  const part = (n: number): number[] =>
    Array.from(words.subarray(n * MAX_AXES, n * MAX_AXES + count), Number);
  return [part(0), part(1), part(2)];
}

/** The number of items, limited by the number of threads. */
const runnableItems = ({ grid, block }: EmulatedLaunch, items: bigint): number =>
  Math.min(Number(items), grid[0] * block[0]);

/** A view of all bytes of an operand, and the index of the first byte of item 0. */
function viewOperand(
  launch: EmulatedLaunch,
  { address, strides }: StridedOperand,
  lengths: readonly number[],
  word: number,
): { readonly bytes: Uint8Array; readonly first: number } {
  let low = 0;
  let high = word;
  for (const [axis, stride] of strides.entries()) {
    const reach = ((lengths[axis] as number) - 1) * stride;
    if (reach < 0) low += reach;
    else high += reach;
  }
  return { bytes: launch.view(address + low, Uint8Array, high - low), first: -low };
}

/** The byte offsets of each item in target and source. The first axis varies fastest. */
function* itemOffsets(
  items: number,
  lengths: readonly number[],
  to: readonly number[],
  from: readonly number[],
): Generator<readonly [to: number, from: number], void> {
  const index = lengths.map(() => 0);
  let [toOffset, fromOffset] = [0, 0];
  for (let item = 0; item < items; item += 1) {
    yield [toOffset, fromOffset];
    for (let axis = 0; axis < lengths.length; axis += 1) {
      const next = (index[axis] as number) + 1;
      const steps = next < (lengths[axis] as number) ? 1 : 1 - next;
      index[axis] = steps === 1 ? next : 0;
      toOffset += steps * (to[axis] as number);
      fromOffset += steps * (from[axis] as number);
      if (steps === 1) break;
    }
  }
}

/** The kernels by the names in the PTX. */
export const builtinKernels: ReadonlyMap<string, RegisteredKernel> = new Map<
  string,
  RegisteredKernel
>([
  ...[1, 2, 4, 8, 16].flatMap((word) =>
    [32, 64].flatMap((bits): [string, RegisteredKernel][] => [
      [
        `cuffi_copy_${word}_${bits}`,
        { params: ['pointer', 'pointer', 'uint64', 'uint32', AXES], run: copy(word) },
      ],
      [
        `cuffi_fill_${word}_${bits}`,
        { params: ['pointer', 'uint64', 'uint64', 'uint64', 'uint32', AXES], run: fill(word) },
      ],
    ]),
  ),
]);
