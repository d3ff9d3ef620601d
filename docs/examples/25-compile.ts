/** CUDA C++ compiled at run time by libnvrtc, where it is installed, and run. */
import { type CompiledCode, CompilerNotFoundError, compile, Module, toDevice } from 'cuffi';
import { driverName } from 'cuffi/ffi';

const source = `
#include "settings.h"

template <class T>
__global__ void scale(T *x, unsigned n) {
  const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) x[i] *= FACTOR;
}`;

const compiled = await compiledHere();
if (compiled) {
  // C++ has its own names for templates; the second time all this comes from the cache.
  const name = compiled.name('scale<float>');
  console.log(`compiled: ${name} is in the PTX: ${compiled.code.includes(name)}`);
  if (driverName() === 'emulated') console.log('running it needs a GPU');
  else await run(compiled.code, name);
}

async function compiledHere(): Promise<CompiledCode<'ptx'> | undefined> {
  try {
    const headers = { 'settings.h': '#define FACTOR 3' };
    return await compile(source, { headers, names: ['scale<float>'] });
  } catch (error) {
    if (!(error instanceof CompilerNotFoundError)) throw error;
    console.log('this needs libnvrtc: pip install nvidia-cuda-nvrtc');
    return undefined;
  }
}

async function run(ptx: string, name: string): Promise<void> {
  using module = Module.load(ptx);
  using x = await toDevice(new Float32Array([1, 2, 3]));
  module.kernel(name, ['float32*', 'uint32']).launch({ grid: 1, block: 32 }, x, x.size);
  console.log(await x.copyToHost());
}
