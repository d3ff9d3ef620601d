import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import {
  ClosedError,
  CompileError,
  CompilerNotFoundError,
  CudaError,
  CuffiError,
  DriverNotFoundError,
  IpcError,
  NotSupportedError,
  PeerGoneError,
} from '../../../src/errors.ts';

const outOfMemory = new CudaError({
  status: 2,
  call: 'cuMemAlloc_v2',
  description: 'out of memory',
  doing: 'allocating 16 bytes',
  hint: 'Ask for less.',
});

describe('CuffiError', () => {
  test('every error has the base class CuffiError, and its own name and code', () => {
    const errors: Readonly<Record<string, readonly [error: CuffiError, code: string]>> = {
      CuffiError: [new CuffiError('x'), 'invalid-state'],
      CudaError: [outOfMemory, 'CUDA_ERROR_OUT_OF_MEMORY'],
      DriverNotFoundError: [new DriverNotFoundError('x'), 'driver-not-found'],
      NotSupportedError: [new NotSupportedError('x'), 'not-supported'],
      ClosedError: [new ClosedError('x'), 'closed'],
      PeerGoneError: [new PeerGoneError('x', { pid: 1, abandonedWaits: 0 }), 'peer-gone'],
      IpcError: [new IpcError('x'), 'ipc-failed'],
      CompileError: [new CompileError('x', 'log'), 'compile-failed'],
      CompilerNotFoundError: [new CompilerNotFoundError('x'), 'compiler-not-found'],
    };
    for (const [name, [error, code]] of Object.entries(errors)) {
      assert.ok(error instanceof CuffiError, name);
      assert.ok(error instanceof Error, name);
      assert.deepEqual([error.name, error.code], [name, code]);
      assert.match(String(error.stack), new RegExp(`^${name}`));
    }
    assert.equal(new IpcError('x', undefined, 'exporter-gone').code, 'exporter-gone');
  });
});

describe('CudaError', () => {
  test('the message says what failed, during what, why, and what to do', () => {
    assert.equal(
      outOfMemory.message,
      'cuMemAlloc_v2 failed while allocating 16 bytes: out of memory (CUDA_ERROR_OUT_OF_MEMORY, 2)\n' +
        'Ask for less.',
    );
    const { status, code, call, doing, hint, sticky } = outOfMemory;
    assert.deepEqual(
      { status, code, call, doing, hint, sticky },
      {
        status: 2,
        code: 'CUDA_ERROR_OUT_OF_MEMORY',
        call: 'cuMemAlloc_v2',
        doing: 'allocating 16 bytes',
        hint: 'Ask for less.',
        sticky: false,
      },
    );
  });

  test('without a hint or a purpose the message is one plain line', () => {
    const error = new CudaError({ status: 1, call: 'cuInit', description: 'invalid argument' });
    assert.equal(error.message, 'cuInit failed: invalid argument (CUDA_ERROR_INVALID_VALUE, 1)');
    assert.equal(error.doing, undefined);
    assert.equal(error.hint, undefined);
  });

  test('an unknown status of a newer driver keeps its number', () => {
    const error = new CudaError({ status: 98_765, call: 'cuInit', description: 'unknown error' });
    assert.equal(error.code, 'CUDA_ERROR_98765');
    assert.equal(error.status, 98_765);
  });

  test('an error is sticky for exactly the statuses after which the context is lost', () => {
    const isSticky = (status: number): boolean =>
      new CudaError({ status, call: 'cuInit', description: '' }).sticky;
    for (const status of [214, 700, 702, 710, 714, 715, 716, 717, 718, 719])
      assert.equal(isSticky(status), true, String(status));
    for (const status of [0, 1, 2, 100, 201, 400, 600, 701, 709, 801, 999])
      assert.equal(isSticky(status), false, String(status));
  });
});

describe('IpcError', () => {
  test('the message repeats the driver error that is the cause', () => {
    const error = new IpcError('could not be opened', outOfMemory);
    assert.equal(error.cause, outOfMemory);
    assert.equal(error.message, `could not be opened: ${outOfMemory.message}`);
    assert.equal('cause' in new IpcError('alone'), false);
  });
});
