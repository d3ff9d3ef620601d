/** Strided copies between host memories. */
import { type CopyPlan, copiesOf, type Pitches } from './copy-plan.ts';

/** How much is done between two chances to do something else. */
const BYTES_IN_A_TURN = 4 << 20;
const ROWS_IN_A_TURN = 1 << 17;
/** From here on a row is quicker copied as one than unit by unit. */
const LONG_ROW = 64;

/** Typed arrays over the whole of both memories, whose elements all places of a plan are whole of. */
interface Units {
  readonly byteLength: number;
  readonly source: Uint8Array | Uint16Array | Uint32Array;
  readonly target: Uint8Array | Uint16Array | Uint32Array;
}

/**
 * Carries a plan out between host memories, and yields now and then, so that the event loop may
 * turn; a blocking caller just goes on. The memories must not overlap.
 */
export function* copyOnHost(
  plan: CopyPlan,
  source: Uint8Array,
  target: Uint8Array,
): Generator<void, void> {
  const { width, height, depth } = plan;
  const units = width < LONG_ROW ? unitsOf(plan, source, target) : undefined;
  let bytes = 0;
  let rows = 0;
  for (const [from, to] of copiesOf(plan))
    for (let z = 0; z < depth; z += 1)
      for (let y = 0; y < height; y += 1) {
        const begin = from + z * plan.source.slicePitch + y * plan.source.rowPitch;
        const end = to + z * plan.target.slicePitch + y * plan.target.rowPitch;
        if (units) copyRow(units, begin, end, width);
        else target.set(source.subarray(begin, begin + width), end);
        bytes += width;
        rows += 1;
        if (bytes < BYTES_IN_A_TURN && rows < ROWS_IN_A_TURN) continue;
        bytes = 0;
        rows = 0;
        yield;
      }
}

function copyRow({ byteLength, source, target }: Units, from: number, to: number, width: number) {
  const begin = from / byteLength;
  const end = to / byteLength;
  const length = width / byteLength;
  for (let i = 0; i < length; i += 1) target[end + i] = source[begin + i] as number;
}

function unitsOf(plan: CopyPlan, source: Uint8Array, target: Uint8Array): Units {
  const steps = ({ byteOffset, rowPitch, slicePitch }: Pitches, memory: Uint8Array): number[] => [
    memory.byteOffset,
    byteOffset,
    rowPitch,
    slicePitch,
  ];
  const all = [
    plan.width,
    ...steps(plan.source, source),
    ...steps(plan.target, target),
    ...plan.repetitions.flatMap((axis) => [axis.source, axis.target]),
  ];
  const isOf = (byteLength: number): boolean => all.every((step) => step % byteLength === 0);
  const Unit = isOf(4) ? Uint32Array : isOf(2) ? Uint16Array : Uint8Array;
  const over = (memory: Uint8Array): Uint8Array | Uint16Array | Uint32Array =>
    new Unit(
      memory.buffer as ArrayBuffer,
      memory.byteOffset,
      Math.floor(memory.byteLength / Unit.BYTES_PER_ELEMENT),
    );
  return { byteLength: Unit.BYTES_PER_ELEMENT, source: over(source), target: over(target) };
}
