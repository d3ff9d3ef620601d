import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { deviceAttributes } from '../../../../../ffi/attributes.ts';
import { recordCalls } from '../../../../../ffi/driver.ts';
import { Device } from '../../../../../src/index.ts';
import { type IpcSupport, ipcSupport } from '../../../../../src/ipc/index.ts';
import { emulate } from '../../emulate.ts';

/** A device with every capability, apart from `changes`. */
function support(changes: Partial<Record<keyof typeof deviceAttributes, number>> = {}): IpcSupport {
  const attributes = {
    computeMode: 0,
    unifiedAddressing: 1,
    integrated: 0,
    ipcEventSupported: 1,
    memoryPoolsSupported: 1,
    mempoolSupportedHandleTypes: 9,
    virtualMemoryManagementSupported: 1,
    handleTypePosixFileDescriptorSupported: 1,
    ...changes,
  };
  emulate({
    CUFFI_EMULATED_ATTRIBUTES: Object.entries(attributes)
      .map(([name, value]) => `${deviceAttributes[name as keyof typeof attributes]}=${value}`)
      .join(','),
  });
  return ipcSupport(Device.get());
}
const reasons = (found: IpcSupport): Record<string, string> =>
  Object.fromEntries(
    Object.entries(found).map(([name, { supported, reason }]) => {
      assert.equal(supported, reason === '', name);
      return [name, reason];
    }),
  );
const none = { memory: '', events: '', pools: '', virtualMemory: '' };

describe('ipcSupport', () => {
  test('a fully capable device supports every way of sharing, and nothing is opened to find out', () => {
    const recorder = recordCalls();
    assert.deepEqual(reasons(support()), none);
    recorder.stop();
    assert.ok(!recorder.calls.some((call) => call.name.includes('Ctx')));
  });

  test('takes a device, its ordinal, or nothing for device 0', () => {
    emulate({ CUFFI_EMULATED_DEVICES: '2' });
    for (const device of [undefined, 1, Device.get(1)])
      assert.deepEqual(reasons(ipcSupport(device)), none);
    assert.throws(() => ipcSupport(2), /^RangeError: there is no device 2/);
    assert.throws(() => ipcSupport({} as never), /^TypeError: device must be a Device or its ordi/);
  });

  test('memory and events need unified addressing and a discrete GPU', () => {
    const unified = 'the device does not support unified addressing';
    assert.deepEqual(reasons(support({ unifiedAddressing: 0 })), {
      ...none,
      memory: unified,
      events: unified,
    });
    const integrated = 'integrated GPUs have no legacy IPC';
    assert.deepEqual(reasons(support({ integrated: 1 })), {
      ...none,
      memory: integrated,
      events: integrated,
    });
  });

  test('each way of sharing needs its own device attribute', () => {
    assert.deepEqual(reasons(support({ ipcEventSupported: 0 })), {
      ...none,
      events: 'the device does not support interprocess events',
    });
    assert.deepEqual(reasons(support({ memoryPoolsSupported: 0 })), {
      ...none,
      pools: 'the device does not support memory pools',
    });
    assert.deepEqual(reasons(support({ mempoolSupportedHandleTypes: 8 })), {
      ...none,
      pools: 'its memory pools cannot be shared by file descriptor',
    });
    assert.deepEqual(reasons(support({ virtualMemoryManagementSupported: 0 })), {
      ...none,
      virtualMemory: 'the device does not support virtual memory management',
    });
    assert.deepEqual(reasons(support({ handleTypePosixFileDescriptorSupported: 0 })), {
      ...none,
      virtualMemory: 'the device does not support virtual memory by file descriptor',
    });
  });

  test('a compute mode that excludes a second process rules out every way of sharing', () => {
    for (const [computeMode, word] of [
      [2, 'prohibited'],
      [3, 'exclusive to one process'],
    ] as const)
      for (const reason of Object.values(reasons(support({ computeMode }))))
        assert.ok(reason.startsWith(`the device's compute mode is ${word}: `), reason);
  });
});
