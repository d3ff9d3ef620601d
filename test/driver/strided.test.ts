/** cuffi's own kernels: items that do not follow each other, copied and set by one launch. */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { recordCalls } from '../../ffi/driver.ts';
import {
  Context,
  type DeviceArray,
  DeviceBuffer,
  Dtype,
  deviceArray,
  float64,
  fromBuffer,
  Stream,
  toDeviceSync,
  uint8,
} from '../../src/index.ts';
import { builtinKernel } from '../../src/kernel/builtin-kernels.ts';
import {
  copyKernelName,
  fillKernelName,
  type IndexBits,
  WORD_LENGTHS,
} from '../../src/kernel/builtin-ptx.ts';
import { addresses } from '../support/layouts.ts';

const BYTE_LENGTH = 60_000;
const LENGTHS = [5, 7, 11, 3];

const pattern = (seed: number): Uint8Array =>
  Uint8Array.from({ length: BYTE_LENGTH }, (_, i) => i * 31 + seed + (i >> 8));

/** Strides for words of a length, on either side: gaps between, one axis backwards. */
const strides = (word: number): { readonly to: number[]; readonly from: number[] } => ({
  to: [word, 6 * word, 43 * word, 500 * word],
  from: [33 * word, -word * 3, 200 * word, word],
});
const FIRST_TO = 160;
const FIRST_FROM = 3200;

/** The argument of 192 bytes. */
function table(to: readonly number[], from: readonly number[]): Uint8Array {
  const axes = new BigInt64Array(24);
  for (const [axis, length] of LENGTHS.entries()) {
    axes[axis] = BigInt(length);
    axes[8 + axis] = BigInt(to[axis] as number);
    axes[16 + axis] = BigInt(from[axis] as number);
  }
  return new Uint8Array(axes.buffer);
}

/** The offsets of all words, on either side. */
const places = (to: readonly number[], from: readonly number[]): [number, number][] =>
  LENGTHS.reduce<[number, number][]>(
    (starts, length, axis) =>
      starts.flatMap(([a, b]) =>
        Array.from({ length }, (_, i): [number, number] => [
          a + i * (to[axis] as number),
          b + i * (from[axis] as number),
        ]),
      ),
    [[FIRST_TO, FIRST_FROM]],
  );

const COUNT = LENGTHS.reduce((product, length) => product * length);

const same = (actual: Uint8Array, expected: Uint8Array): void =>
  assert.ok(Buffer.compare(actual, expected) === 0, 'the bytes differ');

describe('strided copies', () => {
  test('each kernel sets the words that its axes lead to, and no byte beside', async () => {
    const context = Context.primary();
    using source = DeviceBuffer.allocate(BYTE_LENGTH);
    using target = DeviceBuffer.allocate(BYTE_LENGTH);
    using stream = Stream.create({ nonBlocking: true });
    const grid = Math.ceil(COUNT / 128);
    for (const word of WORD_LENGTHS)
      for (const bits of [32, 64] as const satisfies IndexBits[]) {
        const { to, from } = strides(word);
        const expected = pattern(1);
        const read = pattern(2);
        source.copyFromSync(read);
        target.copyFromSync(expected);
        const copy = builtinKernel(context, 'copy', copyKernelName(word, bits), stream);
        const fill = builtinKernel(context, 'fill', fillKernelName(word, bits), stream);
        assert.ok(copy && fill, 'the driver takes them');
        const [start, first] = [target.address + FIRST_TO, source.address + FIRST_FROM];
        const axes = table(to, from);
        copy.launch({ grid, block: 128, stream }, start, first, COUNT, LENGTHS.length, axes);
        for (const [at, of] of places(to, from)) expected.set(read.subarray(of, of + word), at);
        same(await target.copyToHost(new Uint8Array(BYTE_LENGTH), { stream }), expected);
        const [low, high] = [0x0123_4567_89ab_cdefn, 0xfedc_ba98_7654_3210n];
        const value = new Uint8Array(BigUint64Array.of(low, high).buffer, 0, word);
        fill.launch({ grid, block: 128, stream }, start, low, high, COUNT, LENGTHS.length, axes);
        for (const [at] of places(to, from)) expected.set(value, at);
        same(await target.copyToHost(new Uint8Array(BYTE_LENGTH), { stream }), expected);
      }
  });

  test('what would take many copies of the driver takes one launch, in the stream that is named', async () => {
    using stream = Stream.create({ nonBlocking: true });
    for (const dtype of [uint8, float64, Dtype.bytes(3), Dtype.bytes(24), Dtype.bytes(48)]) {
      const values = new dtype.TypedArray(30 * 20 * 10 * dtype.elementsPerItem);
      new Uint8Array(values.buffer).forEach((_, i, bytes) => {
        bytes[i] = i * 7 + (i >> 8);
      });
      using array = toDeviceSync(values, { shape: [30, 20, 10], dtype });
      using copy = deviceArray([10, 20, 30], dtype, { stream });
      assert.deepEqual(
        queued(() => array.T.copyTo(copy, { stream })),
        ['cuLaunchKernelEx'],
        `${dtype}`,
      );
      const bytes = new Uint8Array((await copy.T.copyToHost()).buffer);
      assert.deepEqual(bytes, new Uint8Array(values.buffer), `${dtype}`);
    }
  });

  test('up to eight axes take one launch, more are copied as the driver can', async () => {
    for (const ndim of [8, 9]) {
      const shape = new Array<number>(ndim).fill(2);
      const values = Uint8Array.from({ length: 2 ** ndim }, (_, i) => i);
      using array = toDeviceSync(values, { shape });
      using copy = deviceArray(shape, uint8);
      const names = queued(() => array.T.copyTo(copy));
      if (ndim === 8) assert.deepEqual(names, ['cuLaunchKernelEx']);
      else assert.deepEqual(new Set(names), new Set(['cuMemcpy3DAsync_v2']));
      assert.deepEqual(await copy.T.copyToHost(), values);
    }
  });

  test('items are set to values of 8 and of 16 bytes by one launch, wherever they lie', async () => {
    const numbers = Uint8Array.from({ length: 16 }, (_, i) => i + 1);
    for (const [dtype, value, item] of [
      [float64, 1.1, new Uint8Array(Float64Array.of(1.1).buffer)],
      [Dtype.bytes(16), numbers, numbers],
    ] as const) {
      using array: DeviceArray = deviceArray([50, 40], dtype);
      for (const part of [array, array.slice({ step: -7 }, { step: 3 })]) {
        array.buffer.fill(0);
        const names = queued(() => part.fill(value));
        assert.deepEqual(names, ['cuLaunchKernelEx'], `${dtype} ${part.size}`);
        const expected = new Uint8Array(array.byteLength);
        for (const at of addresses(part.layout)) expected.set(item, at);
        assert.deepEqual(await array.buffer.copyToHost(), expected);
      }
    }
  });

  test('items that lie more than 2 GiB apart are copied right', async (t) => {
    const far = 2 ** 31;
    const byteLength = far + 1000;
    const { free } = Context.primary().memoryInfo();
    if (free < byteLength + 2 ** 26) {
      t.skip('too little memory is free');
      return;
    }
    using buffer = DeviceBuffer.allocate(byteLength);
    const end = buffer.subarray(far, byteLength);
    const values = Uint8Array.from({ length: 1000 }, (_, i) => i * 7);
    buffer.subarray(0, 1000).copyFromSync(values);
    end.copyFromSync(values.toReversed());
    const array = fromBuffer(buffer, [2, 40, 2], uint8, { strides: [far, 5, 2] });
    using copy = deviceArray([2, 40, 2], uint8);
    assert.deepEqual(
      queued(() => array.copyTo(copy)),
      ['cuLaunchKernelEx'],
    );
    const items = (bytes: Uint8Array): number[] =>
      Array.from({ length: 80 }, (_, i) => bytes[5 * (i >> 1) + 2 * (i & 1)] as number);
    assert.deepEqual(
      [...(await copy.copyToHost())],
      [...items(values), ...items(values.toReversed())],
    );
  });
});

/** What was queued by `work`: the names of the calls that copy, set or launch. */
function queued(work: () => void): string[] {
  const recorder = recordCalls();
  work();
  recorder.stop();
  return recorder.calls
    .map(({ name }) => name)
    .filter((name) => /^cu(Memcpy|Memset|Launch)/.test(name));
}
