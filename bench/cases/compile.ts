/** CUDA C++ compiled at run time: read from the cache on disk, or compiled. */
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { CompilerNotFoundError, compileSync } from 'cuffi';
import { inProcess } from '../measure.ts';
import { type Case, type OpenCase, requireSuccess } from './case.ts';

const SOURCE = `template <class T> __global__ void saxpy(T a, const T *x, T *y, unsigned n) {
  const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = a * x[i] + y[i];
}`;
const NAMES = ['saxpy<float>', 'saxpy<double>'];

export const compileCases: readonly Case[] = [
  {
    name: 'compileSync',
    what: 'compiles a kernel of two types by libnvrtc, to PTX; from the cache, and anew',
    calls: 4,
    rounds: 7,
    peers: [],
    open: openCompile,
  },
];

function openCompile(): OpenCase {
  const cache = mkdtempSync(join(tmpdir(), 'cuffi-bench-'));
  const close = (): void => rmSync(cache, { recursive: true });
  const compiling = (name: string, options: { readonly cache: string | boolean }) =>
    inProcess(name, (calls) => {
      let length = 0;
      for (let call = 0; call < calls; call += 1)
        length += compileSync(SOURCE, { ...options, names: NAMES }).code.length;
      requireSuccess(calls === 0 || length > 0, 'compileSync');
    });
  if (!hasCompiler()) return { contestants: [], close };
  return {
    contestants: [compiling('from the cache', { cache }), compiling('anew', { cache: false })],
    close,
  };
}

function hasCompiler(): boolean {
  try {
    compileSync('', { cache: false });
    return true;
  } catch (error) {
    if (error instanceof CompilerNotFoundError) return false;
    throw error;
  }
}
