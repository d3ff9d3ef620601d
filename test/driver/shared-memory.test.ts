/** Real kernels, on a GPU: memory that the threads of a block share, barriers, arrays of a thread. */
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { describe, test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { deviceArray, float32, Module, toDevice } from '../../src/index.ts';
import { emulated } from '../support/driver.ts';

const skip = emulated && 'the emulated driver runs no PTX: this needs a GPU';
const ptx = readFileSync(new URL('../support/ptx/shared-memory.ptx', import.meta.url), 'utf8');

/** Small integers, so that sums are exact whatever their order. */
const numbers = (length: number, seed = 1): Float32Array =>
  Float32Array.from({ length }, (_, i) => ((i * 7919 + seed * 104_729) % 17) - 8);

async function transposed(
  module: Module,
  values: Float32Array,
  [rows, columns]: readonly [rows: number, columns: number],
): Promise<Float32Array> {
  const transpose = module.kernel('transpose', ['float32*', 'float32*', 'int32', 'int32']);
  using source = await toDevice(values, { shape: [rows, columns] });
  using target = deviceArray([columns, rows], float32);
  const grid = [Math.ceil(columns / 32), Math.ceil(rows / 32)] as const;
  transpose.launch({ grid, block: [32, 32] }, target, source, rows, columns);
  return await target.copyToHost();
}

async function sumsOfBlocks(
  module: Module,
  values: Float32Array,
  [name, block, sharedBytes]: readonly [name: string, block: number, sharedBytes: number],
): Promise<Float32Array> {
  const kernel = module.kernel(name, ['float32*', 'float32*', 'int32']);
  using source = await toDevice(values);
  const grid = Math.ceil(values.length / block);
  using sums = deviceArray(grid, float32);
  kernel.launch({ grid, block, sharedBytes }, sums, source, values.length);
  return await sums.copyToHost();
}

async function product(
  module: Module,
  a: Float32Array,
  b: Float32Array,
  n: number,
): Promise<Float32Array> {
  const multiply = module.kernel('multiply', ['float32*', 'float32*', 'float32*', 'int32']);
  using left = await toDevice(a);
  using right = await toDevice(b);
  using result = deviceArray([n, n], float32);
  const side = Math.ceil(n / 16);
  multiply.launch({ grid: [side, side], block: [16, 16] }, result, left, right, n);
  return await result.copyToHost();
}

async function medians(module: Module, values: Float32Array, width: number): Promise<Float32Array> {
  const median = module.kernel('median', ['float32*', 'float32*', 'int32', 'int32']);
  assert.ok(median.attributes.localBytes >= 32 * 4);
  using source = await toDevice(values);
  using target = deviceArray(values.length - width + 1, float32);
  median.launch({ grid: 8, block: 128 }, target, source, values.length, width);
  return await target.copyToHost();
}

describe('shared memory of a kernel', () => {
  test('a tiled transpose: the block shares a tile, and waits before it is read', {
    skip,
  }, async () => {
    using module = Module.load(ptx);
    for (const shape of [
      [64, 96],
      [33, 70],
      [1, 500],
    ] as const) {
      const values = numbers(shape[0] * shape[1]);
      using source = await toDevice(values, { shape });
      const expected = await source.T.copyToHost();
      assert.deepEqual(await transposed(module, values, shape), expected, shape.join(' '));
    }
  });

  test('a block reduction, with static and with dynamic shared memory', { skip }, async () => {
    using module = Module.load(ptx);
    const values = numbers(10_000);
    for (const form of [
      ['sums_of_256', 256, 0],
      ['sums_of_blocks', 64, 4 * 64],
      ['sums_of_blocks', 1024, 4 * 1024],
      // More than a kernel has without asking: 48 KiB.
      ['sums_of_blocks', 512, 60_000],
    ] as const) {
      const [, block] = form;
      const expected = Float32Array.from({ length: Math.ceil(values.length / block) }, (_, n) =>
        values.subarray(n * block, (n + 1) * block).reduce((sum, value) => sum + value, 0),
      );
      assert.deepEqual(await sumsOfBlocks(module, values, form), expected, form.join(' '));
    }
  });

  test('a tiled matrix product: two tiles, and a barrier on either side of their use', {
    skip,
  }, async () => {
    using module = Module.load(ptx);
    const n = 75;
    const [a, b] = [numbers(n * n, 1), numbers(n * n, 2)];
    const expected = Float32Array.from({ length: n * n }, (_, i) => {
      const [row, column] = [Math.floor(i / n), i % n];
      let sum = 0;
      for (let k = 0; k < n; k += 1)
        sum += (a[row * n + k] as number) * (b[k * n + column] as number);
      return sum;
    });
    assert.deepEqual(await product(module, a, b, n), expected);
  });

  test('an array of each thread’s own, in local memory', { skip }, async () => {
    using module = Module.load(ptx);
    const values = numbers(1000);
    for (const width of [1, 9, 32]) {
      const expected = Float32Array.from(
        { length: values.length - width + 1 },
        (_, at) => values.slice(at, at + width).sort()[Math.floor(width / 2)] as number,
      );
      assert.deepEqual(await medians(module, values, width), expected, `${width}`);
    }
  });

  test('NumPy comes to the same results', { skip }, async (t) => {
    const program = fileURLToPath(new URL('./fixtures/shared_memory.py', import.meta.url));
    const { status, stdout, stderr, error } = spawnSync('python3', ['-B', program]);
    if (error || status === 77) {
      t.skip(error ? `python3 cannot be started: ${error.message}` : 'NumPy is not installed');
      return;
    }
    assert.equal(status, 0, `${stderr}`);
    using module = Module.load(ptx);
    const results = [
      await transposed(module, numbers(33 * 70), [33, 70]),
      await sumsOfBlocks(module, numbers(10_000), ['sums_of_blocks', 1024, 4 * 1024]),
      await product(module, numbers(75 * 75, 1), numbers(75 * 75, 2), 75),
      await medians(module, numbers(1000), 9),
    ];
    const expected = new Float32Array(Uint8Array.from(stdout).buffer);
    assert.deepEqual(Float32Array.from(results.flatMap((result) => [...result])), expected);
  });
});
