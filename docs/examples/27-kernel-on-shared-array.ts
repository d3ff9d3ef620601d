/** A child gets an array of its parent, and runs a kernel on it: no copy, neither here nor there. */
import { DeviceArray, Module, toDevice } from 'cuffi';
import { registerKernel } from 'cuffi/ffi';
import { parentPeer, spawnPeer } from 'cuffi/ipc';

/** Of `extern "C" __global__ void halve(float *x, unsigned n)`, written by hand. */
const ptx = `.version 7.4
.target sm_70
.address_size 64

.visible .entry halve(.param .u64 x, .param .u32 n)
{
  .reg .pred %p;
  .reg .f32 %f;
  .reg .b32 %block, %threads, %thread, %i, %n;
  .reg .b64 %x, %offset;
  mov.u32 %block, %ctaid.x;
  mov.u32 %threads, %ntid.x;
  mov.u32 %thread, %tid.x;
  mad.lo.u32 %i, %block, %threads, %thread;
  ld.param.u32 %n, [n];
  setp.ge.u32 %p, %i, %n;
  @%p bra END;
  ld.param.u64 %x, [x];
  cvta.to.global.u64 %x, %x;
  mul.wide.u32 %offset, %i, 4;
  add.u64 %x, %x, %offset;
  ld.global.f32 %f, [%x];
  mul.f32 %f, %f, 0f3F000000;
  st.global.f32 [%x], %f;
END:
  ret;
}
`;

// What the emulated driver runs in its place.
registerKernel('halve', {
  params: ['pointer', 'uint32'],
  run(launch, [at, n]) {
    const x = launch.view(at, Float32Array, n);
    for (const [i, value] of x.entries()) x[i] = value / 2;
  },
});

if (process.argv[2] === 'child') {
  const parent = parentPeer();
  using module = Module.load(ptx);
  const halve = module.kernel('halve', ['float32*', 'uint32']);
  for await (const value of parent) {
    if (!(value instanceof DeviceArray)) throw new Error('not an array');
    using array = value;
    halve.launch({ grid: Math.ceil(array.size / 256), block: 256 }, array, array.size);
    await array.context.synchronize();
    await parent.send('halved');
  }
} else {
  using array = await toDevice(new Float32Array([2, 4, 6]));
  using child = spawnPeer(import.meta.filename, { args: ['child'] });
  await child.send(array);
  console.log('the child says', await child.receive());
  console.log('the parent reads', await array.copyToHost());
}
