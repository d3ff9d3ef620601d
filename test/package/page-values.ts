/** What the blocks of the pages use without declaring it: see ../support/pages.ts. */
import * as cuda from 'cuffi';
import { registerKernel } from 'cuffi/ffi';

/** PTX of kernels that do nothing: the emulated driver runs what is registered for their names. */
const emptyKernels = (kernels: Readonly<Record<string, readonly string[]>>): string =>
  Object.entries(kernels).reduce((text, [name, types]) => {
    const params = types.map((type, at) => `.param .${type} p${at}`);
    return `${text}\n.visible .entry ${name}(${params.join(', ')}) { ret; }`;
  }, '.version 7.4\n.target sm_70\n.address_size 64');

export const ptx = emptyKernels({ saxpy: ['f32', 'u64', 'u64', 'u32'] });

registerKernel('saxpy', {
  params: ['float32', 'pointer', 'pointer', 'uint32'],
  run({ view }, [a, x, y, count]) {
    const to = view(y, Float32Array, count);
    for (const [i, value] of view(x, Float32Array, count).entries())
      to[i] = a * value + (to[i] ?? 0);
  },
});

/** An array of one dimension, as numba passes it. */
const passed = ['pointer', 'pointer', 'int64', 'int64', 'pointer', 'int64', 'int64'] as const;
const mangled = '_ZN8__main__5saxpyE';
export const ptxOfNumba = emptyKernels({ [mangled]: [...Array(14).fill('u64'), 'f32'] });

registerKernel(mangled, {
  params: [...passed, ...passed, 'float32'],
  run({ view }, args) {
    const [count, y, x, a] = [Number(args[2]), args[4], args[11], args[14]];
    const to = view(y, Float32Array, count);
    for (const [i, value] of view(x, Float32Array, count).entries())
      to[i] = a * value + (to[i] ?? 0);
  },
});

const shared = emptyKernels({
  transpose: ['u64', 'u64', 'u32', 'u32'],
  sums_of_blocks: ['u64', 'u64', 'u32'],
});

registerKernel('transpose', {
  params: ['pointer', 'pointer', 'int32', 'int32'],
  run({ view }, [to, from, height, width]) {
    const target = view(to, Float32Array, height * width);
    for (const [i, value] of view(from, Float32Array, height * width).entries())
      target[(i % width) * height + Math.floor(i / width)] = value;
  },
});

registerKernel('sums_of_blocks', {
  params: ['pointer', 'pointer', 'int32'],
  run({ view, grid: [blocks], block: [size] }, [to, from, count]) {
    const source = view(from, Float32Array, count);
    const sums = view(to, Float32Array, blocks);
    for (let at = 0; at < blocks; at += 1)
      sums[at] = source.slice(at * size, (at + 1) * size).reduce((sum, value) => sum + value, 0);
  },
});

export const n = 1000;
export const grid = 4;
export const block = 256;
export const rows = 64;
export const columns = 96;

export const stream = cuda.Stream.create({ nonBlocking: true });
export const pool = cuda.MemoryPool.create({ maxSize: 64 << 20 });
export const x = await cuda.toDevice(new Float32Array(n).fill(2));
export const y = await cuda.toDevice(new Float32Array(n).fill(1));
export const result = cuda.DeviceBuffer.allocate(4 * n);
export const saxpy = cuda.Module.load(ptx).kernel('saxpy', [
  'float32',
  'float32*',
  'float32*',
  'uint32',
]);

const tiled = cuda.Module.load(shared);
const matrix = Float32Array.from({ length: rows * columns }, (_, i) => i % 7);
export const source = await cuda.toDevice(matrix, { shape: [rows, columns] });
export const target = cuda.deviceArray([columns, rows], 'float32');
export const sums = cuda.deviceArray((rows * columns) / block, 'float32');
export const transpose = tiled.kernel('transpose', ['float32*', 'float32*', 'int32', 'int32']);
export const sumsOfBlocks = tiled.kernel('sums_of_blocks', ['float32*', 'float32*', 'int32']);

/** CUDA C++. */
export const code = 'template <class T> __global__ void scale(T *x, unsigned n) {}';

// What numba shares, for openIpcArray.
export const handle = new Uint8Array(64);
export const strides = [32, 4];
export const byteOffset = 0;
