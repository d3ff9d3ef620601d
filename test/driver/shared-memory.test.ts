/** Real kernels, on a GPU: memory that the threads of a block share, barriers, arrays of a thread. */
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { test } from 'node:test';
import { deviceArray, float32, Module, toDevice } from '../../src/index.ts';
import { emulated } from '../support/driver.ts';

const skip = emulated && 'the emulated driver runs no PTX: this needs a GPU';
const ptx = readFileSync(new URL('../support/ptx/shared-memory.ptx', import.meta.url), 'utf8');

/** Small integers, so that sums are exact whatever their order. */
const numbers = (length: number, seed = 1): Float32Array =>
  Float32Array.from({ length }, (_, i) => ((i * 7919 + seed * 104_729) % 17) - 8);

test('a tiled transpose: the block shares a tile, and waits before it is read', {
  skip,
}, async () => {
  using module = Module.load(ptx);
  const transpose = module.kernel('transpose', ['float32*', 'float32*', 'int32', 'int32']);
  for (const [rows, columns] of [
    [64, 96],
    [33, 70],
    [1, 500],
  ] as const) {
    const values = numbers(rows * columns);
    using source = await toDevice(values, { shape: [rows, columns] });
    using target = deviceArray([columns, rows], float32);
    const grid = [Math.ceil(columns / 32), Math.ceil(rows / 32)] as const;
    transpose.launch({ grid, block: [32, 32] }, target, source, rows, columns);
    assert.deepEqual(await target.copyToHost(), await source.T.copyToHost(), `${rows} ${columns}`);
  }
});

test('a block reduction, with static and with dynamic shared memory', { skip }, async () => {
  using module = Module.load(ptx);
  const params = ['float32*', 'float32*', 'int32'] as const;
  const values = numbers(10_000);
  using source = await toDevice(values);
  for (const [name, block, sharedBytes] of [
    ['sums_of_256', 256, 0],
    ['sums_of_blocks', 64, 4 * 64],
    ['sums_of_blocks', 1024, 4 * 1024],
    // More than a kernel has without asking: 48 KiB.
    ['sums_of_blocks', 512, 60_000],
  ] as const) {
    const kernel = module.kernel(name, params);
    const grid = Math.ceil(values.length / block);
    using sums = deviceArray(grid, float32);
    kernel.launch({ grid, block, sharedBytes }, sums, source, values.length);
    const expected = Float32Array.from({ length: grid }, (_, n) =>
      values.subarray(n * block, (n + 1) * block).reduce((sum, value) => sum + value, 0),
    );
    assert.deepEqual(await sums.copyToHost(), expected, `${name} ${block} ${sharedBytes}`);
  }
});

test('a tiled matrix product: two tiles, and a barrier on either side of their use', {
  skip,
}, async () => {
  using module = Module.load(ptx);
  const multiply = module.kernel('multiply', ['float32*', 'float32*', 'float32*', 'int32']);
  const n = 75;
  const [a, b] = [numbers(n * n, 1), numbers(n * n, 2)];
  using left = await toDevice(a);
  using right = await toDevice(b);
  using product = deviceArray([n, n], float32);
  const side = Math.ceil(n / 16);
  multiply.launch({ grid: [side, side], block: [16, 16] }, product, left, right, n);
  const expected = Float32Array.from({ length: n * n }, (_, i) => {
    const [row, column] = [Math.floor(i / n), i % n];
    let sum = 0;
    for (let k = 0; k < n; k += 1)
      sum += (a[row * n + k] as number) * (b[k * n + column] as number);
    return sum;
  });
  assert.deepEqual(await product.copyToHost(), expected);
});

test('an array of each thread’s own, in local memory', { skip }, async () => {
  using module = Module.load(ptx);
  const median = module.kernel('median', ['float32*', 'float32*', 'int32', 'int32']);
  assert.ok(median.attributes.localBytes >= 32 * 4);
  const values = numbers(1000);
  using source = await toDevice(values);
  for (const width of [1, 9, 32]) {
    const count = values.length - width + 1;
    using target = deviceArray(count, float32);
    median.launch({ grid: 8, block: 128 }, target, source, values.length, width);
    const expected = Float32Array.from(
      { length: count },
      (_, at) => values.slice(at, at + width).sort()[Math.floor(width / 2)] as number,
    );
    assert.deepEqual(await target.copyToHost(), expected, `${width}`);
  }
});
