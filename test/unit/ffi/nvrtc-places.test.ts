import assert from 'node:assert/strict';
import { mkdirSync, mkdtempSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { after, describe, test } from 'node:test';
import { headerFolders, nvrtcCandidates } from '../../../ffi/nvrtc-places.ts';

const folder = mkdtempSync(join(tmpdir(), 'cuffi-nvrtc-'));
after(() => rmSync(folder, { recursive: true }));

function file(...names: string[]): string {
  const path = join(folder, ...names);
  mkdirSync(dirname(path), { recursive: true });
  writeFileSync(path, '');
  return path;
}

/** What is found in the places of a test: this machine's own are left aside. */
const found = (env: NodeJS.ProcessEnv): string[] =>
  nvrtcCandidates(env).filter((path) => path.startsWith(folder));

describe('nvrtcPlaces and headerFolders', () => {
  test('CUFFI_NVRTC is the only place where it is set', () => {
    assert.deepEqual(nvrtcCandidates({ CUFFI_NVRTC: '/a/libnvrtc.so', CUDA_HOME: '/b' }), [
      '/a/libnvrtc.so',
    ]);
  });

  test('libraries are found where toolkits, pip and conda put them, the newest first', () => {
    const pip = file('venv/lib/python3.12/site-packages/nvidia/cu13/lib/libnvrtc.so.13');
    const older = file('venv/lib/python3.12/site-packages/nvidia/cuda_nvrtc/lib/libnvrtc.so.11.2');
    const conda = file('conda/lib/libnvrtc.so.12.9.86');
    const real = file('toolkit/lib64/libnvrtc.so.12.4.127');
    const link = join(folder, 'toolkit/lib64/libnvrtc.so.12');
    symlinkSync(real, link);
    file('toolkit/lib64/libnvrtc-builtins.so.12.4');
    file('toolkit/lib64/libnvrtc.alt.so.12');
    const env = {
      VIRTUAL_ENV: join(folder, 'venv'),
      CONDA_PREFIX: join(folder, 'conda'),
      CUDA_HOME: join(folder, 'toolkit'),
    };
    const places = found(env);
    assert.deepEqual(places.slice(0, 2), [pip, conda]);
    assert.deepEqual(places.slice(2, 4).sort(), [link, real].sort());
    assert.deepEqual(places.slice(4), [older]);
    assert.ok(nvrtcCandidates(env).indexOf('libnvrtc.so.13') < nvrtcCandidates(env).indexOf(conda));
  });

  test('the python3 of PATH says where packages are, through its link too', () => {
    const python = file('base/bin/python3.11');
    const base = file('base/lib/python3.11/site-packages/nvidia/cuda_nvrtc/lib/libnvrtc.so.12');
    mkdirSync(join(folder, 'env/bin'), { recursive: true });
    symlinkSync(python, join(folder, 'env/bin/python3'));
    const own = file('env/lib/python3.11/site-packages/nvidia/cu13/lib/libnvrtc.so.13');
    assert.deepEqual(found({ PATH: join(folder, 'env/bin') }), [own, base]);
  });

  test('CUDA’s headers are those beside the library, else those of a toolkit', () => {
    const library = file('wheel/lib/libnvrtc.so.13');
    const env = { CUDA_HOME: join(folder, 'sdk') };
    const sdk = dirname(file('sdk/include/cuda_fp16.h'));
    assert.deepEqual(headerFolders(library, env), [sdk]);
    const beside = dirname(file('wheel/include/cuda_fp16.h'));
    const cxx = dirname(dirname(file('wheel/include/cccl/cuda/std')));
    assert.deepEqual(headerFolders(library, env), [beside, cxx]);
  });
});
