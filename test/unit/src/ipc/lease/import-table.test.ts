/** What is open here of another process's, and a context that is lost, so that nothing can be closed. */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { selectDriver } from '../../../../../ffi/driver.ts';
import { SystemError } from '../../../../../ffi/linux/libc.ts';
import { CUresult } from '../../../../../ffi/results.ts';
import { ClosedError, Context, CudaError, DeviceBuffer, Stream } from '../../../../../src/index.ts';
import { ImportTable } from '../../../../../src/ipc/lease/import-table.ts';
import { PeerProcess } from '../../../../../src/ipc/lease/peer-process.ts';
import { Timeline } from '../../../../../src/ipc/timeline/timeline.ts';
import { broken } from '../../../../support/faults.ts';
import { Latch } from '../../../../support/latch.ts';
import { collectUntil } from '../../../../support/process-state.ts';
import { emulate } from '../../emulate.ts';

/** Two devices, of which no context can be waited for any more. */
const loseBoth = (): void =>
  selectDriver(
    broken(
      emulate({ CUFFI_EMULATED_DEVICES: '2' }),
      'cuCtxSynchronize',
      CUresult.CUDA_ERROR_LAUNCH_FAILED,
    ),
  );

function borrowed(
  needed = new Set<number>(),
  ordering = new Timeline(),
): { readonly here: ImportTable; returned(): number[] } {
  const lender = {
    process: PeerProcess.fromIdentity(0, 0),
    requestForward: () => ({ acknowledged: Promise.resolve(), release() {} }),
    hasUnsentForward: (lease: number) => needed.has(lease),
  };
  const here = new ImportTable(ordering, lender, () => {});
  return { here, returned: () => here.takeReleases().map(({ lease }) => lease) };
}

describe('ImportTable', () => {
  test('a reset releases the objects of that context, closed or not, and no others', () => {
    loseBoth();
    const { here, returned } = borrowed();
    const buffers = [0, 1, 0].map((device) => DeviceBuffer.allocate(64, { device }));
    here.add({ first: 0, count: buffers.length });
    for (const [id, buffer] of buffers.entries()) here.setOpened(id, buffer);
    // Somebody needs it still: closing it gives nothing back.
    buffers[2]?.addKeepalive();
    buffers[2]?.close();
    assert.deepEqual(returned(), []);
    Context.primary(0).resetSync();
    assert.deepEqual(returned(), [0, 2]);
    assert.equal(Context.primary(0).onReset.size, 1);
    here.end();
    Context.primary(1).resetSync();
    assert.deepEqual(returned(), [1]);
    assert.deepEqual(
      [0, 1].map((device) => Context.primary(device).onReset.size),
      [0, 0],
    );
  });

  test('a reset that fails in the driver releases the objects nevertheless', () => {
    const lost = CUresult.CUDA_ERROR_LAUNCH_FAILED;
    for (const name of ['cuDevicePrimaryCtxRelease_v2', 'cuDevicePrimaryCtxReset_v2'] as const) {
      selectDriver(broken(broken(emulate(), 'cuCtxSynchronize', lost), name, lost));
      const { here, returned } = borrowed();
      here.add({ first: 0, count: 1 });
      const buffer = DeviceBuffer.allocate(64);
      here.setOpened(0, buffer);
      assert.throws(() => buffer.context.resetSync(), { name: 'CudaError', call: name });
      assert.equal(buffer.closed, true);
      assert.deepEqual(returned(), [0]);
      here.end();
    }
  });

  test('a release waits for a pending forward request, and so do the releases after it', () => {
    const needed = new Set([1]);
    const { here, returned } = borrowed(needed);
    here.add({ first: 0, count: 3 });
    for (const id of [0, 1, 2]) here.release(id);
    assert.deepEqual(returned(), [0]);
    assert.deepEqual(returned(), []);
    needed.clear();
    assert.deepEqual(returned(), [1, 2]);
  });

  test('an object that is closed and released at once is reported once, behind its work', () => {
    emulate();
    const context = Context.primary();
    const { here } = borrowed();
    here.add({ first: 0, count: 4 });
    using stream = Stream.create({ nonBlocking: true });
    using latch = new Latch();
    latch.hold(stream);
    const close = (id: number): void => here.importLease(id).closed(context, stream);
    const told = (): unknown[] =>
      here
        .takeReleases()
        .map(({ lease, isFinal, points }) => [lease, isFinal, points.map(({ count }) => count)]);
    close(0);
    here.importLease(0).released();
    assert.deepEqual(told(), [[0, true, [1]]]);
    // What was told, or is not the last, stays as it is; the end of it needs no points again.
    close(1);
    assert.deepEqual(told(), [[1, false, [2]]]);
    here.release(1);
    assert.deepEqual(told(), [[1, true, []]]);
    close(2);
    close(3);
    here.release(2);
    assert.deepEqual(told(), [
      [2, false, [3]],
      [3, false, [4]],
      [2, true, []],
    ]);
    here.release(3);
    // The second time does nothing, and neither does a close after it.
    here.release(3);
    close(3);
    assert.deepEqual(told(), [[3, true, []]]);
    assert.equal(here.size, 0);
  });

  test('revoking a lease that was never sent is refused, but not one that was released', () => {
    emulate();
    const { here, returned } = borrowed();
    here.add({ first: 0, count: 2 });
    using buffer = DeviceBuffer.allocate(64);
    here.setOpened(0, buffer);
    here.releaseAll({ first: 1, count: 1 });
    for (const id of [0, 0, 1]) here.revoke(id, 'process 7');
    assert.throws(() => buffer.address, {
      name: 'ClosedError',
      message: /process 7 has revoked it/,
    });
    assert.throws(() => here.revoke(2, 'process 7'), {
      name: 'IpcError',
      message: 'lease 2 was revoked, but was never sent',
    });
    assert.deepEqual(returned(), [1]);
  });

  test('a collected object is released if all objects are in one context', async () => {
    loseBoth();
    const { here, returned } = borrowed();
    here.add({ first: 0, count: 1 });
    const context = Context.primary(0);
    let isCollected = false;
    const registry = new FinalizationRegistry(() => {
      isCollected = true;
    });
    (() => {
      const buffer = DeviceBuffer.allocate(64);
      registry.register(buffer, 0);
      here.setOpened(0, buffer);
      // Its own finalizer has nothing to close.
      buffer.addKeepalive();
      buffer.close();
    })();
    assert.equal(await collectUntil(() => isCollected), true);
    assert.deepEqual(returned(), []);
    context.resetSync();
    assert.deepEqual(returned(), [0]);
    here.end();
  });

  test('an object whose work has no point is released later; a program error is thrown', () => {
    selectDriver(emulate());
    const status = CUresult.CUDA_ERROR_LAUNCH_FAILED;
    const lost = new CudaError({ status, call: 'cuEventRecord', description: '' });
    const failures = [
      [lost, undefined],
      [new ClosedError('this Stream is closed'), undefined],
      [new SystemError('memfd_create', 24), undefined],
      [new TypeError('a fault'), { name: 'TypeError', message: 'a fault' }],
    ] as const;
    for (const [error, thrown] of failures) {
      const ordering = new Timeline();
      ordering.pointsBehindContext = () => {
        throw error;
      };
      const { here, returned } = borrowed(new Set(), ordering);
      here.add({ first: 0, count: 1 });
      using buffer = DeviceBuffer.allocate(64);
      here.setOpened(0, buffer);
      const close = (): void => here.importLease(0).closed(buffer.context, undefined);
      if (thrown) assert.throws(close, thrown);
      else close();
      assert.deepEqual(returned(), []);
      here.release(0);
      assert.deepEqual(returned(), [0]);
      here.end();
    }
  });
});
