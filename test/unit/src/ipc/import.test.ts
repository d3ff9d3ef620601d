import assert from 'node:assert/strict';
import { test } from 'node:test';
import { recordCalls } from '../../../../ffi/driver.ts';
import { CudaEvent, Device, DeviceBuffer } from '../../../../src/index.ts';
import { sealDescriptor } from '../../../../src/ipc/descriptor.ts';
import { getIpcHandle, openIpcBuffer, openIpcEvent } from '../../../../src/ipc/index.ts';
import { currentContext, emulate } from '../emulate.ts';

const OTHER_PID = 2 ** 30;
/** A descriptor with other values, as its own process would have sealed it. */
const changed = (descriptor: object, values: object): unknown =>
  sealDescriptor({ ...descriptor, ...values } as never);
const elsewhere = { device: 'GPU-00000000-0000-0000-0000-000000000000', pid: OTHER_PID };

test('its own handles are refused before the driver is asked', () => {
  emulate();
  using buffer = DeviceBuffer.allocate(16);
  using event = CudaEvent.create({ interprocess: true });
  const [ofBuffer, ofEvent] = [getIpcHandle(buffer), getIpcHandle(event)];
  const recorder = recordCalls();
  const expected = {
    name: 'IpcError',
    message: new RegExp(`made by this very process \\(pid ${process.pid}\\)\\. Use the object`),
  };
  assert.throws(() => openIpcBuffer(ofBuffer), expected);
  assert.throws(() => openIpcEvent(ofEvent), expected);
  assert.throws(
    () => openIpcBuffer(changed(ofBuffer, { ...elsewhere, pid: process.pid })),
    expected,
  );
  recorder.stop();
  assert.deepEqual(recorder.calls, []);
});

test('a GPU that this process does not see is named beside those that it sees', () => {
  emulate({ CUFFI_EMULATED_DEVICES: '2' });
  using buffer = DeviceBuffer.allocate(16);
  using event = CudaEvent.create({ interprocess: true });
  const recorder = recordCalls();
  const expected = {
    name: 'IpcError',
    message: new RegExp(
      `GPU ${elsewhere.device}, which this process does not see; it sees ` +
        `${Device.get(0).uuid}, ${Device.get(1).uuid}\\. `,
    ),
  };
  assert.throws(() => openIpcBuffer(changed(getIpcHandle(buffer), elsewhere)), expected);
  assert.throws(() => openIpcEvent(changed(getIpcHandle(event), elsewhere)), expected);
  recorder.stop();
  assert.ok(!recorder.calls.some((call) => call.name.startsWith('cuIpcOpen')));
});

test('a message that is no descriptor never reaches the driver', () => {
  emulate();
  const recorder = recordCalls();
  for (const message of [undefined, null, {}, 'x', 5, { kind: 'legacy' }]) {
    assert.throws(() => openIpcBuffer(message), { name: 'IpcError' });
    assert.throws(() => openIpcEvent(message), { name: 'IpcError' });
  }
  assert.throws(() => openIpcBuffer({}, { devise: 1 } as never), /unknown option 'devise'/);
  recorder.stop();
  assert.deepEqual(recorder.calls, []);
});

test('what the driver refuses says whose it was, and leaves nothing open', () => {
  emulate();
  using buffer = DeviceBuffer.allocate(16);
  using event = CudaEvent.create({ interprocess: true });
  const handle = Buffer.alloc(64).toString('base64');
  const [ofBuffer, ofEvent] = [getIpcHandle(buffer), getIpcHandle(event)];
  const { resources } = buffer.context;
  const before = resources.size;
  assert.throws(
    () => openIpcBuffer(changed(ofBuffer, { handle, pid: OTHER_PID, pidNamespace: 1 })),
    {
      name: 'IpcError',
      message: /^memory of process 1073741824 could not be opened: cuIpcOpenMemHandle_v2 failed: /,
    },
  );
  assert.throws(() => openIpcEvent(changed(ofEvent, { handle, pid: OTHER_PID, pidNamespace: 1 })), {
    name: 'IpcError',
    message: /^an event of process 1073741824 could not be opened: cuIpcOpenEventHandle failed: /,
  });
  assert.equal(resources.size, before);
  assert.equal(currentContext(), 0);
});
