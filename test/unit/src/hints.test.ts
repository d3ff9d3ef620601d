import assert from 'node:assert/strict';
import { test } from 'node:test';
import { remedyFor } from '../../../src/hints.ts';

test('the same status has another remedy where the call tells more', () => {
  assert.match(String(remedyFor('cuIpcOpenMemHandle_v2', 201)), /made by this very process/);
  assert.match(String(remedyFor('cuIpcOpenMemHandle_v2', 400)), /has ended/);
  assert.match(String(remedyFor('cuIpcOpenMemHandle_v2', 1)), /freed the memory before/);
  assert.match(String(remedyFor('cuIpcOpenEventHandle', 400)), /--ipc=host/);
  assert.match(String(remedyFor('cuIpcGetMemHandle', 1)), /Only memory of cuMemAlloc/);
  assert.equal(remedyFor('cuMemFree_v2', 201), undefined);
  assert.equal(remedyFor('cuMemFree_v2', 400), undefined);
});

test('statuses of the installation say what to look at, whatever the call', () => {
  assert.match(String(remedyFor('cuInit', 100)), /nvidia-smi, CUDA_VISIBLE_DEVICES/);
  assert.match(String(remedyFor('cuInit', 34)), /stub of the CUDA toolkit/);
  assert.match(String(remedyFor('cuInit', 803)), /differ in version/);
  assert.match(String(remedyFor('cuMemAlloc_v2', 2)), /Close buffers/);
  assert.match(String(remedyFor('cuInit', 999)), /dmesg/);
});

test('what the emulated driver never does is said to need a GPU', () => {
  for (const call of ['cuLinkCreate_v2', 'cuOccupancyMaxActiveClusters'])
    assert.match(String(remedyFor(call, 801)), /emulated driver .* needs a GPU/);
  assert.doesNotMatch(String(remedyFor('cuMemPoolCreate', 801)), /emulated/);
});

test('a lost context asks for a new process', () => {
  for (const status of [214, 700, 719])
    assert.match(String(remedyFor('cuStreamQuery', status)), /End this process/);
});

test('where nothing helps, nothing is said', () => {
  assert.equal(remedyFor('cuInit', 1), undefined);
  assert.equal(remedyFor('toString', 98_765), undefined);
});
