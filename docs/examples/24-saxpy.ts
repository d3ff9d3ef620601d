/**
 * A kernel, from PTX text: y = a * x + y, launched alone and in a graph. Without a GPU its stand-in in
 * TypeScript runs.
 */
import { Graph, MemoryPool, Module, Stream, toDevice } from 'cuffi';
import { registerKernel } from 'cuffi/ffi';

// What `nvcc -ptx` makes of it; any driver since CUDA 11.4 compiles this for any GPU since Volta.
const ptx = `
.version 7.4
.target sm_70
.address_size 64

.visible .entry saxpy(.param .f32 a, .param .u64 x, .param .u64 y, .param .u32 n)
{
  .reg .pred %p;
  .reg .f32 %f<4>;
  .reg .b32 %r<5>;
  .reg .b64 %rd<4>;
  ld.param.u32 %r0, [n];
  mov.u32 %r1, %ctaid.x;
  mov.u32 %r2, %ntid.x;
  mov.u32 %r3, %tid.x;
  mad.lo.u32 %r4, %r1, %r2, %r3;
  setp.ge.u32 %p, %r4, %r0;
  @%p bra DONE;
  ld.param.f32 %f0, [a];
  ld.param.u64 %rd0, [x];
  ld.param.u64 %rd1, [y];
  mul.wide.u32 %rd2, %r4, 4;
  add.u64 %rd0, %rd0, %rd2;
  add.u64 %rd1, %rd1, %rd2;
  ld.global.f32 %f1, [%rd0];
  ld.global.f32 %f2, [%rd1];
  fma.rn.f32 %f3, %f0, %f1, %f2;
  st.global.f32 [%rd1], %f3;
DONE:
  ret;
}
`;

// Only the emulated driver looks here.
registerKernel('saxpy', {
  params: ['float32', 'pointer', 'pointer', 'uint32'],
  run({ view }, [a, x, y, n]) {
    const from = view(x, Float32Array, n);
    const to = view(y, Float32Array, n);
    for (const [i, value] of from.entries()) to[i] = a * value + (to[i] ?? 0);
  },
});

using module = Module.load(ptx);
const saxpy = module.kernel('saxpy', ['float32', 'float32*', 'float32*', 'uint32']);

const n = 1000;
using stream = Stream.create({ nonBlocking: true });
using x = await toDevice(new Float32Array(n).fill(2));
using y = await toDevice(new Float32Array(n).fill(1));

saxpy.launch({ grid: Math.ceil(n / 256), block: 256, stream }, 2.5, x, y, n);
await stream.synchronize();
console.log(`all of y: ${[...new Set(await y.copyToHost())]}`);

try {
  saxpy.launch({ grid: 1, block: 4096, stream }, 2.5, x, y, n);
} catch (error) {
  console.log(String(error));
}
console.log(`registers of a thread: ${saxpy.attributes.registers > 0 ? 'known' : 'unknown'}`);

// Several launches as one call. What a pool gives out meanwhile is the graph's own, in each launch.
using pool = MemoryPool.create({ maxSize: 1 << 20 });
using graph = Graph.capture(stream, () => {
  using scratch = pool.allocate(4 * n, { stream });
  x.buffer.copyTo(scratch, { stream });
  saxpy.launch({ grid: 4, block: 256, stream }, 1, scratch, y, n);
  saxpy.launch({ grid: 4, block: 256, stream }, 10, x, y, n);
});
graph.launch({ stream });
graph.setArguments(graph.kernelNode(saxpy, 1), 0, x, y, n);
graph.launch({ stream });
await stream.synchronize();
console.log(`all of y after the graph: ${[...new Set(await y.copyToHost())]}`);
