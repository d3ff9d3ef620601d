import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { CudaEvent, DeviceBuffer, Stream } from '../../src/index.ts';
import { Latch } from '../support/latch.ts';

describe('CudaEvent', () => {
  test('an event never recorded is done; recorded behind held work it is not', async () => {
    using stream = Stream.create({ nonBlocking: true });
    using event = CudaEvent.create();
    assert.equal(event.done, true);
    using latch = new Latch();
    latch.hold(stream);
    event.record(stream);
    assert.equal(event.done, false);
    latch.open();
    await event.synchronize();
    assert.equal(event.done, true);
  });

  test('the time between two events is taken in milliseconds', async () => {
    using stream = Stream.create();
    using start = CudaEvent.create();
    using end = CudaEvent.create();
    using buffer = DeviceBuffer.allocate(1 << 20);
    start.record(stream);
    buffer.fill(0, { stream });
    end.record(stream);
    await end.synchronize();
    const elapsedMs = CudaEvent.elapsedMs(start, end);
    assert.ok(elapsedMs >= 0 && elapsedMs < 10_000);
  });

  test('an impossible time measurement is refused with an explanation', () => {
    using timed = CudaEvent.create();
    using untimed = CudaEvent.create({ timing: false });
    using shared = CudaEvent.create({ interprocess: true });
    assert.throws(() => CudaEvent.elapsedMs(timed, untimed), /end was created with timing: false$/);
    assert.throws(() => CudaEvent.elapsedMs(shared, timed), /interprocess events cannot be timed/);
    assert.throws(() => CudaEvent.elapsedMs(timed, timed), {
      name: 'CudaError',
      code: 'CUDA_ERROR_INVALID_HANDLE',
      message: /were both events recorded/,
    });
    assert.throws(() => CudaEvent.create({ timing: true, interprocess: true }), TypeError);
  });

  test('an event is recorded in the legacy default stream if no stream is given', () => {
    using event = CudaEvent.create({ blockingSync: true });
    using buffer = DeviceBuffer.allocate(64);
    buffer.fill(1);
    event.record();
    event.synchronizeSync();
    assert.equal(event.done, true);
  });

  test('an event may be closed twice, and refuses use afterwards', () => {
    const event = CudaEvent.create();
    event.close();
    event.close();
    assert.throws(() => event.done, { name: 'ClosedError' });
    assert.throws(() => event.record(), { name: 'ClosedError' });
    using stream = Stream.create();
    assert.throws(() => stream.wait(event), { name: 'ClosedError' });
    using open = CudaEvent.create();
    assert.throws(() => open.record({} as never), /stream must be a Stream/);
  });
});
