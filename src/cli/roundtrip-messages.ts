/** What the two processes of the round trip send each other: messages, which are checked on arrival, and values. */
import { loadZod } from '../ipc/load-zod.ts';
import type { infer as Infer } from '../ipc/zod.ts';
import { DeviceBuffer } from '../memory/buffer.ts';

const z = loadZod();

const sampleValues = z.array(z.int().min(0).max(0xffff_ffff)).max(8);

/** Messages from the parent. */
export const Request = z.discriminatedUnion('type', [
  z.strictObject({ type: z.literal('open'), buffer: z.instanceof(DeviceBuffer) }),
  z.strictObject({ type: z.literal('check') }),
  z.strictObject({ type: z.literal('receive'), byteLength: z.int().positive() }),
]);
export type Request = Infer<typeof Request>;

/** Messages from the child, in this order: one reply for each request. */
export const Reply = z.discriminatedUnion('type', [
  z.strictObject({ type: z.literal('ready') }),
  z.strictObject({
    type: z.literal('opened'),
    first: sampleValues,
    bytesCopied: z.int().nonnegative(),
    freeBefore: z.int().nonnegative(),
    freeAfter: z.int().nonnegative(),
  }),
  z.strictObject({
    type: z.literal('checked'),
    mismatches: z.int().nonnegative(),
    first: sampleValues,
  }),
  z.strictObject({ type: z.literal('received'), first: sampleValues }),
  z.strictObject({ type: z.literal('failed'), message: z.string().max(10_000) }),
]);
export type Reply = Infer<typeof Reply>;

/** The child's end of the pipe for the bytes that it copies to the device. */
export const COPY_FD = 3;

// ---- The values, which each process writes and the other checks: all different, and different on each side ----

/** The process that wrote a value. */
export type Side = 'parent' | 'child';

const valueAt = (side: Side, index: number): number => {
  const value = (Math.imul(index, 0x9e37_79b1) + 1) >>> 0;
  return side === 'parent' ? value : ~value >>> 0;
};

/** All values of one side. */
export const pattern = (side: Side, elements: number): Uint32Array =>
  new Uint32Array(elements).map((_, index) => valueAt(side, index));

/** How many values differ from those that `side` writes. */
export const countMismatches = (side: Side, values: Uint32Array): number =>
  values.reduce((count, value, index) => count + Number(value !== valueAt(side, index)), 0);
