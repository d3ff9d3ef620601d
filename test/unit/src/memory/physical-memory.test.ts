import assert from 'node:assert/strict';
import { test } from 'node:test';
import { readInt32 } from '../../../../ffi/arena.ts';
import { recordCalls, selectDriver } from '../../../../ffi/driver.ts';
import { libc } from '../../../../ffi/linux/libc.ts';
import { CUresult } from '../../../../ffi/results.ts';
import { Context, Device, MemoryPool, VirtualMemory } from '../../../../src/index.ts';
import { exportIpc } from '../../../../src/ipc/index.ts';
import { ensureKeepaliveAllocation } from '../../../../src/memory/physical-memory.ts';
import { failing, keepingBooks } from '../../../support/faults.ts';
import { emulate } from '../emulate.ts';

const [F_GETFD, F_SETFD, FD_CLOEXEC] = [1, 2, 1];

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
  Context.primary().releases.drainReady();
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

test('what keeps the piece is no descriptor of programs that are started', () => {
  const driver = emulate();
  const exported: number[] = [];
  selectDriver({
    ...driver,
    cuMemExportToShareableHandle: (...args) => {
      const status = driver.cuMemExportToShareableHandle(...args);
      // As a driver may give it out.
      const fd = readInt32(args[0]);
      assert.equal(libc.fcntl(fd, F_SETFD, 0), 0);
      exported.push(fd);
      return status;
    },
  });
  ensureKeepaliveAllocation(Device.get());
  assert.deepEqual(
    exported.map((fd) => libc.fcntl(fd, F_GETFD, 0)),
    [FD_CLOEXEC],
  );
});
