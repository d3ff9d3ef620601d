import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { recordCalls } from '../../ffi/driver.ts';
import { Context, CudaEvent, Stream } from '../../src/index.ts';
import { getIpcHandle, openIpcEvent } from '../../src/ipc/index.ts';
import { Latch } from '../support/latch.ts';
import { WorkerProcess } from './fixtures/index.ts';

const deadline = { timeout: 60_000 };

describe('events between processes', () => {
  test(
    'an event recorded in one process is seen and waited for in the other',
    deadline,
    async () => {
      await using user = new WorkerProcess();
      using event = CudaEvent.create({ interprocess: true });
      await user.do('openEvent', { key: 'e', message: getIpcHandle(event) });
      assert.equal(await user.do('isDone', { key: 'e' }), true);
      using stream = Stream.create({ nonBlocking: true });
      using latch = new Latch();
      latch.hold(stream);
      event.record(stream);
      assert.equal(await user.do('isDone', { key: 'e' }), false);
      await user.do('wait', { key: 'e' });
      assert.equal(await user.do('isStreamDone'), false);
      latch.open();
      await stream.synchronize();
      await user.do('synchronizeEvent', { key: 'e' });
      assert.equal(await user.do('isDone', { key: 'e' }), true);
      await user.do('closeEvent', { key: 'e' });
    },
  );

  test('the importer records too, and its exporter sees it', deadline, async () => {
    await using user = new WorkerProcess();
    using event = CudaEvent.create({ interprocess: true });
    await user.do('openEvent', { key: 'e', message: getIpcHandle(event) });
    await user.do('hold');
    await user.do('record', { key: 'e' });
    assert.equal(event.done, false);
    await user.do('release');
    await event.synchronize();
    assert.equal(event.done, true);
  });

  test(
    'an event of the other process is opened here, and passed on as what it came as',
    deadline,
    async () => {
      await using user = new WorkerProcess();
      const message = await user.do('createEvent', { key: 'e' });
      using event = openIpcEvent(message);
      assert.equal(event.imported, true);
      assert.deepEqual(getIpcHandle(event), message);
      // Opened where the caller says: in a context, or on a device.
      const context = Context.primary();
      for (const place of [{ context }, { device: 0 }]) {
        using there = openIpcEvent(message, place);
        assert.deepEqual([there.context, there.done], [context, true]);
      }
      assert.throws(() => CudaEvent.elapsedMs(event, event), /interprocess events cannot be timed/);
      await user.do('record', { key: 'e' });
      await event.synchronize();
    },
  );

  test('wrong events are refused in words, and the driver is not asked', () => {
    using plain = CudaEvent.create();
    using own = CudaEvent.create({ interprocess: true });
    const message = getIpcHandle(own);
    const recorder = recordCalls();
    assert.throws(() => getIpcHandle(plain), { name: 'IpcError', message: /interprocess: true/ });
    assert.throws(() => openIpcEvent(message), { name: 'IpcError', message: /this very process/ });
    assert.throws(() => openIpcEvent({ ...message, handle: 'AAAA' }), {
      name: 'IpcError',
      message: /64 bytes/,
    });
    assert.throws(() => openIpcEvent(null), { name: 'IpcError' });
    recorder.stop();
    assert.deepEqual(recorder.calls, []);
    own.close();
    assert.throws(() => getIpcHandle(own), { name: 'ClosedError' });
  });
});
