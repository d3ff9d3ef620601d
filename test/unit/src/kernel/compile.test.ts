/** Compiles CUDA C++ by libnvrtc, if it is installed. */
import assert from 'node:assert/strict';
import { mkdtempSync, readdirSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, describe, test } from 'node:test';
import {
  CompileError,
  type CompileOptions,
  CompilerNotFoundError,
  compile,
  compileSync,
} from '../../../../src/index.ts';
import { architectureFor } from '../../../../src/kernel/architecture.ts';
import { type Compiler, compilerInUse } from '../../../../src/kernel/nvrtc.ts';
import { Program } from '../../../../src/kernel/nvrtc-program.ts';
import { emulate } from '../emulate.ts';

const cache = mkdtempSync(join(tmpdir(), 'cuffi-compile-'));
after(() => rmSync(cache, { recursive: true }));
// The tests do not use the user's cache.
process.env['CUFFI_CACHE'] = cache;

emulate();

/** Why tests that need the compiler are skipped; false if it is installed. */
function noCompiler(): string | false {
  try {
    compilerInUse();
    return false;
  } catch (error) {
    assert.ok(error instanceof CompilerNotFoundError);
    return 'libnvrtc is not installed';
  }
}
const skip = noCompiler();
const noHeaders =
  skip || (compilerInUse().headerFolders.length > 0 ? false : 'CUDA’s headers are not installed');

const TWICE = `extern "C" __global__ void twice(float *x, unsigned n) {
  unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) x[i] *= 2;
}
`;
const SCALE = `namespace mine {
template <class T, int N> __global__ void scale(T *x) { x[threadIdx.x] *= N; }
}
`;

describe('compile', () => {
  test('an aborted signal rejects before the compiler is looked for, and both limits are checked', async () => {
    const reason = new Error('given up');
    await assert.rejects(compile(TWICE, { signal: AbortSignal.abort(reason) }), reason);
    await assert.rejects(compile(TWICE, { timeoutMs: -1 }), /^RangeError: timeoutMs/);
    await assert.rejects(
      compile(TWICE, { timeout: 1 } as never),
      /unknown option 'timeout' \(did you mean 'timeoutMs'\?\); known: /,
    );
  });

  test('a wait that takes too long rejects, and the next compilation is right', {
    skip,
  }, async () => {
    const options = { cache: false, arch: 'compute_90' } as const;
    const waits = [1, 2, 3].map(() => compile(TWICE, { ...options, timeoutMs: 0 }));
    for (const wait of waits)
      await assert.rejects(wait, {
        name: 'TimeoutError',
        message: 'compile took longer than 0 ms',
      });
    assert.match((await compile(TWICE, options)).code, /twice/);
  });

  test('PTX is made for the device by default, and comes from the cache the second time', {
    skip,
  }, async () => {
    let turns = 0;
    const timer = setInterval(() => {
      turns += 1;
    });
    const compiled = await compile(TWICE, { cache });
    clearInterval(timer);
    assert.ok(turns > 0, 'the event loop turned');
    const { kind, code, log } = compiled;
    assert.deepEqual([kind, log], ['ptx', '']);
    assert.match(code, /^\.target sm_90\b/m);
    assert.match(code, /\.entry twice\(/);
    assert.equal(readdirSync(join(cache, 'compiled')).length, 1);
    assert.deepEqual(compileSync(TWICE, { cache }), compiled);
  });

  test('a cubin is made for the given architecture', { skip }, () => {
    const { kind, code } = compileSync(TWICE, { to: 'cubin', arch: 'sm_80', cache });
    assert.equal(kind, 'cubin');
    assert.deepEqual([...code.subarray(0, 4)], [0x7f, ...Buffer.from('ELF')]);
    assert.match(compileSync(TWICE, { arch: 'sm_80', cache: false }).code, /^\.target sm_80/m);
  });

  test('template kernels are found by their expressions', { skip }, async () => {
    const names = ['mine::scale<float, 3>', 'mine::scale<double, 2>'];
    for (const times of ['compiled', 'from the cache']) {
      const compiled = await compile(SCALE, { names, cache });
      for (const name of names)
        assert.ok(compiled.code.includes(`.entry ${compiled.name(name)}(`), `${times}: ${name}`);
      assert.throws(
        () => compiled.name('mine::scale<int, 1>'),
        /is not among .*mine::scale<float, 3>/,
      );
    }
  });

  test('a compile error has the faulty line and the whole log', { skip }, async () => {
    await assert.rejects(compile('\n__global__ void k() { x = 1; }', { cache }), (error) => {
      assert.ok(error instanceof CompileError);
      assert.match(error.message, /^compiling failed: kernel\.cu\(2\): error: identifier "x"/);
      assert.match(error.message, /\n {2}2 \| __global__ void k\(\) \{ x = 1; \}\n/);
      assert.match(error.log, /1 error detected/);
      return true;
    });
    const headers = { 'mine.h': '#pragma once\n__device__ int f() { return g(); }' };
    assert.throws(
      () => compileSync('#include "mine.h"', { headers, cache }),
      /mine\.h\(2\): error.*\n {2}2 \| __device__ int f\(\)/,
    );
    assert.throws(
      () => compileSync(TWICE, { options: ['--no-such-option'] }),
      /unrecognized option/,
    );
    assert.throws(() => compileSync(TWICE, { names: ['nothing<int>'] }), CompileError);
    assert.throws(
      () => compileSync(TWICE, { arch: 'sm_20' }),
      /does not compile for compute_20, only for \d+/,
    );
  });

  test('CUDA’s own headers are found, and given headers take precedence', {
    skip: noHeaders,
  }, async () => {
    const source = `#include <cuda_fp16.h>
#include <cooperative_groups.h>
#include <settings.h>
extern "C" __global__ void k(__half *x) {
  cooperative_groups::this_thread_block().sync();
  x[threadIdx.x] = __float2half(VALUE);
}`;
    const headers = { 'settings.h': '#define VALUE 1.5f' };
    const options = ['-std=c++17', '-DUNUSED'];
    const { code } = await compile(source, { headers, options, cache });
    assert.match(code, /\.entry k\(/);
  });

  test('many sources are compiled at once', { skip }, async () => {
    const sources = [3, 4, 5, 6].map((n) => TWICE.replace('twice', `times${n}`));
    const all = await Promise.all(sources.map((source) => compile(source, { cache: false })));
    for (const [n, { code }] of all.entries()) assert.match(code, new RegExp(`times${n + 3}\\(`));
  });

  test('wrong arguments throw before anything is compiled', async () => {
    const refused: readonly [options: object, message: RegExp][] = [
      [{ to: 'sass' }, /to must be 'ptx' or 'cubin', not "sass"/],
      [{ arch: 90 }, /arch must be a string like 'sm_90'/],
      [{ arch: 'hopper' }, /arch must be like 'sm_90' or 'compute_90', not 'hopper'/],
      [{ to: 'cubin', arch: 'compute_90' }, /a cubin is for one architecture/],
      [{ arch: 'sm_90', device: 0 }, /either arch or a context or device/],
      [{ options: '-O3' }, /options must be an array of strings/],
      [{ options: ['-arch=sm_90'] }, /pass the architecture as arch/],
      [{ headers: [] }, /headers must be an object/],
      [{ headers: { 'a.h': 1 } }, /headers\["a\.h"\] must be a string, not 1/],
      [{ names: [1] }, /names\[0\] must be a string/],
      [{ cache: 1 }, /cache must be true, false or a folder/],
      [{ target: 'ptx' }, /unknown option 'target'/],
    ];
    for (const [options, message] of refused) {
      assert.throws(() => compileSync(TWICE, options as CompileOptions), message);
      await assert.rejects(compile(TWICE, options as CompileOptions), message);
    }
    assert.throws(() => compileSync(1 as never), /source must be a string, not 1/);
    assert.throws(() => compileSync('a\0b'), /source contains a NUL character/);
  });

  test('a rejected name leaves no program behind', () => {
    const calls: string[] = [];
    const answer = (call: string, status: number) => () => {
      calls.push(call);
      return status;
    };
    const compiler = {
      version: '13.0',
      describe: String,
      nvrtc: {
        nvrtcCreateProgram: answer('create', 0),
        nvrtcAddNameExpression: answer('name', 4),
        nvrtcDestroyProgram: answer('destroy', 0),
      },
    } as unknown as Compiler;
    const request = {
      compiler,
      source: '',
      kind: 'ptx',
      options: [],
      headers: {},
      cache: false,
    } as const;
    assert.throws(() => new Program({ ...request, names: ['k<int>'] }), CompileError);
    assert.deepEqual(calls, ['create', 'name', 'destroy']);
  });
});

describe('architectureFor', () => {
  test('a device newer than the compiler gets the newest architecture that it runs', () => {
    const known = [75, 80, 86, 90];
    const of = (major: number, minor: number, kind: 'ptx' | 'cubin'): string =>
      architectureFor({ major, minor }, kind, known, '12.0');
    assert.deepEqual([of(9, 0, 'ptx'), of(9, 0, 'cubin')], ['compute_90', 'sm_90']);
    assert.deepEqual([of(8, 9, 'cubin'), of(12, 0, 'ptx')], ['sm_86', 'compute_90']);
    assert.throws(
      () => of(12, 0, 'cubin'),
      /cannot make cubin for a device of compute capability 12\.0/,
    );
    assert.throws(() => of(7, 0, 'ptx'), /cannot make ptx for a device/);
  });
});

describe('compilerInUse', () => {
  test('without a compiler, the error says what to install, and what the emulated driver runs', () => {
    const { CUFFI_NVRTC: nvrtc, CUFFI_DRIVER: driver } = process.env;
    const restore = (name: string, value: string | undefined): void => {
      if (value === undefined) delete process.env[name];
      else process.env[name] = value;
    };
    const messageWith = (name: string): string => {
      process.env['CUFFI_DRIVER'] = name;
      try {
        compileSync(TWICE);
      } catch (error) {
        assert.ok(error instanceof CompilerNotFoundError);
        return error.message;
      }
      throw new Error('compiled');
    };
    try {
      process.env['CUFFI_NVRTC'] = '/nowhere/libnvrtc.so';
      const message = messageWith('cuda');
      assert.match(message, /\/nowhere\/libnvrtc\.so: /);
      assert.match(message, /pip install nvidia-cuda-nvrtc.*\n.*need no compiler\.$/);
      const emulated = messageWith('emulated');
      assert.match(
        emulated,
        /need no compiler\.\nThe emulated driver runs no compiled code.*registerKernel.*compiler\.$/,
      );
    } finally {
      restore('CUFFI_NVRTC', nvrtc);
      restore('CUFFI_DRIVER', driver);
    }
  });
});
