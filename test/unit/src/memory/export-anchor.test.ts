import assert from 'node:assert/strict';
import { test } from 'node:test';
import { recordCalls, selectDriver } from '../../../../ffi/driver.ts';
import { CUresult } from '../../../../ffi/results.ts';
import { Context, MemoryPool, VirtualMemory } from '../../../../src/index.ts';
import { exportIpc } from '../../../../src/ipc/index.ts';
import { failing, keepingBooks } from '../../../support/faults.ts';
import { emulate } from '../emulate.ts';

/** How many pieces of memory the device was asked for. */
function piecesMade(share: () => void): number {
  const recorder = recordCalls();
  share();
  recorder.stop();
  return recorder.calls.filter(({ name }) => name === 'cuMemCreate').length;
}

function shareVirtual(): void {
  using memory = VirtualMemory.reserve(1, { shareable: true });
  exportIpc(memory.grow(1));
}

test('beside what is shared first a piece of the device stays shared, and no other later', () => {
  emulate();
  assert.equal(piecesMade(shareVirtual), 2);
  assert.equal(piecesMade(shareVirtual), 1);
  using pool = MemoryPool.create({ shareable: true });
  assert.equal(
    piecesMade(() => exportIpc(pool)),
    0,
  );
});

test('its handle is released: the descriptor holds the memory', () => {
  const { driver, open } = keepingBooks(emulate());
  selectDriver(driver);
  shareVirtual();
  Context.primary().releases.collect();
  assert.deepEqual(
    [...open].filter((handle) => handle.startsWith('cuMemCreate')),
    [],
  );
});

test('a full device shares all the same', () => {
  selectDriver(failing(emulate(), 'cuMemCreate', 1, CUresult.CUDA_ERROR_OUT_OF_MEMORY));
  using pool = MemoryPool.create({ shareable: true });
  assert.equal(exportIpc(pool).descriptor.kind, 'pool');
});
