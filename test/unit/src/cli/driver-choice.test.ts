import assert from 'node:assert/strict';
import { afterEach, describe, test } from 'node:test';
import { driverName, selectDriver } from '../../../../ffi/driver.ts';
import { chooseDriver } from '../../../../src/cli/driver-choice.ts';
import { broken } from '../../../support/faults.ts';
import { emulate } from '../emulate.ts';

const chosen = process.env['CUFFI_DRIVER'];
afterEach(() => {
  if (chosen === undefined) delete process.env['CUFFI_DRIVER'];
  else process.env['CUFFI_DRIVER'] = chosen;
});

describe('chooseDriver', () => {
  test('a requested driver takes precedence over CUFFI_DRIVER, and that over detection', () => {
    process.env['CUFFI_DRIVER'] = '/nowhere/libcuda.so.1';
    assert.deepEqual(chooseDriver('emulated'), { name: 'emulated', reason: 'as --driver says' });
    assert.equal(driverName(), 'emulated');
    assert.deepEqual(chooseDriver(undefined), {
      name: '/nowhere/libcuda.so.1',
      reason: 'as CUFFI_DRIVER says',
    });
    assert.throws(driverName, { name: 'LibraryNotFoundError' });
  });

  test('without a GPU the emulated driver is chosen, with the reason', () => {
    delete process.env['CUFFI_DRIVER'];
    for (const status of [100, 34]) {
      selectDriver(broken(emulate(), 'cuInit', status));
      assert.deepEqual(chooseDriver(undefined), { name: 'emulated', reason: 'no GPU is here' });
      assert.equal(driverName(), 'emulated');
    }
  });

  test('with a GPU the real driver is chosen, and a broken GPU is an error', () => {
    delete process.env['CUFFI_DRIVER'];
    const driver = emulate();
    assert.deepEqual(chooseDriver(undefined), { name: 'cuda', reason: 'a GPU is here' });
    selectDriver(broken(driver, 'cuInit', 999));
    assert.throws(() => chooseDriver(undefined), { name: 'CudaError', status: 999 });
  });
});
