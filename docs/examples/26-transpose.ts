/** A tiled transpose: the threads of a block share a tile, and wait for each other. */
import { deviceArray, float32, Module, toDevice } from 'cuffi';
import { registerKernel } from 'cuffi/ffi';

/**
 * Of this CUDA C++, by nvcc:
 *
 *     extern "C" __global__ void transpose(float *to, const float *from, int rows, int columns) {
 *       __shared__ float tile[16][17];
 *       int x = blockIdx.x * 16 + threadIdx.x, y = blockIdx.y * 16 + threadIdx.y;
 *       if (x < columns && y < rows) tile[threadIdx.y][threadIdx.x] = from[y * columns + x];
 *       __syncthreads();
 *       x = blockIdx.y * 16 + threadIdx.x, y = blockIdx.x * 16 + threadIdx.y;
 *       if (x < rows && y < columns) to[y * rows + x] = tile[threadIdx.x][threadIdx.y];
 *     }
 */
const ptx = `.version 7.4
.target sm_70
.address_size 64
.visible .entry transpose(
  .param .u64 transpose_param_0,
  .param .u64 transpose_param_1,
  .param .u32 transpose_param_2,
  .param .u32 transpose_param_3
)
{
  .reg .pred %p<7>;
  .reg .f32 %f<3>;
  .reg .b32 %r<23>;
  .reg .b64 %rd<9>;
  .shared .align 4 .b8 tile[1088];
  ld.param.u64 %rd1, [transpose_param_0];
  ld.param.u64 %rd2, [transpose_param_1];
  ld.param.u32 %r9, [transpose_param_2];
  ld.param.u32 %r10, [transpose_param_3];
  mov.u32 %r11, %ctaid.x;
  shl.b32 %r1, %r11, 4;
  mov.u32 %r2, %tid.x;
  add.s32 %r3, %r1, %r2;
  mov.u32 %r12, %ctaid.y;
  shl.b32 %r4, %r12, 4;
  mov.u32 %r5, %tid.y;
  add.s32 %r6, %r4, %r5;
  setp.ge.s32 %p1, %r3, %r10;
  setp.ge.s32 %p2, %r6, %r9;
  or.pred %p3, %p2, %p1;
  @%p3 bra $L__BB0_2;
  cvta.to.global.u64 %rd3, %rd2;
  mad.lo.s32 %r13, %r6, %r10, %r3;
  mul.wide.s32 %rd4, %r13, 4;
  add.s64 %rd5, %rd3, %rd4;
  ld.global.f32 %f1, [%rd5];
  mov.u32 %r14, tile;
  mad.lo.s32 %r15, %r5, 68, %r14;
  shl.b32 %r16, %r2, 2;
  add.s32 %r17, %r15, %r16;
  st.shared.f32 [%r17], %f1;
$L__BB0_2:
  bar.sync 0;
  add.s32 %r7, %r4, %r2;
  setp.ge.s32 %p4, %r7, %r9;
  add.s32 %r8, %r1, %r5;
  setp.ge.s32 %p5, %r8, %r10;
  or.pred %p6, %p4, %p5;
  @%p6 bra $L__BB0_4;
  mov.u32 %r18, tile;
  mad.lo.s32 %r19, %r2, 68, %r18;
  shl.b32 %r20, %r5, 2;
  add.s32 %r21, %r19, %r20;
  ld.shared.f32 %f2, [%r21];
  mad.lo.s32 %r22, %r8, %r9, %r7;
  cvta.to.global.u64 %rd6, %rd1;
  mul.wide.s32 %rd7, %r22, 4;
  add.s64 %rd8, %rd6, %rd7;
  st.global.f32 [%rd8], %f2;
$L__BB0_4:
  ret;
}`;

// What the emulated driver runs in its place.
registerKernel('transpose', {
  params: ['pointer', 'pointer', 'int32', 'int32'],
  run(launch, [to, from, rows, columns]) {
    const source = launch.view(from, Float32Array, rows * columns);
    const target = launch.view(to, Float32Array, rows * columns);
    for (let y = 0; y < rows; y += 1)
      for (let x = 0; x < columns; x += 1) target[x * rows + y] = source[y * columns + x] as number;
  },
});

using module = Module.load(ptx);
const transpose = module.kernel('transpose', ['float32*', 'float32*', 'int32', 'int32']);

const [rows, columns] = [100, 70];
const values = Float32Array.from({ length: rows * columns }, (_, i) => i);
using source = await toDevice(values, { shape: [rows, columns] });
using target = deviceArray([columns, rows], float32);
const grid = [Math.ceil(columns / 16), Math.ceil(rows / 16)] as const;
transpose.launch({ grid, block: [16, 16] }, target, source, rows, columns);

const transposed = await target.copyToHost();
const expected = await source.T.copyToHost();
console.log(`transposed: ${transposed.every((value, i) => value === expected[i])}`);
console.log(`item [2, 1]: ${await target.get(2, 1)}`);
