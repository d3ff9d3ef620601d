import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { cu, driverName, recordCalls, selectDriver } from '../../../ffi/driver.ts';
import { initialize } from '../../../src/driver.ts';
import { CudaError } from '../../../src/errors.ts';
import { Context, Device, driverVersion, isAvailable } from '../../../src/index.ts';
import { broken, failing } from '../../support/faults.ts';
import { emulate, runProgram } from './emulate.ts';

interface Outcome {
  readonly value?: unknown;
  readonly name?: string;
  readonly message?: string;
}

function ask(env: NodeJS.ProcessEnv): { available: Outcome; devices: Outcome } {
  const { code, stdout, stderr } = runProgram(
    new URL('./fixtures/driver.ts', import.meta.url),
    [],
    env,
  );
  assert.deepEqual({ code, stderr }, { code: 0, stderr: '' });
  return JSON.parse(stdout);
}

describe('initialize', () => {
  test('a missing driver is not available, and the error lists what was tried', () => {
    const path = '/nowhere/libcuda.so.1';
    const { available, devices } = ask({ CUFFI_DRIVER: path });
    assert.deepEqual(available, { value: false });
    assert.equal(devices.name, 'DriverNotFoundError');
    assert.match(String(devices.message), /^the chosen library is not a CUDA driver:$/m);
    assert.match(String(devices.message), /^ {2}\/nowhere\/libcuda\.so\.1: .*No such file/m);
    assert.match(String(devices.message), /CUFFI_DRIVER must be cuda, emulated, or the path/);
  });

  test('without CUFFI_DRIVER every usual place is tried and listed', (t) => {
    const { available, devices } = ask({ CUFFI_DRIVER: undefined });
    if (devices.name !== 'DriverNotFoundError') {
      t.skip('this machine has a libcuda');
      return;
    }
    assert.deepEqual(available, { value: false });
    for (const place of ['  libcuda.so.1: ', '/usr/lib/wsl/lib/', '/usr/local/cuda/compat/'])
      assert.ok(devices.message?.includes(place), place);
    for (const remedy of [/--gpus all/, /NVIDIA_DRIVER_CAPABILITIES/, /CUFFI_DRIVER=emulated/])
      assert.match(String(devices.message), remedy);
  });

  test('the error for a library that is not a driver says so', () => {
    const { devices } = ask({ CUFFI_DRIVER: 'libc.so.6' });
    assert.equal(devices.name, 'DriverNotFoundError');
    assert.match(String(devices.message), /libc\.so\.6: it has no cuInit/);
  });

  test('isAvailable() returns false for no device and the stub library, and throws any other error', () => {
    const driver = emulate();
    assert.equal(isAvailable(), true);
    for (const status of [100, 34]) {
      selectDriver(broken(driver, 'cuInit', status));
      assert.equal(isAvailable(), false);
      assert.throws(() => Device.count, { name: 'CudaError', status, call: 'cuInit' });
    }
    for (const status of [999, 3, 46, 802, 803, 804]) {
      selectDriver(broken(driver, 'cuInit', status));
      assert.throws(isAvailable, { name: 'CudaError', status, call: 'cuInit' });
    }
  });

  test('an error of cuInit is thrown even if the next try would succeed', () => {
    selectDriver(failing(emulate(), 'cuInit', 1, 999));
    assert.throws(isAvailable, { name: 'CudaError', status: 999 });
    assert.equal(isAvailable(), true);
  });

  test('a driver without devices is not available', () => {
    emulate({ CUFFI_EMULATED_DEVICES: '0' });
    assert.equal(isAvailable(), false);
    assert.throws(() => Device.get(0), { name: 'CudaError', code: 'CUDA_ERROR_NO_DEVICE' });
  });

  test('the driver is initialized once, and again after another one was selected', () => {
    const driver = emulate();
    const recorder = recordCalls();
    initialize();
    initialize();
    assert.deepEqual(
      recorder.calls.map((call) => call.name),
      ['cuInit'],
    );
    selectDriver(driver);
    initialize();
    assert.equal(recorder.calls.length, 2);
    recorder.stop();
    assert.equal(cu.cuInit, driver.cuInit);
  });

  test('a failed initialization is tried again', () => {
    selectDriver(failing(emulate(), 'cuInit', 1, 999));
    assert.throws(initialize, CudaError);
    initialize();
    assert.equal(Device.count, 1);
  });

  test('devices and contexts of one driver are not used with another', () => {
    emulate({ CUFFI_EMULATED_DEVICES: '2' });
    const device = Device.get(1);
    const context = Context.primary();
    emulate();
    assert.throws(() => Device.get(1), RangeError);
    assert.notEqual(Device.get(0), device);
    assert.notEqual(Context.primary(), context);
    assert.equal(driverName(), 'test');
  });

  test('driverVersion() returns two numbers', () => {
    emulate();
    assert.deepEqual(driverVersion(), { major: 13, minor: 0 });
  });
});
