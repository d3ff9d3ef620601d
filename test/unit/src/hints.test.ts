import assert from 'node:assert/strict';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, describe, test } from 'node:test';
import { hintFor, refusedDeviceFiles } from '../../../src/hints.ts';

describe('hintFor', () => {
  test('the same status has another hint if the call says more', () => {
    assert.match(String(hintFor('cuIpcOpenMemHandle_v2', 201)), /made by this very process/);
    assert.match(String(hintFor('cuIpcOpenMemHandle_v2', 400)), /has ended/);
    assert.match(String(hintFor('cuIpcOpenMemHandle_v2', 1)), /freed the memory before/);
    assert.match(String(hintFor('cuIpcOpenEventHandle', 400)), /--ipc=host/);
    assert.match(String(hintFor('cuIpcGetMemHandle', 1)), /Only memory from cuMemAlloc/);
    assert.equal(hintFor('cuMemFree_v2', 201), undefined);
    assert.equal(hintFor('cuMemFree_v2', 400), undefined);
  });

  test('statuses of the installation have hints for every call', () => {
    assert.match(String(hintFor('cuInit', 100)), /nvidia-smi, CUDA_VISIBLE_DEVICES/);
    assert.match(String(hintFor('cuInit', 34)), /stub of the CUDA toolkit/);
    assert.match(String(hintFor('cuInit', 803)), /differ in version/);
    assert.match(String(hintFor('cuMemAlloc_v2', 2)), /Close buffers/);
    assert.match(String(hintFor('cuInit', 999)), /nvidia-uvm.*dmesg/);
    assert.match(String(hintFor('cuInit', 304)), /permission for \/dev\/nvidia\*/);
    assert.match(String(hintFor('cuDevicePrimaryCtxRetain', 304)), /operating system refused/);
    assert.match(String(hintFor('cuInit', 804)), /cuda-compat/);
    for (const call of ['cuInit', 'cuDevicePrimaryCtxRetain'])
      assert.match(String(hintFor(call, 46)), /exclusive use of the device.*nvidia-smi -c DEFAULT/);
  });

  test('the hint for calls that the emulated driver never supports says that they need a GPU', () => {
    for (const call of ['cuLinkCreate_v2', 'cuOccupancyMaxActiveClusters'])
      assert.match(String(hintFor(call, 801)), /emulated driver .* needs a GPU/);
    assert.doesNotMatch(String(hintFor('cuMemPoolCreate', 801)), /emulated/);
  });

  test('the hint for a lost context is to start a new process', () => {
    for (const status of [214, 700, 719])
      assert.match(String(hintFor('cuStreamQuery', status)), /End this process/);
  });

  test('a status without a remedy has no hint', () => {
    assert.equal(hintFor('cuInit', 1), undefined);
    assert.equal(hintFor('toString', 98_765), undefined);
  });
});

describe('refusedDeviceFiles', () => {
  const folder = mkdtempSync(join(tmpdir(), 'cuffi-dev-'));
  after(() => rmSync(folder, { recursive: true }));
  for (const name of ['nvidiactl', 'nvidia0', 'nvidia1', 'nvidia-uvm', 'nvidia-caps', 'null'])
    writeFileSync(join(folder, name), '');

  const refusing =
    (code: string, ...names: readonly string[]) =>
    (path: string): void => {
      if (names.some((name) => path.endsWith(name))) throw Object.assign(new Error(code), { code });
    };

  test('names the files without permission, and what to do', () => {
    for (const code of ['EACCES', 'EPERM'])
      assert.match(
        String(refusedDeviceFiles(folder, refusing(code, 'nvidia1', 'nvidia-uvm', 'null'))),
        new RegExp(
          `^User \\d+ has no permission to open ${folder}/nvidia-uvm, ${folder}/nvidia1: .*--gpus all`,
        ),
      );
  });

  test('says nothing if all can be opened, or fail for another reason, or the folder is missing', () => {
    assert.equal(refusedDeviceFiles(folder), undefined);
    assert.equal(refusedDeviceFiles(folder, refusing('EIO', 'nvidia0')), undefined);
    assert.equal(refusedDeviceFiles(join(folder, 'none')), undefined);
  });
});
