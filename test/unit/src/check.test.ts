import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { selectDriver } from '../../../ffi/driver.ts';
import { CUresult } from '../../../ffi/results.ts';
import { check, cudaError, isReady, newerDriverNeeded } from '../../../src/check.ts';
import { broken } from '../../support/faults.ts';
import { emulate } from './emulate.ts';

describe('check', () => {
  test('success throws nothing, and builds no message', () => {
    check(0, 'cuInit', () => assert.fail('asked what it was doing'));
  });

  test('any other status throws, with the description of the driver and what cuffi was doing', () => {
    emulate();
    assert.throws(() => check(2, 'cuMemAlloc_v2', () => 'allocating 5 bytes'), {
      name: 'CudaError',
      status: 2,
      code: 'CUDA_ERROR_OUT_OF_MEMORY',
      call: 'cuMemAlloc_v2',
      doing: 'allocating 5 bytes',
      message:
        /^cuMemAlloc_v2 failed while allocating 5 bytes: out of memory \(.*\)\nClose buffers/,
    });
  });

  test('a status that the driver cannot describe is an unknown error with its number', () => {
    const driver = emulate();
    assert.match(cudaError(98_765, 'cuInit').message, /unknown error \(CUDA_ERROR_98765, 98765\)/);
    selectDriver(broken(driver, 'cuGetErrorString', 1));
    assert.match(cudaError(2, 'cuInit').message, /unknown error \(CUDA_ERROR_OUT_OF_MEMORY, 2\)/);
  });
});

describe('newerDriverNeeded', () => {
  const TOO_OLD = CUresult.CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER;

  test('a function that the driver lacks is not supported, and the version that has it is named', () => {
    emulate({ CUFFI_EMULATED_VERSION: '11.4' });
    assert.throws(() => check(TOO_OLD, 'cuFuncLoad', () => 'loading kernels'), {
      name: 'NotSupportedError',
      code: 'not-supported',
      message:
        'loading kernels needs a driver of CUDA 12.4 or later, which has cuFuncLoad; test is CUDA 11.4. ' +
        'Update the driver.',
    });
    assert.match(
      newerDriverNeeded('cuNever', 'this').message,
      /^this needs a driver with cuNever; /,
    );
    selectDriver(broken(emulate(), 'cuDriverGetVersion', 1));
    assert.match(newerDriverNeeded('cuNever', 'this').message, /test is of an unknown version/);
  });
});

describe('isReady', () => {
  test('a query returns done or not done, and throws every other status', () => {
    emulate();
    assert.equal(isReady(0, 'cuStreamQuery'), true);
    assert.equal(isReady(600, 'cuStreamQuery'), false);
    assert.throws(() => isReady(700, 'cuStreamQuery'), { name: 'CudaError', sticky: true });
  });
});
