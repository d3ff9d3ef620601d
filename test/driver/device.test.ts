import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { Device, devices, driverVersion, isAvailable } from '../../src/index.ts';

describe('Device', () => {
  test('the devices are listed, and each is the same object by ordinal and by UUID', () => {
    assert.equal(isAvailable(), true);
    const all = devices();
    assert.equal(all.length, Device.count);
    assert.ok(all.length >= 1);
    for (const device of all) {
      assert.equal(Device.get(device.ordinal), device);
      assert.equal(Device.byUuid(device.uuid), device);
      assert.match(device.uuid, /^GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/);
    }
  });

  test('a device says its name, memory, compute capability and attributes', () => {
    const device = Device.get();
    assert.ok(device.name.length > 3);
    assert.ok(device.totalMemory >= 1 << 20);
    assert.ok(device.computeCapability.major >= 5);
    assert.equal(device.attribute('warpSize'), 32);
    assert.equal(device.attribute('maxThreadsPerBlock'), 1024);
    assert.ok(device.attribute('multiprocessorCount') > 0);
    assert.ok(driverVersion().major >= 11);
  });

  test('a device that is not there is refused with the number that is', () => {
    assert.throws(() => Device.get(99), { name: 'RangeError', message: /no device 99.*sees \d+/ });
    assert.throws(() => Device.get(-1), RangeError);
    assert.throws(() => Device.get(0.5), RangeError);
    assert.throws(() => Device.get('0' as never), TypeError);
    assert.throws(() => Device.byUuid('GPU-nothing'), {
      name: 'RangeError',
      message: /visible: GPU-/,
    });
  });

  test('an unknown attribute is refused before the driver is asked', () => {
    assert.throws(() => Device.get().attribute('warpsize' as never), {
      name: 'TypeError',
      message: /'warpsize'/,
    });
    assert.throws(() => Device.get().attribute('toString' as never), TypeError);
  });
});
