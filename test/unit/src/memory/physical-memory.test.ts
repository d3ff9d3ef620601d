import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
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

/** How many chunks of memory were created on the device. */
function chunksMade(share: () => void): number {
  const recorder = recordCalls();
  share();
  recorder.stop();
  return recorder.calls.filter(({ name }) => name === 'cuMemCreate').length;
}

function shareVirtual(): void {
  using memory = VirtualMemory.reserve(1, { shareable: true });
  exportIpc(memory.grow(1));
}

describe('ensureKeepaliveAllocation', () => {
  test('the first export on a device adds one keep-alive allocation, and later exports add none', () => {
    emulate();
    assert.equal(chunksMade(shareVirtual), 2);
    assert.equal(chunksMade(shareVirtual), 1);
    using pool = MemoryPool.create({ shareable: true });
    assert.equal(
      chunksMade(() => exportIpc(pool)),
      0,
    );
  });

  test('the handle is released, because the descriptor keeps the memory alive', () => {
    const { driver, open } = keepingBooks(emulate());
    selectDriver(driver);
    shareVirtual();
    Context.primary().releases.drainReady();
    assert.deepEqual(
      [...open].filter((handle) => handle.startsWith('cuMemCreate')),
      [],
    );
  });

  test('a full device can still export', () => {
    selectDriver(failing(emulate(), 'cuMemCreate', 1, CUresult.CUDA_ERROR_OUT_OF_MEMORY));
    using pool = MemoryPool.create({ shareable: true });
    assert.equal(exportIpc(pool).descriptor.kind, 'pool');
  });

  test('child processes do not inherit the descriptor', () => {
    const driver = emulate();
    const exported: number[] = [];
    selectDriver({
      ...driver,
      cuMemExportToShareableHandle: (...args) => {
        const status = driver.cuMemExportToShareableHandle(...args);
        // A driver may return it without close-on-exec.
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
});
