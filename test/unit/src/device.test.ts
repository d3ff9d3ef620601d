import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { recordCalls, selectDriver } from '../../../ffi/driver.ts';
import { Device, devices } from '../../../src/index.ts';
import { failing } from '../../support/faults.ts';
import { emulate } from './emulate.ts';

describe('Device', () => {
  test('every device is one object, with its own ordinal and UUID', () => {
    emulate({ CUFFI_EMULATED_DEVICES: '3' });
    const all = devices();
    assert.deepEqual(
      all.map((device) => device.ordinal),
      [0, 1, 2],
    );
    assert.equal(new Set(all.map((device) => device.uuid)).size, 3);
    for (const device of all) {
      assert.equal(Device.get(device.ordinal), device);
      assert.equal(Device.byUuid(device.uuid), device);
    }
    assert.equal(Device.get(), all[0]);
  });

  test('get() and byUuid() reject an unknown device, and list those that this process sees', () => {
    emulate({ CUFFI_EMULATED_DEVICES: '2' });
    assert.throws(() => Device.get(2), {
      name: 'RangeError',
      message: /no device 2: this process sees 2 \(0 to 1; CUDA_VISIBLE_DEVICES/,
    });
    for (const ordinal of [-1, 0.5, Number.NaN])
      assert.throws(() => Device.get(ordinal), RangeError);
    for (const ordinal of ['0', null, 0n])
      assert.throws(() => Device.get(ordinal as never), TypeError);
    assert.throws(
      () => Device.byUuid('GPU-x'),
      /no visible device has the UUID GPU-x; visible: GPU-/,
    );
    assert.throws(() => Device.byUuid(0 as never), TypeError);
  });

  test('an attribute has a name, and an unknown name never reaches the driver', () => {
    emulate({ CUFFI_EMULATED_ATTRIBUTES: '16=7,75=8,76=6' });
    const device = Device.get();
    assert.equal(device.attribute('multiprocessorCount'), 7);
    assert.deepEqual(device.computeCapability, { major: 8, minor: 6 });
    const recorder = recordCalls();
    for (const name of ['MultiprocessorCount', '16', 'constructor', '__proto__', undefined])
      assert.throws(() => device.attribute(name as never), TypeError);
    recorder.stop();
    assert.deepEqual(recorder.calls, []);
  });

  test('the properties of a device open no context', () => {
    emulate();
    const recorder = recordCalls();
    const device = Device.get();
    assert.match(`${device}`, /^Device 0 \(.+\)$/);
    device.uuid;
    device.totalMemory;
    device.attribute('warpSize');
    recorder.stop();
    assert.ok(!recorder.calls.some((call) => call.name.includes('Ctx')));
  });

  test('the driver is asked for name and UUID once, and again after a failure', () => {
    selectDriver(failing(emulate(), 'cuDeviceGetName', 1, 999));
    const device = Device.get();
    assert.throws(() => device.name, { name: 'CudaError', status: 999 });
    const recorder = recordCalls();
    assert.equal(device.name, device.name);
    assert.equal(device.uuid, device.uuid);
    recorder.stop();
    assert.deepEqual(
      recorder.calls.map((call) => call.name),
      ['cuDeviceGetName', 'cuDeviceGetUuid_v2'],
    );
  });

  test('the error for an attribute that the driver does not know names it', () => {
    selectDriver(failing(emulate(), 'cuDeviceGetAttribute', 1, 1));
    assert.throws(() => Device.get().attribute('mpsEnabled'), {
      name: 'CudaError',
      message: /while reading mpsEnabled/,
    });
  });

  test('the UUID of a MIG slice has the prefix of nvidia-smi and CUDA_VISIBLE_DEVICES', (t) => {
    emulate();
    t.mock.getter(Device.prototype, 'name', () => 'NVIDIA H100 80GB HBM3 MIG 1g.10gb');
    assert.match(Device.get().uuid, /^MIG-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/);
  });
});
