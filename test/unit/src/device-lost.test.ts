/** What happens to everything that is open when the device is lost. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { selectDriver } from '../../../ffi/driver.ts';
import { CUresult } from '../../../ffi/results.ts';
import {
  Context,
  CudaEvent,
  DeviceBuffer,
  MemoryPool,
  PinnedBuffer,
  Stream,
} from '../../../src/index.ts';
import { losing } from '../../support/faults.ts';
import { Latch } from '../../support/latch.ts';
import { emulate } from './emulate.ts';

const lost = { name: 'CudaError', status: CUresult.CUDA_ERROR_LAUNCH_FAILED, sticky: true };

test('waits reject, calls throw a sticky error, and nothing hangs', async () => {
  const { driver, lose } = losing(emulate(), CUresult.CUDA_ERROR_LAUNCH_FAILED);
  selectDriver(driver);
  const context = Context.primary();
  const stream = Stream.create({ nonBlocking: true });
  const event = CudaEvent.create();
  const pool = MemoryPool.create({ maxSize: 1 << 20 });
  const buffer = DeviceBuffer.allocate(1 << 20);
  const other = DeviceBuffer.allocate(4096);
  const pooled = pool.allocate(4096, { stream });
  const pinned = PinnedBuffer.allocate(4096);
  const view = new Uint8Array(pinned.buffer);
  const latch = new Latch(context);
  latch.hold(stream);
  event.record(stream);
  other.close();
  const waits = [
    stream.synchronize(),
    event.synchronize(),
    buffer.copyFrom(new Uint8Array(1 << 20), { stream }),
    context.synchronize(),
  ];
  const flushing = context.flush();
  lose();
  for (const wait of waits) await assert.rejects(wait, lost);
  await flushing;
  assert.equal(context.releases.size, 0);
  assert.throws(() => buffer.fill(0), lost);
  assert.throws(() => buffer.copyToHostSync(), lost);
  assert.throws(() => DeviceBuffer.allocate(1), lost);
  assert.throws(() => pool.allocate(1, { stream }), lost);
  for (const each of [pooled, buffer, pinned, event, stream, pool]) {
    assert.throws(() => each.close(), lost);
    assert.equal(each.closed, true);
    each.close();
  }
  assert.equal(view[0], 0);
  assert.equal(context.resources.size, 0);
});
