import assert from 'node:assert/strict';
import { test } from 'node:test';
import { hintFor } from '../../../src/hints.ts';

test('the same status has another remedy where the call tells more', () => {
  assert.match(String(hintFor('cuIpcOpenMemHandle_v2', 201)), /made by this very process/);
  assert.match(String(hintFor('cuIpcOpenMemHandle_v2', 400)), /has ended/);
  assert.match(String(hintFor('cuIpcOpenMemHandle_v2', 1)), /freed the memory before/);
  assert.match(String(hintFor('cuIpcOpenEventHandle', 400)), /--ipc=host/);
  assert.match(String(hintFor('cuIpcGetMemHandle', 1)), /Only memory of cuMemAlloc/);
  assert.equal(hintFor('cuMemFree_v2', 201), undefined);
  assert.equal(hintFor('cuMemFree_v2', 400), undefined);
});

test('statuses of the installation say what to look at, whatever the call', () => {
  assert.match(String(hintFor('cuInit', 100)), /nvidia-smi, CUDA_VISIBLE_DEVICES/);
  assert.match(String(hintFor('cuInit', 34)), /stub of the CUDA toolkit/);
  assert.match(String(hintFor('cuInit', 803)), /differ in version/);
  assert.match(String(hintFor('cuMemAlloc_v2', 2)), /Close buffers/);
  assert.match(String(hintFor('cuInit', 999)), /dmesg/);
});

test('what the emulated driver never does is said to need a GPU', () => {
  for (const call of ['cuLinkCreate_v2', 'cuOccupancyMaxActiveClusters'])
    assert.match(String(hintFor(call, 801)), /emulated driver .* needs a GPU/);
  assert.doesNotMatch(String(hintFor('cuMemPoolCreate', 801)), /emulated/);
});

test('a lost context asks for a new process', () => {
  for (const status of [214, 700, 719])
    assert.match(String(hintFor('cuStreamQuery', status)), /End this process/);
});

test('where nothing helps, nothing is said', () => {
  assert.equal(hintFor('cuInit', 1), undefined);
  assert.equal(hintFor('toString', 98_765), undefined);
});
