/** What was compiled and linked at run time, on a GPU. */
import assert from 'node:assert/strict';
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, describe, test } from 'node:test';
import {
  CompilerNotFoundError,
  CudaError,
  compile,
  compileSync,
  link,
  Module,
  toDevice,
} from '../../src/index.ts';
import { compilerInUse } from '../../src/kernel/nvrtc.ts';
import { emulated } from '../support/driver.ts';

const noGpu = emulated && 'the emulated driver runs no PTX and links nothing: this needs a GPU';

const cache = mkdtempSync(join(tmpdir(), 'cuffi-compile-'));

function noCompiler(): string | false {
  try {
    compilerInUse();
    return false;
  } catch (error) {
    assert.ok(error instanceof CompilerNotFoundError);
    return 'libnvrtc is not installed';
  }
}
const skip = noGpu || noCompiler();

const SCALE = `template <class T, int N> __global__ void scale(T *x, unsigned n) {
  const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) x[i] *= N;
}`;

const read = (name: string): string =>
  readFileSync(new URL(`../support/ptx/${name}.ptx`, import.meta.url), 'utf8');

describe('compile', () => {
  after(() => rmSync(cache, { recursive: true }));

  test('PTX and cubins that are compiled here run, from the cache too', { skip }, async () => {
    const names = ['scale<float, 3>'];
    for (const to of ['ptx', 'cubin'] as const)
      for (const times of ['compiled', 'from the cache']) {
        const compiled = await compile(SCALE, { to, names, cache });
        using module = Module.load(compiled.code);
        const scale = module.kernel(compiled.name('scale<float, 3>'), ['float32*', 'uint32']);
        using x = await toDevice(new Float32Array([1, 2, 3]));
        scale.launch({ grid: 1, block: 32 }, x, 2);
        assert.deepEqual(await x.copyToHost(), new Float32Array([3, 6, 3]), `${to} ${times}`);
      }
  });

  test('code of two sources is linked to one, in which one calls the other', {
    skip: noGpu,
  }, async () => {
    assert.equal(await applied(link([read('apply'), read('triple')])), 42);
  });

  test('what is compiled here is linked with other code, as PTX and as a cubin', {
    skip,
  }, async () => {
    const source = 'extern "C" __device__ int triple(int value) { return 3 * value; }';
    const options = ['--relocatable-device-code=true'];
    for (const to of ['ptx', 'cubin'] as const) {
      const { code } = compileSync(source, { to, options, cache: false });
      assert.equal(await applied(link([read('apply'), code])), 42, to);
    }
  });

  test('what does not link says why, in the linker’s words', { skip: noGpu }, () => {
    assert.throws(
      () => link([read('apply')]),
      (error) => {
        assert.ok(error instanceof CudaError);
        assert.match(error.log ?? '', /triple/);
        return true;
      },
    );
    assert.throws(() => link([read('apply'), 'nonsense']), CudaError);
  });

  test('wrong arguments of link are refused; the emulated driver links nothing', () => {
    for (const wrong of [undefined, [], 'code', [1], ['']])
      assert.throws(() => link(wrong as never), TypeError);
    assert.throws(() => link([read('apply')], { arch: 'sm_90' } as never), /unknown option 'arch'/);
    if (emulated) assert.throws(() => link([read('apply')]), { code: 'CUDA_ERROR_NOT_SUPPORTED' });
  });
});

/** Triples an item by the kernel `apply` of linked code. */
async function applied(code: Uint8Array): Promise<number> {
  using module = Module.load(code);
  using x = await toDevice(new Int32Array([14]));
  module.kernel('apply', ['int32*']).launch({ grid: 1, block: 1 }, x);
  return x.getSync(0);
}
