/**
 * Objects of another process that are open here, and a lost context, in which nothing can be
 * closed.
 */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { selectDriver } from '../../../../../ffi/driver.ts';
import { SystemError } from '../../../../../ffi/linux/libc.ts';
import { CUresult } from '../../../../../ffi/results.ts';
import { ClosedError, Context, CudaError, DeviceBuffer, Stream } from '../../../../../src/index.ts';
import { ImportTable } from '../../../../../src/ipc/lease/import-table.ts';
import { PeerProcess } from '../../../../../src/ipc/lease/peer-process.ts';
import { ConnectionTimeline } from '../../../../../src/ipc/timeline/connection-timeline.ts';
import { broken } from '../../../../support/faults.ts';
import { Latch } from '../../../../support/latch.ts';
import { collectUntil } from '../../../../support/process-state.ts';
import { emulate } from '../../emulate.ts';

/** Two devices, and no context of theirs can be synchronized. */
const loseBoth = (): void =>
  selectDriver(
    broken(
      emulate({ CUFFI_EMULATED_DEVICES: '2' }),
      'cuCtxSynchronize',
      CUresult.CUDA_ERROR_LAUNCH_FAILED,
    ),
  );

function makeTable(
  needed = new Set<number>(),
  timeline = new ConnectionTimeline(),
): { readonly table: ImportTable; released(): number[] } {
  const owner = {
    process: PeerProcess.fromIdentity(0, 0),
    requestForward: () => ({ acknowledged: Promise.resolve(), release() {} }),
    hasUnsentForward: (lease: number) => needed.has(lease),
  };
  const table = new ImportTable(timeline, owner, () => {});
  return { table, released: () => table.takeReleases().map(({ lease }) => lease) };
}

describe('ImportTable', () => {
  test('a reset releases the objects of that context, closed or not, and no others', () => {
    loseBoth();
    const { table, released } = makeTable();
    const buffers = [0, 1, 0].map((device) => DeviceBuffer.allocate(64, { device }));
    table.add(0, buffers.length);
    for (const [id, buffer] of buffers.entries()) table.setOpened(id, buffer);
    // Something still keeps it alive, so closing it releases nothing.
    buffers[2]?.addKeepalive();
    buffers[2]?.close();
    assert.deepEqual(released(), []);
    Context.primary(0).resetSync();
    assert.deepEqual(released(), [0, 2]);
    assert.equal(Context.primary(0).onReset.size, 1);
    table.end();
    Context.primary(1).resetSync();
    assert.deepEqual(released(), [1]);
    assert.deepEqual(
      [0, 1].map((device) => Context.primary(device).onReset.size),
      [0, 0],
    );
  });

  test('a reset that fails in the driver releases the objects nevertheless', () => {
    const lost = CUresult.CUDA_ERROR_LAUNCH_FAILED;
    for (const name of ['cuDevicePrimaryCtxRelease_v2', 'cuDevicePrimaryCtxReset_v2'] as const) {
      selectDriver(broken(broken(emulate(), 'cuCtxSynchronize', lost), name, lost));
      const { table, released } = makeTable();
      table.add(0, 1);
      const buffer = DeviceBuffer.allocate(64);
      table.setOpened(0, buffer);
      assert.throws(() => buffer.context.resetSync(), { name: 'CudaError', call: name });
      assert.equal(buffer.closed, true);
      assert.deepEqual(released(), [0]);
      table.end();
    }
  });

  test('a release waits for a pending forward request, and so do the releases after it', () => {
    const needed = new Set([1]);
    const { table, released } = makeTable(needed);
    table.add(0, 3);
    for (const id of [0, 1, 2]) table.release(id);
    assert.deepEqual(released(), [0]);
    assert.deepEqual(released(), []);
    needed.clear();
    assert.deepEqual(released(), [1, 2]);
  });

  test('an object that is closed and released at once is reported once, behind its work', () => {
    emulate();
    const context = Context.primary();
    const timeline = new ConnectionTimeline();
    const { table } = makeTable(undefined, timeline);
    table.add(0, 4);
    using stream = Stream.create({ nonBlocking: true });
    using latch = new Latch();
    latch.hold(stream);
    const close = (id: number): void => table.importLease(id).closed(context, [stream]);
    const sent = (): unknown[] =>
      table
        .takeReleases()
        .map(({ lease, isFinal, points }) => [lease, isFinal, points.map(({ count }) => count)]);
    close(0);
    table.importLease(0).released();
    assert.deepEqual(sent(), [[0, true, [1]]]);
    // An entry that was sent, or is not the last, stays unchanged. Its end needs no points again.
    close(1);
    assert.deepEqual(sent(), [[1, false, [2]]]);
    table.release(1);
    assert.deepEqual(sent(), [[1, true, []]]);
    close(2);
    close(3);
    table.release(2);
    assert.deepEqual(sent(), [
      [2, false, [3]],
      [3, false, [4]],
      [2, true, []],
    ]);
    table.release(3);
    // The second call does nothing, nor does a close after it.
    table.release(3);
    close(3);
    assert.deepEqual(sent(), [[3, true, []]]);
    assert.equal(table.size, 0);
    latch.open();
    timeline.close(() => {});
  });

  test('revoking a lease that was never sent is refused, but not one that was released', () => {
    emulate();
    const { table, released } = makeTable();
    table.add(0, 2);
    using buffer = DeviceBuffer.allocate(64);
    table.setOpened(0, buffer);
    table.releaseAll(1, 1);
    for (const id of [0, 0, 1]) table.revoke(id, 'process 7');
    assert.throws(() => buffer.address, {
      name: 'ClosedError',
      message: /process 7 has revoked it/,
    });
    assert.throws(() => table.revoke(2, 'process 7'), {
      name: 'IpcError',
      message: 'lease 2 was revoked, but was never sent',
    });
    assert.deepEqual(released(), [1]);
    table.release(0);
    table.end();
  });

  test('a collected object is released if all objects are in one context', async () => {
    loseBoth();
    const { table, released } = makeTable();
    table.add(0, 1);
    const context = Context.primary(0);
    let isCollected = false;
    const registry = new FinalizationRegistry(() => {
      isCollected = true;
    });
    (() => {
      const buffer = DeviceBuffer.allocate(64);
      registry.register(buffer, 0);
      table.setOpened(0, buffer);
      // Its own finalizer has nothing to close.
      buffer.addKeepalive();
      buffer.close();
    })();
    assert.equal(await collectUntil(() => isCollected), true);
    assert.deepEqual(released(), []);
    context.resetSync();
    assert.deepEqual(released(), [0]);
    table.end();
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
      const timeline = new ConnectionTimeline();
      timeline.pointsBehindContext = () => {
        throw error;
      };
      const { table, released } = makeTable(new Set(), timeline);
      table.add(0, 1);
      using buffer = DeviceBuffer.allocate(64);
      table.setOpened(0, buffer);
      const close = (): void => table.importLease(0).closed(buffer.context, undefined);
      if (thrown) assert.throws(close, thrown);
      else close();
      assert.deepEqual(released(), []);
      table.release(0);
      assert.deepEqual(released(), [0]);
      table.end();
    }
  });
});
