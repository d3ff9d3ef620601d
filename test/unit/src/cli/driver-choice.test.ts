import assert from 'node:assert/strict';
import { afterEach, test } from 'node:test';
import { driverName, selectDriver } from '../../../../ffi/driver.ts';
import { chooseDriver } from '../../../../src/cli/driver-choice.ts';
import { broken } from '../../../support/faults.ts';
import { emulate } from '../emulate.ts';

const chosen = process.env['CUFFI_DRIVER'];
afterEach(() => {
  if (chosen === undefined) delete process.env['CUFFI_DRIVER'];
  else process.env['CUFFI_DRIVER'] = chosen;
});

test('a wish wins over the environment, and the environment over what is there', () => {
  process.env['CUFFI_DRIVER'] = '/nowhere/libcuda.so.1';
  assert.deepEqual(chooseDriver('emulated'), { name: 'emulated', reason: 'as --driver says' });
  assert.equal(driverName(), 'emulated');
  assert.deepEqual(chooseDriver(undefined), {
    name: '/nowhere/libcuda.so.1',
    reason: 'as CUFFI_DRIVER says',
  });
  assert.throws(driverName);
});

test('without a GPU it is the emulated one, with the reason', () => {
  delete process.env['CUFFI_DRIVER'];
  for (const status of [100, 34]) {
    selectDriver(broken(emulate(), 'cuInit', status));
    assert.deepEqual(chooseDriver(undefined), { name: 'emulated', reason: 'no GPU is here' });
    assert.equal(driverName(), 'emulated');
  }
});

test('with a GPU it is the real one, and a broken one is an error', () => {
  delete process.env['CUFFI_DRIVER'];
  const driver = emulate();
  assert.deepEqual(chooseDriver(undefined), { name: 'cuda', reason: 'a GPU is here' });
  selectDriver(broken(driver, 'cuInit', 999));
  assert.throws(() => chooseDriver(undefined), { name: 'CudaError', status: 999 });
});
